"""
A thread's instructions, read off a kernel's linear program: the pipe that executes each one, and how often it runs.
"""
from __future__ import annotations
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from tinygrad.dtype import AddrSpace, DType, dtypes
from tinygrad.uop.ops import GroupOp, Ops, UOp
from tinygrad_llm.patches.ir import intrinsics
from tinygrad_llm.patches.ir.indices import users_of
from tinygrad_llm.patches.search.cost.memory_access import argument, length
from tinygrad_llm.patches.tiles.amx_tiles import DEPTH, TOKENS, is_step

UNROLLED = 8  # factor by which compilers unroll a short loop
SHORT = 64    # instructions of a short loop's body, at most
MOST = 2048   # instructions of all steps, at most, of a constant-length loop that is unrolled completely

SFU = (Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.SQRT, Ops.RECIPROCAL, Ops.FDIV)
DIVIDE = (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD)
BITS = (Ops.AND, Ops.OR, Ops.XOR)

@dataclass(frozen=True)
class Instruction:
  """
  An instruction of a thread.

  - pipe: int, float, convert, sfu, tensor, load, store, shared, shuffle, barrier or branch. Further pipes are half
    (conversion from or to it), divide (integers), dot (of bytes) and element (extracted from or put into a vector).
  - lanes: elements of the vector, or products that a warp's matrix instruction accumulates. nbytes: their bytes.
  - trips: how often a thread executes it.
  - address: whether it only computes an address.
  - alike: how many such scalar instructions, one per element of a vector, a compiler merges into one.
  """
  pipe: str
  lanes: int
  nbytes: int
  trips: int
  address: bool = False
  alike: int = 1

def pipe(u: UOp) -> str|None:
  """The pipe that executes a UOp; None if it is no instruction."""
  if is_const(u): return None
  match u.op:
    case Ops.LOAD | Ops.STORE:
      if argument(u) is not None: return "load" if u.op is Ops.LOAD else "store"
      return "shared" if u.src[0].addrspace is AddrSpace.LOCAL else None
    case Ops.INDEX: return "element" if u.src[0].addrspace in (None, AddrSpace.ALU) else None
    case Ops.STACK: return None if all(is_const(s) or s.op is Ops.LOAD for s in set(u.src)) else "element"
    case Ops.CAST: return _conversion(u.src[0].dtype, u.dtype)
    case Ops.CUSTOM | Ops.CUSTOMI:
      if is_step(u): return "tensor"
      return intrinsics.pipe(u.arg)
    case Ops.WMMA: return "tensor"
    case Ops.BARRIER: return "barrier"
    case Ops.END: return "branch"
  if u.op in SFU: return "sfu"
  if u.op in DIVIDE: return "divide"
  if u.op in GroupOp.ALU: return "float" if any(dtypes.is_float(x.dtype) for x in (u, u.src[-1])) else "int"
  return None

def _conversion(source: DType, target: DType) -> str|None:
  floats = dtypes.is_float(source) + dtypes.is_float(target)
  return ("int" if source.itemsize != target.itemsize else None, "convert", "half")[floats]

def is_const(u: UOp) -> bool: return u.op is Ops.CONST or u.op is Ops.CAST and is_const(u.src[0])

def instructions(uops: Sequence[UOp], variables: Mapping[str, int] | None = None) -> list[Instruction]:
  """A thread's instructions in order. Addresses and the branch of an unrolled loop count once per unrolled group."""
  users, side = users_of(uops), side_by_side(uops, variables or {})
  folded, places, alike = set(_folded(uops, users)), _addresses(uops, users), _alike(uops)
  found, loops = list[Instruction](), [(1, 1)]
  for u in uops:
    if u.op is Ops.RANGE: loops.append((loops[-1][0] * length(u, variables or {}), side[u]))
    # an element that needs no extraction: used in place, or moved together with its vector
    stays = u.op is Ops.INDEX and all(x in alike and u in alike or x.op is Ops.STACK for x in users.get(u, []))
    if u not in folded and not stays and (kind := pipe(u)) is not None:
      found.append(_instruction(u, kind, *loops[-1], u in places, alike.get(u, 1)))
    if u.op is Ops.END: loops.pop()
  return found

def _instruction(u: UOp, kind: str, trips: int, together: int, address: bool, alike: int) -> Instruction:
  value = u.src[1] if u.op is Ops.STORE else u
  lanes = len(_parts(u)) if u.op is Ops.STACK else 1 if value.dtype is dtypes.void else value.max_numel()
  if u.op is Ops.WMMA: lanes = math.prod(u.arg[0])
  if is_step(u): lanes = TOKENS * TOKENS * DEPTH
  nbytes = lanes * value.dtype.itemsize
  if address or u.op is Ops.END: trips = math.ceil(trips / together)
  elif kind == "shared" and u.op is Ops.LOAD and u.src[0].src[1].op is Ops.RANGE:  # adjacent: loads of 16 bytes
    trips = math.ceil(trips / min(together, max(16 // nbytes, 1)))
  return Instruction(kind, lanes, nbytes, trips, address, alike)

def _parts(stack: UOp) -> set[UOp]:
  """The parts that a vector is built from: scalars, and vectors whose elements it takes."""
  return {s.src[0] if s.op is Ops.INDEX and pipe(s) == "element" else s for s in stack.src}

# *** what compilers do ***

def _folded(uops: Sequence[UOp], users: Mapping[UOp, list[UOp]]) -> Iterator[UOp]:
  """
  UOps that compilers fold into another instruction.

  These are constant offsets of an address, the product of a fused multiply-add, the remainder of a division that is
  done anyway, and one of two bit operations (three-operand logic).
  """
  three, divided = set[UOp](), set[tuple[UOp, ...]]()
  for u in uops:
    by = users.get(u, [])
    if u.op in BITS:
      one = [s for s in u.src if s.op in BITS and s not in three and len(users[s]) == 1][:1]
      three.update([u] if one else [])
      yield from one
    elif u.op in DIVIDE:
      if u.src in divided: yield u
      divided.add(u.src)
    elif u.op is Ops.ADD and dtypes.is_float(u.dtype):
      yield from [s for s in u.src if s.op is Ops.MUL and len(users[s]) == 1][:1]
    elif u.op is Ops.ADD and any(map(is_const, u.src)) and all(x.op in (Ops.INDEX, Ops.SHRINK) for x in by): yield u

def _addresses(uops: Sequence[UOp], users: Mapping[UOp, list[UOp]]) -> set[UOp]:
  """Integers that only serve as addresses, or that need no load: compilers keep them as induction variables."""
  found, counted = set[UOp](), set[UOp]()
  for u in reversed(uops):
    integer = (u.op in GroupOp.ALU or u.op is Ops.CAST) and dtypes.is_int(u.dtype) and u in users
    if integer and all(x in found or x.op in (Ops.INDEX, Ops.SHRINK) and u is not x.src[0] for x in users[u]):
      found.add(u)
  for u in uops:
    made = u.op in GroupOp.ALU or u.op in (Ops.CAST, Ops.STACK)
    given = u.op in (Ops.CONST, Ops.RANGE, Ops.SPECIAL) or u.op is Ops.PARAM and u.addrspace is AddrSpace.ALU
    if given or made and all(s in counted for s in u.src): counted.add(u)
  return found | counted

def _alike(uops: Sequence[UOp]) -> dict[UOp, int]:
  """Scalars computed in the same way from each element of a loaded vector, with the number of these elements."""
  found = dict[UOp, tuple[int, int]]()  # the number of elements, and which one
  for u in uops:
    if u.op is Ops.INDEX and pipe(u) == "element" and is_const(u.src[1]):
      found[u] = u.src[0].max_numel(), int(u.src[1].vmin)
    elif u.op in GroupOp.ALU or u.op in (Ops.CAST, Ops.BITCAST):
      of = {found[s] for s in u.src if s in found}
      if len(of) == 1: found[u] = of.pop()
  return {u: n for u, (n, _) in found.items()}

def side_by_side(uops: Sequence[UOp], variables: Mapping[str, int]) -> dict[UOp, int]:
  """The factor by which compilers unroll each loop."""
  found, loops = dict[UOp, int](), list[tuple[UOp, int, bool]]()  # loop, instructions inside, is innermost
  for u in uops:
    if u.op is Ops.RANGE: loops.append((u, 0, True))
    elif u.op is Ops.END:
      loop, count, innermost = loops.pop()
      found[loop] = _together(loop, length(loop, variables), count) if innermost else 1
      if loops: loops[-1] = loops[-1][0], loops[-1][1] + count, found[loop] > UNROLLED
    elif loops: loops[-1] = loops[-1][0], loops[-1][1] + (pipe(u) is not None), loops[-1][2]
  return found

def _together(loop: UOp, trips: int, count: int) -> int:
  """The unroll factor of an innermost loop. count: instructions of its body."""
  if is_const(loop.src[0]) and trips * count <= MOST: return max(trips, 1)
  return UNROLLED if count <= SHORT else 1

def serial_steps(uops: Sequence[UOp], variables: Mapping[str, int] | None = None) -> int:
  """Iterations of the longest loop nest of a thread; 1 without loops."""
  most, trips = 1, [1]
  for u in uops:
    if u.op is Ops.RANGE:
      trips.append(trips[-1] * length(u, variables or {}))
      most = max(most, trips[-1])
    elif u.op is Ops.END: trips.pop()
  return most
