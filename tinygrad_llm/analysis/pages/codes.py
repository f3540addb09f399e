"""The code of a step's kernels for a page: each one's source, and its way through the patches."""
from __future__ import annotations
from collections.abc import Iterable
from tinygrad import UOp
from tinygrad.helpers import ansistrip
from tinygrad.uop.ops import Ops
from tqdm import tqdm
from tinygrad_llm.analysis.pages.timeline import Code
from tinygrad_llm.analysis.programs import lowered
from tinygrad_llm.patches.explain import recording, transcript

MOST = 40_000  # characters of a text

def codes(calls: Iterable[tuple[UOp, UOp | None]]) -> dict[UOp, Code]:
  """
  By kernel, each once. calls: compiled, and the same as they were scheduled (None: their way is not known).

  Each kernel is lowered again to see its way, in about a second; a bar on stderr shows how far that is.
  """
  distinct = {call.src[0]: scheduled for call, scheduled in reversed([*calls]) if call.src[0].op is Ops.PROGRAM}
  return {kernel: Code(ansistrip(kernel.arg.name), cut(kernel.src[2].arg.strip()), "" if call is None else way(call))
          for kernel, call in tqdm(distinct.items(), desc="explaining", unit="kernel", leave=False, disable=None)}

def way(scheduled: UOp) -> str:
  """What each patch made of a kernel that is scheduled, not compiled."""
  with recording.recording() as of_kernel: lowered(scheduled)
  return cut(transcript.text(of_kernel))

def cut(text: str) -> str:
  return text if len(text) <= MOST else f"{text[:MOST]}\n.. {len(text) - MOST:,} characters more"
