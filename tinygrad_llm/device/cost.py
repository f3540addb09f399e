"""The cost of a captured schedule: its number of kernels, and the bytes that they move."""
from __future__ import annotations
from collections.abc import Iterator
from tinygrad import UOp
from tinygrad.engine.realize import estimate_uop
from tinygrad.uop.ops import Ops, sym_infer

def cost(linear: UOp, variables: dict[str, int]) -> tuple[int, int]:
  """Kernels of a schedule, and the bytes that they move, by tinygrad's estimate at the values of its variables."""
  calls = [inner for call in linear.src for inner in _calls(call)]
  return sum(map(_kernels, calls)), sum(int(sym_infer(estimate_uop(call).mem, variables)) for call in calls)

def _calls(call: UOp) -> Iterator[UOp]:
  """The call, or the calls inside of a captured graph: a graph that never ran has no estimate of its own."""
  function = call.src[0]
  if function.op is not Ops.CUSTOM_FUNCTION or function.arg != "graph": yield call
  else:
    for inner in function.src[0].src: yield from _calls(inner)

def _kernels(call: UOp) -> int:
  """Number of kernels that a call runs: its own, or all of a command queue (HCQ2=1)."""
  function = call.src[0]
  if function.op is Ops.CUSTOM_FUNCTION and function.arg == "hcq": return len(call.arg.aux.kernels)
  return int(function.op is Ops.PROGRAM)
