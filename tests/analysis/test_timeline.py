"""analysis/pages/timeline.py: a self-contained page, escaping of names, and estimates labelled as such."""
import html
import re
import shutil
import subprocess
from dataclasses import asdict

import pytest
from tests.support.html_page import Elements, data_of
from tinygrad_llm.analysis.pages.codes import MOST, cut
from tinygrad_llm.analysis.pages.timeline import DEVICE, HOST, Bar, Code, Timeline, page

EVIL = "</script><img src=x onerror=alert(1)><!--<script>]]>&lt;\u2028\u2029\x00\"'`${x}{{data}}\\"

def timeline(name: str = "x", measured: bool = True) -> Timeline:
  bars = [Bar(HOST, "host", "host", 0.0, 1.5), Bar(DEVICE, name, name, 1.5, 2.5, {name: name}, 0)]
  return Timeline(name, measured, name, bars)

def test_page_data_round_trips():
  timelines, codes = [timeline(), timeline(EVIL, False)], [Code(EVIL, EVIL * 3, EVIL)]
  found = data_of(page(EVIL, timelines, codes))
  assert found == {"heading": EVIL, "timelines": [asdict(t) for t in timelines], "codes": [asdict(c) for c in codes]}

@pytest.mark.parametrize("evil", [EVIL, "<!--", "<script>", "</SCRIPT ><svg onload=x>", "{{heading}}{{data}}"])
def test_text_is_escaped(evil):
  def elements(name: str) -> list: return Elements(page(name, [timeline(name)], [Code(name, name, name)])).tags
  assert elements(evil) == elements("harmless")
  assert len(Elements(page(evil, [timeline(evil)], [])).scripts) == 2
  title = re.search("<title>(.*?)</title>", page(evil, [timeline(evil)], []), re.S)
  assert title is not None and html.unescape(title[1]) == evil

def test_script_sets_text_content_only():
  script = Elements(page("x", [timeline()], [])).scripts[1]
  assert "textContent" in script
  others = r"innerHTML|outerHTML|insertAdjacent|document\.write|eval|Function\(|setAttribute\(.on|DOMParser"
  assert not re.search(others, script)

def test_page_is_self_contained():
  text = page("x", [timeline()], [Code("x", "y", "z")])
  tags = Elements(text).tags
  policy = next(a["content"] for tag, a in tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
  assert "default-src 'none'" in policy and "http" not in policy
  assert not [tag for tag, attributes in tags if tag in ("link", "img", "iframe") or {"src", "href"} & set(attributes)]
  assert not re.search(r"https?:|//[a-z]+\.|@import|url\(|fetch\(|XMLHttp|import\(", text)

def test_page_labels_estimates():
  """The data says that it is an estimate; so do the page's heading, chart, legend and bars."""
  text = page("x", [timeline(measured=False)], [])
  assert data_of(text)["timelines"][0]["measured"] is False
  script = Elements(text).scripts[1]
  assert script.count("step.measured") >= 6
  for words in ("ESTIMATED, NOT MEASURED", "ESTIMATE, NOT MEASURED", "us, estimated", "time, estimated", "about "):
    assert words in script
  assert ".estimated #chart" in text

@pytest.mark.skipif(shutil.which("node") is None, reason="no node to look at the script with")
def test_script_is_valid_javascript(tmp_path):
  (file := tmp_path / "x.js").write_text(Elements(page("x", [timeline()], [])).scripts[1])
  done = subprocess.run(["node", "--check", str(file)], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr

def test_long_texts_are_truncated():
  assert cut("x" * MOST) == "x" * MOST
  assert cut("x" * (MOST + 1234)) == "x" * MOST + "\n.. 1,234 characters more"
