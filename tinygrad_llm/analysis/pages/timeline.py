"""
The page of a step as a timeline: bars of time, and the code behind each.

It is one file without any network. All text that it shows may come from a model file: the page gets it as JSON in which
no markup can begin, and shows it as text only.
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
  A piece of time, us from the step's beginning. lane: DEVICE or HOST; group: its colour, and its line in the legend;
  figures: more to say of it; code: its place in the page's codes, None if it has none.
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
  """A kernel's source, and its way through the patches: text."""
  name: str
  source: str
  way: str

@dataclass(frozen=True)
class Timeline:
  """A step. measured: False is an estimate, which the page says at every turn; note: how the times came about."""
  title: str
  measured: bool
  note: str
  bars: Sequence[Bar]

def page(heading: str, timelines: Sequence[Timeline], codes: Sequence[Code]) -> str:
  """heading: the model, the device."""
  data = {"heading": heading, "timelines": [asdict(t) for t in timelines], "codes": [asdict(c) for c in codes]}
  text = json.dumps(data, separators=(",", ":"))
  for sign in "<>&": text = text.replace(sign, f"\\u{ord(sign):04x}")
  template = Path(__file__).with_name("timeline.html").read_text(encoding="utf-8")
  found = {"heading": html.escape(heading), "data": text}
  return re.sub(r"{{(heading|data)}}", lambda m: found[m[1]], template)  # at once: a name may look like a place
