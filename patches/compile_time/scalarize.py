"""
Scalarize: vector operations are taken apart at once where the elements of their operands are known.

Why: an unrolled operation becomes one operation for each element, whose operands are INDEXes with constants into the
  whole operands. Rules then move each INDEX through reshapes, permutes and expands, one step at a time, until it meets
  an element of a STACK. Most operands are such a STACK already, for operations are taken apart from the leaves on.
How: the pass reads the elements off such an operand; any other operand is indexed, as before.
Numbers: CPU seconds in that pass for the bundled model's prompt 2.2 -> 0.8, for all 107 kernels of a model with
  experts, 6 layers, from the tensors to the source 37.7 -> 29.5 (2-core AMD EPYC)
Upstream: not sent; do_devectorize could do so.
"""
from __future__ import annotations
import functools
from collections.abc import Sequence
from itertools import product
import numpy as np
from tinygrad import codegen
from tinygrad.uop.ops import GroupOp, Ops, PatternMatcher, UOp, UPat
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.codegen:do_devectorize": "c9d8fd7a0fe6",
  "tinygrad.codegen:devectorizer2": "566768760ee6",
  "tinygrad.codegen:ew_devectorizer": "f8f1cfde150d",
}

@functools.cache
def _order(shape: tuple[int, ...], axes: tuple[int, ...]) -> list[int]:
  """For each element of the transposed array: its flat index in an array of this shape."""
  return np.arange(np.prod(shape, dtype=int)).reshape(shape).transpose(axes).flatten().tolist()

def elements(x: UOp) -> Sequence[UOp]|None:
  """The scalars of a value, in row-major order; None if the graph does not show them."""
  if x.shape == (): return None if x.op in GroupOp.Movement else (x,)
  if x.op is Ops.STACK:
    parts = [elements(s) for s in x.src]
    return None if None in parts else [u for part in parts if part is not None for u in part]
  if x.op not in (Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND) or (whole := elements(x.src[0])) is None: return None
  if x.op is Ops.PERMUTE: return [whole[i] for i in _order(x.src[0].shape, x.marg)]
  return [*whole] * (x.max_numel() // len(whole))  # expanded axes come first

def _operand(b: UOp, x: UOp) -> Sequence[UOp]:
  if x.base.is_invalid: return [x.base] * b.max_numel()
  if (found := elements(x)) is not None: return found
  return [x.index(*at) for at in product(*[[UOp.const(i) for i in range(n)] for n in b.shape])]

def scalarize(b: UOp) -> UOp|None:
  if b.shape == () or not all(x.shape == b.shape or x.base.is_invalid for x in b.src): return None
  made = [b.replace(dtype=None, src=src) for src in zip(*(_operand(b, x) for x in b.src))]
  return UOp.group(*made) if b.op is Ops.STORE else UOp.stack(*made).reshape(b.shape)

pm_elementwise = PatternMatcher([(UPat(GroupOp.Elementwise, name="b"), scalarize)])
pm_all = PatternMatcher([(UPat(GroupOp.Elementwise | {Ops.LOAD, Ops.STORE}, name="b"), scalarize)])

def install() -> None:
  places.rules(codegen, "ew_devectorizer", pm_elementwise, first=True)
  places.rules(codegen, "devectorizer2", pm_all, first=True)
