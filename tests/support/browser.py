"""The page in a browser without a window: Debian's Chromium or Chrome, driven by playwright."""
from __future__ import annotations
import contextlib
import json
import os
import pathlib
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
AXE = ROOT / "build" / "page" / "node_modules" / "axe-core" / "axe.min.js"  # make page fetches it
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EXECUTABLES = ("chrome", "headless_shell", "chrome-headless-shell")  # of those that playwright fetches
SIZES = {"desktop": (1280, 800), "phone": (390, 844)}

def chromium() -> str | None:
  """The path of a browser: $CHROMIUM, one on PATH, or the one that playwright has fetched."""
  if found := os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None): return found
  cache = pathlib.Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or pathlib.Path.home() / ".cache" / "ms-playwright")
  return next((str(path) for path in sorted(cache.glob("chromium*/chrome-*/*")) if path.name in EXECUTABLES), None)

# policy violations, and code that a model's text has run
WATCH = """
window.ran = []
window.violations = []
document.addEventListener("securitypolicyviolation", e => violations.push(`${e.violatedDirective} ${e.blockedURI}`))
window.alert = window.confirm = window.prompt = text => { ran.push(String(text)) }
"""

class Tab:
  """A tab with the page. errors: of its scripts, and of the console."""
  def __init__(self, page: Any, url: str):
    self.page, self.url, self.errors = page, url, list[str]()
    page.set_default_timeout(20_000)
    page.add_init_script(WATCH)
    page.on("pageerror", lambda e: self.errors.append(str(e)))
    page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" and "status of" not in m.text
            and "ERR_" not in m.text else None)

  def open(self, ready: bool = True) -> Tab:
    self.page.goto(self.url)
    if ready: self.page.wait_for_selector("body[data-health=ok]")
    return self

  def ask(self, text: str) -> None:
    self.page.fill("#question", text)
    self.page.click("#send")

  def answered(self) -> str:
    """The text of the last answer, once it is whole."""
    self.page.wait_for_selector("article.reply")
    self.page.wait_for_selector("body:not(.busy)")
    return self.text("article.reply:last-child .prose")

  def text(self, selector: str) -> str: return str(self.page.inner_text(selector))
  def count(self, selector: str) -> int: return int(self.page.locator(selector).count())
  def click(self, selector: str) -> None: self.page.click(selector)
  def run(self, script: str, *args: Any) -> Any: return self.page.evaluate(script, *args)

  def wait(self, condition: str, seconds: float = 30) -> None:
    """Until a script's value is true. playwright's own way evaluates a text in the page, which the policy forbids."""
    until = time.monotonic() + seconds
    while not self.run(condition):
      if time.monotonic() > until: raise AssertionError(f"never true: {condition}")
      self.page.wait_for_timeout(30)

  def faults(self) -> list[str]:
    """Errors, policy violations and code of a model that ran."""
    return [*self.errors, *self.run("[...violations, ...ran]")]

  def serious(self) -> list[str]:
    """axe-core's serious and critical findings."""
    session = self.page.context.new_cdp_session(self.page)
    session.send("Runtime.evaluate", {"expression": AXE.read_text()})  # below the policy, as a debugger can
    found = json.loads(self.page.evaluate("async () => JSON.stringify((await axe.run()).violations)"))
    return [f"{v['id']}: {v['help']}: {[n['html'][:150] for n in v['nodes'][:3]]}" for v in found
            if v["impact"] in ("serious", "critical")]

@contextlib.contextmanager
def browser() -> Iterator[Any]:
  """playwright's browser. The test is skipped where one of the two is missing."""
  sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: make page")
  if (path := chromium()) is None: pytest.skip("no Chromium on PATH: apt-get install chromium, or CHROMIUM=path")
  with sync_api.sync_playwright() as started:
    launched = started.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
    try: yield launched
    finally: launched.close()

if __name__ == "__main__": raise SystemExit(chromium() is None)
