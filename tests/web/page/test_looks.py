"""The page on a phone and a desktop, dark and light: nothing hides or overflows, and axe-core finds nothing serious."""
import os
import pathlib

import pytest

from tests.support import browser as driver
from tests.support.extended import extended
from tests.support.page_server import Answer

pytestmark = extended
TEXT = """## A heading

A paragraph with `code`, **bold** and a [link](https://example.org/a/very/long/path/that/does/not/end/for/a/long/while/index).

| Name | Meaning | A column that is wide | Another column | And one more |
|---|---|---:|---|---|
| alpha | first | 1,234,567 | somewhat_long_identifier_here | x |

```python
def a_function_with_a_long_name(argument, another_argument, yet_another_argument): return argument + another_argument
```

1. one
2. two
   - nested

> Quoted.

"""
LONG = "Donaudampfschifffahrtsgesellschaft" * 6

@pytest.fixture
def talked(tabs, server):
  """talked(size, theme) -> a tab with a conversation that has all kinds of parts."""
  def make(size: str, theme: str) -> driver.Tab:
    server.answers = [Answer([TEXT, LONG], thoughts=["Let me think."])]
    tab = tabs(size, color_scheme=theme).open()
    tab.ask("A question, and a long word: " + LONG)
    tab.answered()
    server.answers = [Answer(["cut"], breaks=True)]
    tab.click("article.reply [aria-label='Answer again']")
    tab.page.wait_for_selector(".problem")
    tab.click("article.reply [aria-label='The version before']")
    return tab
  return make

both = pytest.mark.parametrize("theme", ["light", "dark"])
sizes = pytest.mark.parametrize("size", driver.SIZES)

@pytest.mark.skipif(not driver.AXE.is_file(), reason="axe-core is not there: make page")
@sizes
@both
def test_axe_finds_nothing_serious(talked, size, theme):
  tab = talked(size, theme)
  found = {"conversation": tab.serious()}
  tab.click("article.reply [aria-label='The version after']")
  found["error"] = tab.serious()
  tab.click("article.question [aria-label='Edit the question']")
  found["editor"] = tab.serious()
  tab.page.keyboard.press("Escape")
  tab.click("#settings")
  found["settings"] = tab.serious()
  tab.page.keyboard.press("Escape")
  if size == "phone": tab.click("#menu")
  tab.page.wait_for_timeout(300)
  tab.page.fill("#search", "schiff")
  tab.wait("document.querySelector('#conversations mark')")
  found["list"] = tab.serious()
  tab.click("#new")
  tab.page.wait_for_timeout(300)
  found["empty"] = tab.serious()
  tab.page.keyboard.press("Alt+h")
  found["shortcuts"] = tab.serious()
  assert {name: each for name, each in found.items() if each} == {}
  tab.page.keyboard.press("Escape")

@pytest.mark.skipif(not driver.AXE.is_file(), reason="axe-core is not there: make page")
def test_axe_can_find_something(tab):
  tab.run("document.getElementById('question').removeAttribute('aria-label')")
  tab.run("document.getElementById('question').removeAttribute('placeholder')")
  assert any("label" in found for found in tab.serious())

@sizes
def test_nothing_is_wider_than_the_window(talked, size):
  tab = talked(size, "light")
  wide = """() => [...document.querySelectorAll("#main, #main *")]
    .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest("pre, .table, .hidden"))
    .map(e => e.tagName + "." + e.className)"""
  assert tab.run(wide) == [] and tab.run("document.documentElement.scrollWidth <= innerWidth")
  assert tab.run("document.querySelector('pre').scrollWidth > document.querySelector('pre').clientWidth")
  tab.click("#settings")
  box = tab.page.locator("dialog").bounding_box()
  assert box["x"] >= 0 and box["x"] + box["width"] <= driver.SIZES[size][0] and box["height"] <= driver.SIZES[size][1]

def test_buttons_on_a_phone_are_large_enough(talked):
  tab = talked("phone", "light")
  small = tab.run("""() => [...document.querySelectorAll("button")]
    .filter(b => b.checkVisibility({visibilityProperty: true}) && !b.closest("[inert]"))
    .map(b => [b.ariaLabel ?? b.textContent, b.getBoundingClientRect()])
    .filter(([, r]) => r.width < 32 || r.height < 32).map(([name]) => name)""")
  assert small == []

def test_list_on_a_phone_is_a_drawer(tabs, server):
  tab = tabs("phone").open()
  tab.ask("Hi")
  tab.answered()
  assert tab.run("document.getElementById('sidebar').inert")
  tab.click("#menu")
  assert not tab.run("document.getElementById('sidebar').inert") and tab.run("document.getElementById('main').inert")
  tab.page.wait_for_timeout(300)
  tab.click("#conversations .open")
  assert tab.run("document.getElementById('sidebar').inert") and not tab.run("document.getElementById('main').inert")

@both
def test_colours_follow_the_system_and_the_switch(tabs, theme):
  tab = tabs(color_scheme=theme).open()
  dark = "(c => Number(/\\d+/.exec(c)[0]) < 128)(getComputedStyle(document.body).backgroundColor)"
  assert tab.run(dark) == (theme == "dark")
  tab.click("#theme")
  assert not tab.run(dark)
  tab.click("#theme")
  assert tab.run(dark)
  tab.page.reload()
  tab.page.wait_for_selector("[data-theme=dark]")
  assert tab.run(dark)

@pytest.mark.parametrize("motion, moves", [("reduce", False), ("no-preference", True)])
def test_motion_is_reduced_if_asked(tabs, server, motion, moves):
  server.answers = [Answer(["a"] * 400, pause=0.02)]
  tab = tabs(reduced_motion=motion).open()
  tab.ask("Hi")
  tab.page.wait_for_selector(".dots i")
  assert (tab.run("document.getAnimations().length") > 0) == moves
  tab.click("#send")

@sizes
@both
def test_pictures(talked, size, theme, tmp_path):
  """Pictures for a person to look at, in $PICTURES if it is set."""
  folder = pathlib.Path(os.environ.get("PICTURES", tmp_path))
  tab = talked(size, theme)
  tab.page.screenshot(path=folder / f"page-{size}-{theme}.png")
  assert (folder / f"page-{size}-{theme}.png").stat().st_size > 10_000
