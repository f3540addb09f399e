"""
The page of steps as timelines: bars of time, and the code behind each bar.

The page is a single file that needs no network. Its texts may come from a model file, so they are untrusted: they are
embedded as JSON in which no markup can begin, and shown as text only.
"""
from __future__ import annotations
import html, json, re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

DEVICE, HOST = "device", "host"  # lanes

@dataclass(frozen=True)
class Bar:
  """
  A span of time, in us from the step's start.

  - lane: DEVICE or HOST.
  - group: its entry in the legend, which has a colour.
  - figures: further figures to show, by label.
  - code: index of its code in the page's codes; None if it has none.
  """
  lane: str
  group: str
  name: str
  start: float
  us: float
  figures: Mapping[str, str] = field(default_factory=dict)
  code: int | None = None

@dataclass(frozen=True)
class Code:
  """A kernel's source, and the transcript of its lowering (`way`), as text."""
  name: str
  source: str
  way: str

@dataclass(frozen=True)
class Timeline:
  """A step. measured: False marks an estimate, which the page says everywhere; note: the origin of the times."""
  title: str
  measured: bool
  note: str
  bars: Sequence[Bar]

def page(heading: str, timelines: Sequence[Timeline], codes: Sequence[Code]) -> str:
  """The page as HTML. heading: model and device."""
  data = {"heading": heading, "timelines": [asdict(t) for t in timelines], "codes": [asdict(c) for c in codes]}
  text = json.dumps(data, separators=(",", ":"))
  for sign in "<>&": text = text.replace(sign, f"\\u{ord(sign):04x}")
  template = Path(__file__).with_name("timeline.html").read_text(encoding="utf-8")
  found = {"heading": html.escape(heading), "data": text}
  return re.sub(r"{{(heading|data)}}", lambda m: found[m[1]], template)  # in one pass: names may look like these
