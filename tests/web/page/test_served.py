"""The page of the real server, which answers with the bundled model."""
import re
import signal
import subprocess
import sys

import pytest

from tests.support.extended import extended

pytestmark = extended

@pytest.fixture
def address():
  """python -m tinygrad_llm.serve at a free port."""
  command = [sys.executable, "-u", "-m", "tinygrad_llm.serve", "--port", "0", "--log-format", "none"]
  with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
    try:
      for line in process.stderr:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
          yield found[0] + "/"
          break
      else: pytest.fail("the server has ended")
    finally:
      process.send_signal(signal.SIGTERM)
      process.stderr.close()

def test_page_of_the_server_with_the_bundled_model(tabs, address):
  tab = tabs(url=address).open(ready=False)
  tab.ask("Tell me a story about a fox.")
  tab.page.wait_for_selector("body[data-health=ok]", timeout=300_000)
  tab.wait("document.querySelector('article.reply .prose')?.textContent.length > 20")
  tab.page.wait_for_selector("body:not(.busy)", timeout=120_000)
  assert tab.count(".problem") == 0
  assert re.search(r"stories\s+[\d,]+ tokens\s+[\d.]+ tok/s", tab.text("article.reply .facts"))
  assert re.search(r"^[\d,]+ of [\d,]+ tokens", tab.text("#context-text"))
  tab.click("article.reply [aria-label='Answer again']")
  tab.page.wait_for_selector("body.busy")
  tab.page.keyboard.press("Escape")
  tab.answered()
  assert tab.text("article.reply .versions span").replace("\n", "") == "2 / 2"
