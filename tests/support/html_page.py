"""Parses an HTML page of tinygrad_llm/analysis/pages."""
import json
from html.parser import HTMLParser
from typing import Any

class Elements(HTMLParser):
  """The elements and the script texts of a page."""
  def __init__(self, text: str):
    super().__init__()
    self.tags: list[tuple[str, dict[str, str | None]]] = []
    self.scripts: list[str] = []
    self._in_script = False
    self.feed(text)

  def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
    self.tags.append((tag, dict(attrs)))
    self._in_script = tag == "script"
    if self._in_script: self.scripts.append("")

  def handle_endtag(self, tag: str) -> None: self._in_script &= tag != "script"
  def handle_data(self, data: str) -> None:
    if self._in_script: self.scripts[-1] += data

def data_of(page: str) -> dict[str, Any]:
  """The JSON data that a page embeds in its first script."""
  return json.loads(Elements(page).scripts[0])
