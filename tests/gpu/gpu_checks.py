"""
What can be known of a compiled GPU kernel without a GPU: how a warp's loads fall on memory, and what a weight costs.

Everything is read off the lowered kernel (its list of UOps), the source, and for CUDA the machine code.
"""
import dataclasses
import math
import operator
import re
import subprocess
import tempfile
from collections.abc import Iterable

import numpy as np
from tinygrad.dtype import AddrSpace, dtypes
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import GroupOp, Ops, UOp, graph_rewrite
from tinygrad.uop.symbolic import sym
from tinygrad_llm.target import cuda
from tinygrad_llm.patches import passes

WARP = 32
SECTOR = 32  # bytes: what a GPU's caches move at least
STEPS = 64   # of the loops around a load that are looked at

@dataclasses.dataclass(frozen=True)
class Load:
  """
  A load from an argument of a kernel.

  width: bytes of a thread; useful: share of the bytes of the sectors that a request of a warp touches which a thread of
  it wants; wanted: distinct bytes of a warp's request, on average; trips: of the loops around it.
  """
  slot: int
  width: int
  useful: float
  wanted: float
  trips: int

  @property
  def nbytes(self) -> float: return self.wanted * self.trips

# *** addresses

BINARY = {Ops.ADD: operator.add, Ops.MUL: operator.mul, Ops.SUB: operator.sub, Ops.SHL: operator.lshift,
          Ops.SHR: operator.rshift, Ops.AND: operator.and_, Ops.OR: operator.or_, Ops.XOR: operator.xor,
          Ops.CMPLT: operator.lt, Ops.CMPNE: operator.ne, Ops.CMPEQ: operator.eq, Ops.MAX: np.maximum,
          Ops.FLOORDIV: operator.floordiv, Ops.FLOORMOD: operator.mod, Ops.CDIV: operator.floordiv,
          Ops.CMOD: operator.mod}

def values(u: UOp, known: dict[UOp, np.ndarray]) -> np.ndarray:
  """An index for all threads and steps at once; what it is made of goes into `known`. In memory is where it is."""
  if u not in known:
    src = [values(s, known) for s in u.src] if u.op not in (Ops.CONST, Ops.LOAD) else []
    if u.op is Ops.CONST: known[u] = np.int64(u.val)
    elif u.op is Ops.LOAD: known[u] = values(u.src[0].src[1], known)
    elif u.op is Ops.INDEX: known[u] = src[0] + src[1]  # one of several numbers that were loaded together
    elif u.op is Ops.CAST: known[u] = src[0]
    elif u.op is Ops.NEG: known[u] = -src[0]
    elif u.op is Ops.WHERE: known[u] = np.where(*src)
    elif u.op is Ops.MULACC: known[u] = src[0] * src[1] + src[2]
    else: known[u] = BINARY[u.op](*src)
  return known[u]

def _size(u: UOp) -> int: return int(u.src[0].vmax)

def _threads(uops: Iterable[UOp], group: int) -> dict[UOp, np.ndarray]:
  """SPECIALs -> their value for each thread of a group, (threads, 1), in the order in which hardware numbers them."""
  known, step = {}, 1
  for u in sorted((u for u in uops if u.op is Ops.SPECIAL), key=lambda u: u.arg):
    if u.arg.startswith("lidx"):
      known[u] = np.arange(group)[:, None] // step % _size(u)
      step *= _size(u)
    else: known[u] = np.int64((_size(u) - 1) // 2)  # a group in the middle
  return known

def _argument(u: UOp) -> UOp | None:
  while u.op is not Ops.PARAM and u.src: u = u.src[0]
  return u if u.op is Ops.PARAM and u.addrspace is AddrSpace.GLOBAL else None

def loads(uops: list[UOp], group: int) -> list[Load]:
  """All loads from arguments, for the `group` threads of a group."""
  found, loops, threads = [], list[UOp](), _threads(uops, group)
  for u in uops:
    if u.op is Ops.RANGE: loops.append(u)
    elif u.op is Ops.END: loops.pop()
    elif u.op is Ops.LOAD and (buf := _argument(u)) is not None:
      trips = math.prod(int(r.vmax) + 1 for r in loops)
      steps = np.unique(np.linspace(0, trips - 1, min(trips, STEPS)).astype(np.int64))
      known, inner = dict(threads), 1
      for r in reversed(loops):
        known[r] = steps[None] // inner % (int(r.vmax) + 1)
        inner *= int(r.vmax) + 1
      width = u.max_numel() * buf.dtype.itemsize
      at = np.broadcast_to(values(u.src[0].src[1], known), (group, len(steps))) * buf.dtype.itemsize
      wanted = sectors = requests = 0
      for first in range(0, group, WARP):
        for step in at[first:first + WARP].T:
          taken = np.unique(step[:, None] + np.arange(width))
          wanted, sectors, requests = wanted + len(taken), sectors + len(np.unique(taken // SECTOR)), requests + 1
      found.append(Load(buf.arg.slot, width, wanted / (sectors * SECTOR), wanted / requests, trips))
  return found

def useful(found: Iterable[Load]) -> float:
  """Of several loads together: bytes wanted of bytes in the sectors touched."""
  found = list(found)
  return sum(x.nbytes for x in found) / sum(x.nbytes / x.useful for x in found)

# *** arithmetic

def _identity(u: UOp) -> float:
  """The share of its steps in which an operation is nothing: + 0, << 0, * 1, by a number that no memory holds."""
  if u.op not in (Ops.ADD, Ops.SHL, Ops.SHR, Ops.MUL, Ops.OR, Ops.XOR): return 0.0
  none = int(u.op is Ops.MUL)
  for s in u.src[::-1] if u.op in GroupOp.Commutative else u.src[1:]:
    if s.op_in_backward_slice_with_self(Ops.INDEX, Ops.REDUCE) or not dtypes.is_int(s.dtype): continue
    ranges = list(s.ranges)
    known, inner = dict[UOp, np.ndarray](), 1
    for r in ranges:
      known[r] = np.arange(math.prod(int(x.vmax) + 1 for x in ranges)) // inner % (int(r.vmax) + 1)
      inner *= int(r.vmax) + 1
    try: return float(np.mean(values(s, known) == none))
    except KeyError: continue
  return 0.0

def _without_addresses(sink: UOp) -> list[UOp]:
  """What a kernel is made of but for what is an address alone, as of numbers in memory."""
  found, left = dict[UOp, None](), [sink]
  while left:
    if (u := left.pop()) in found: continue
    found[u] = None
    left += u.src[:1] if u.op is Ops.INDEX else u.src
  return list(found)

def needed_ops(ast: UOp, ren: Renderer, weights: int) -> float:
  """
  The arithmetic that a kernel needs for each weight, whatever its schedule.

  Counted in the kernel as it is before its loops are scheduled, with the sums nested: an operation on integers or
  floats counts once for each combination of steps of the loops that its value depends on, so a scale's unpacking once
  for its group, a sum over x alone once for all rows; not where it does nothing, as a shift by 0. A sum is one
  addition a step. Addresses do not count.
  """
  seen = list[UOp]()
  def look(sink: UOp, ren: Renderer) -> UOp:
    seen.append(sink)
    return sink
  passes.after_opts.append(look)
  try: passes.full_rewrite_to_sink(ast.replace(arg=dataclasses.replace(ast.arg, opts_to_apply=())), ren)
  finally: passes.after_opts.remove(look)
  total = 0.0
  for u in _without_addresses(graph_rewrite(seen[0], sym)):
    if u.dtype is dtypes.void: continue
    if u.op is Ops.REDUCE: total += math.prod(int(r.vmax) + 1 for r in {*u.src[1:], *u.ranges})
    elif u.op in GroupOp.ALU and u.op_in_backward_slice_with_self(Ops.INDEX):
      total += math.prod(int(r.vmax) + 1 for r in u.ranges) * (1 - _identity(u))
  return total / weights

# *** the code

def _sass(binary: bytes) -> str:
  with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
    file.write(binary)
    file.flush()
    tool = str(cuda.cuobjdump())  # its helper nvdisasm is beside it
    return subprocess.run([tool, "--dump-sass", file.name], capture_output=True, text=True, check=True).stdout

def forbidden(program: UOp, ren: Renderer, weights: int) -> list[str]:
  """
  What has no place in a product with a matrix: division, double precision, a conversion of an integer a weight.

  In the list of UOps, and for CUDA in the machine code. An activation divides: conversions and reciprocals, less than
  one in 32 weights.
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
    sass = _sass(binary[0].arg)
    wrong = ["DADD", "DMUL", "DFMA", r"F2F\.F64", "I2F", "LDL", "STL", "RET"]  # RET: of a function; EXIT: of a kernel
    if not few["RECIPROCAL"]: wrong.append(r"MUFU\.RCP")
    found += [name for name in wrong if re.search(rf"\b{name}\b", sass)]
  return found
