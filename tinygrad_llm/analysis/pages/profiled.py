"""The page of one or more profiles: a timeline for each."""
from __future__ import annotations
from collections.abc import Mapping
from dataclasses import replace
from tinygrad import UOp
from tinygrad.engine.realize import get_call_arg_uops
from tinygrad.uop.ops import Ops
from tinygrad_llm.analysis.pages.codes import codes
from tinygrad_llm.analysis.pages.timeline import DEVICE, HOST, Bar, Code, Timeline, page
from tinygrad_llm.analysis.profile import HOST as HOST_ROW, Kernel, Profile
from tinygrad_llm.engine.llm import LLM

IN_STEP = ("One {unit}, as it was: the one of median length. Its kernels are timed in it, by a clock that is read "
           "between them.")
ALONE = ("The kernels of one {unit}, each timed alone and laid end to end; the host has what is left of the "
         "{unit} as measured.")

class Page:
  """Collects profiles as they come. A kernel that several profiles share has one code."""
  def __init__(self) -> None:
    self.headings: dict[str, None] = {}
    self.timelines: list[tuple[str, Timeline]] = []
    self.codes: list[Code] = []
    self.places: dict[UOp, int] = {}

  def add(self, llm: LLM, profile: Profile, heading: str, name: str, unit: str, depth: int) -> None:
    """Adds a profile. heading: model and device; name: of the test; unit: a step's unit, token or prompt."""
    calls = [kernel.call for kernel in profile.kernels]
    new = [pair for pair in zip(calls, _scheduled(llm, calls, unit, depth)) if pair[0].src[0] not in self.places]
    for kernel, code in codes(new).items():
      self.places[kernel] = len(self.codes)
      self.codes.append(code)
    self.headings[heading] = None
    self.timelines.append((heading, timeline(profile, name, unit, self.places)))

  def text(self) -> str:
    several = len(self.headings) > 1
    return page("; ".join(self.headings), [replace(t, title=f"{heading}: {t.title}") if several else t
                                           for heading, t in self.timelines], self.codes)

def _scheduled(llm: LLM, calls: list[UOp], unit: str, depth: int) -> list[UOp | None]:
  """The calls before compilation; None where unknown. For a prompt, the last chunk and the logits are known."""
  steps = llm.engine.steps
  linear, _ = steps.piece_schedule(depth) if unit == "prompt" else steps.decode_schedule(1, depth)
  found = [call for call in linear.src if call.src[0].op is Ops.SINK]
  same = len(found) <= len(calls) and all(len(get_call_arg_uops(a)) == len(get_call_arg_uops(b))
                                          for a, b in zip(reversed(found), reversed(calls)))
  return [*[None] * (len(calls) - len(found)), *found] if same else [None] * len(calls)

def timeline(profile: Profile, title: str, unit: str, places: Mapping[UOp, int]) -> Timeline:
  """A profile's timeline. unit: a step's unit, token or prompt; places: indices of the kernels' codes in the page."""
  def bar(start: float, us: float, k: int | None) -> Bar:
    if k is None: return Bar(HOST, HOST_ROW, "host: Python, waking threads, the token in, the logits out", start, us)
    kernel = profile.kernels[k]
    return Bar(DEVICE, kernel.group, kernel.name, start, us, figures(kernel, unit, profile.peak),
               places[kernel.call.src[0]])
  note = (IN_STEP if profile.in_step else ALONE).format(unit=unit)
  return Timeline(title, True, note, [bar(m.start, m.us, m.kernel) for m in profile.timeline])

def figures(kernel: Kernel, unit: str, peak: float) -> dict[str, str]:
  speed = kernel.bytes / kernel.us / 1e3 if kernel.us else 0.0
  sizes = {"global size": kernel.global_size, "local size": kernel.local_size}
  return {"mean": f"{kernel.us:.2f} us, of the middle half of all {unit}s", "role": kernel.role,
          "bytes": f"{kernel.bytes:,}",
          "speed": f"{speed:.1f} GB/s, {speed / peak:.0%} of the peak of {peak:.1f}",
          **{name: " x ".join(map(str, size)) for name, size in sizes.items() if size},
          "opts": " ".join(kernel.opts) or "none"}
