"""The browser of these tests, a scripted server, and tabs that are checked for errors when a test ends."""
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support import browser as driver
from tests.support.page_server import PageServer


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
  with driver.browser() as launched: yield launched

@pytest.fixture
def server() -> Iterator[PageServer]:
  pytest.importorskip("starlette")
  with PageServer().running() as running: yield running

@pytest.fixture
def tabs(browser, server) -> Iterator[Callable[..., driver.Tab]]:
  """tabs(size of SIZES, url, **options of a browser's context) -> a tab. Its errors fail the test."""
  contexts, opened = [], list[driver.Tab]()
  def make(size: str = "desktop", url: str = "", **options: Any) -> driver.Tab:
    width, height = driver.SIZES[size]
    touch = {"has_touch": True, "is_mobile": True} if size == "phone" else {}
    context = browser.new_context(viewport={"width": width, "height": height}, **touch, **options)
    contexts.append(context)
    opened.append(driver.Tab(context.new_page(), url or server.url))
    return opened[-1]
  yield make
  try: assert [fault for tab in opened if tab.page.url.startswith("http") for fault in tab.faults()] == []
  finally:
    for context in contexts: context.close()

@pytest.fixture
def tab(tabs) -> driver.Tab: return tabs().open()
