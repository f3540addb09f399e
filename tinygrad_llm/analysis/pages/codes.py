"""The code of a step's kernels for a page: the source of each, and the transcript of its lowering by the patches."""
from __future__ import annotations
from collections.abc import Iterable
from tinygrad import UOp
from tinygrad.helpers import ansistrip
from tinygrad.uop.ops import Ops
from tqdm import tqdm
from tinygrad_llm.analysis.pages.timeline import Code
from tinygrad_llm.analysis.programs import lowered
from tinygrad_llm.patches.explain import recording, transcript

MOST = 40_000  # characters of a text, at most

def codes(calls: Iterable[tuple[UOp, UOp | None]]) -> dict[UOp, Code]:
  """
  The Code of each distinct kernel. calls: pairs of a compiled call and the same call scheduled, not lowered.

  Each kernel is lowered again for its transcript, in about a second, with a progress bar on stderr. A kernel without a
  scheduled call (None) has no transcript.
  """
  distinct = {call.src[0]: scheduled for call, scheduled in reversed([*calls]) if call.src[0].op is Ops.PROGRAM}
  return {kernel: Code(ansistrip(kernel.arg.name), cut(kernel.src[2].arg.strip()), "" if call is None else way(call))
          for kernel, call in tqdm(distinct.items(), desc="explaining", unit="kernel", leave=False, disable=None)}

def way(scheduled: UOp) -> str:
  """The transcript of the patches' rewrites of a scheduled call's kernel."""
  with recording.recording() as of_kernel: lowered(scheduled)
  return cut(transcript.text(of_kernel))

def cut(text: str) -> str:
  return text if len(text) <= MOST else f"{text[:MOST]}\n.. {len(text) - MOST:,} characters more"
