"""
Static checks of a compiled GPU kernel, without a GPU: coalescing of a warp's loads, and arithmetic a weight.

All figures come from the lowered kernel (its list of UOps), the source, and for CUDA the machine code.
"""
import dataclasses
import math
import re
from collections.abc import Iterable

import numpy as np
from tinygrad.dtype import dtypes
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import GroupOp, Ops, UOp, graph_rewrite
from tinygrad.uop.symbolic import sym
from tinygrad_llm.device import cuda
from tinygrad_llm.patches import hooks
from tinygrad_llm.patches.search.cost.memory_access import BINARY, Access, values

def useful(found: Iterable[Access]) -> float:
  """Coalescing of several loads together: requested bytes as a fraction of the bytes in the touched sectors."""
  found = list(found)
  return sum(x.wanted * x.trips for x in found) / sum(x.wanted * x.trips / x.useful for x in found)

# *** arithmetic

COUNTED = {*BINARY, Ops.CONST, Ops.RANGE, Ops.CAST, Ops.NEG, Ops.WHERE, Ops.MULACC}  # ops of an index expression

def _identity(u: UOp) -> float:
  """The share of iterations in which an operation is an identity: + 0, << 0, * 1 by a number not loaded from memory."""
  if u.op not in (Ops.ADD, Ops.SHL, Ops.SHR, Ops.MUL, Ops.OR, Ops.XOR): return 0.0
  none = int(u.op is Ops.MUL)
  for s in u.src[::-1] if u.op in GroupOp.Commutative else u.src[1:]:
    if not dtypes.is_int(s.dtype) or any(x.op not in COUNTED for x in s.toposort()): continue
    ranges = list(s.ranges)
    known, inner = dict[UOp, np.ndarray](), 1
    for r in ranges:
      known[r] = np.arange(math.prod(int(x.vmax) + 1 for x in ranges)) // inner % (int(r.vmax) + 1)
      inner *= int(r.vmax) + 1
    return float(np.mean(values(s, known) == none))
  return 0.0

def _without_addresses(sink: UOp) -> list[UOp]:
  """The ops of a kernel without its index expressions."""
  found, left = dict[UOp, None](), [sink]
  while left:
    if (u := left.pop()) in found: continue
    found[u] = None
    left += u.src[:1] if u.op is Ops.INDEX else u.src
  return list(found)

def needed_ops(ast: UOp, ren: Renderer, weights: int) -> float:
  """
  The arithmetic operations that a kernel needs for each weight, whatever its schedule.

  They are counted before scheduling, with nested reductions. An operation on integers or floats counts once for each
  iteration of the ranges that its value depends on. So unpacking a scale counts once for its group, an activation sum
  once for all rows. Identities, as a shift by 0, and addresses do not count. A reduction is one addition an iteration.
  """
  seen = list[UOp]()
  def look(sink: UOp, ren: Renderer) -> UOp:
    seen.append(sink)
    return sink
  hooks.after_opts.append(look)
  try: hooks.full_rewrite_to_sink(ast.replace(arg=dataclasses.replace(ast.arg, opts_to_apply=())), ren)
  finally: hooks.after_opts.remove(look)
  total = 0.0
  for u in _without_addresses(graph_rewrite(seen[0], sym)):
    if u.dtype is dtypes.void: continue
    if u.op is Ops.REDUCE: total += math.prod(int(r.vmax) + 1 for r in {*u.src[1:], *u.ranges})
    elif u.op in GroupOp.ALU and u.op_in_backward_slice_with_self(Ops.INDEX):
      total += math.prod(int(r.vmax) + 1 for r in u.ranges) * (1 - _identity(u))
  return total / weights

# *** the code

def forbidden(program: UOp, ren: Renderer, weights: int) -> list[str]:
  """
  Operations that a quantised matmul must not have: division, double precision, an integer-to-float conversion a weight.

  Looks at the list of UOps, and for CUDA at the machine code. Conversions and reciprocals are allowed for less than one
  in 32 weights, because activation functions divide.
  """
  sink, linear, _, *binary = program.src
  found, trips, few = list[str](), [1], {"I2F": 0, "RECIPROCAL": 0}
  for u in linear.src:
    if u.op is Ops.RANGE: trips.append(trips[-1] * (int(u.vmax) + 1))
    elif u.op is Ops.END: trips.pop()
    if u.op in (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD, Ops.FDIV): found.append(u.op.name)
    if u.op is Ops.RECIPROCAL: few["RECIPROCAL"] += trips[-1]
    if u.dtype is dtypes.double: found.append("double")
    if u.op is Ops.CAST and dtypes.is_float(u.dtype) and dtypes.is_int(u.src[0].dtype) and u.src[0].op is not Ops.CONST:
      few["I2F"] += trips[-1]
  sizes = program.arg.launch_dims({})
  threads = math.prod(sizes[0]) * math.prod(sizes[1] or (1,))
  found += [f"{name} {n * threads / weights:.3f} a weight" for name, n in few.items() if n * threads * 32 >= weights]
  if binary and binary[0].arg[:4] == b"\x7fELF" and cuda.cuobjdump() is not None:
    sass = cuda.sass(binary[0].arg)
    assert sass is not None, "nvdisasm is missing"
    wrong = ["DADD", "DMUL", "DFMA", r"F2F\.F64", "I2F", "LDL", "STL", "RET"]  # RET: of a function; EXIT: of a kernel
    if not few["RECIPROCAL"]: wrong.append(r"MUFU\.RCP")
    found += [name for name in wrong if re.search(rf"\b{name}\b", sass)]
  return found
