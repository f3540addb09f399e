"""
What the threads of a kernel execute, read off its linear program: instructions, by the pipe of a processor that takes
them, and the steps of its loops.
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

UNROLLED = 8  # steps of a short loop that compilers put side by side
SHORT = 64    # instructions of such a loop
MOST = 2048   # of a loop of known length that is unrolled whole

SFU = (Ops.EXP2, Ops.LOG2, Ops.SIN, Ops.SQRT, Ops.RECIPROCAL, Ops.FDIV)
DIVIDE = (Ops.FLOORDIV, Ops.FLOORMOD, Ops.CDIV, Ops.CMOD)
BITS = (Ops.AND, Ops.OR, Ops.XOR)

@dataclass(frozen=True)
class Instruction:
  """
  pipe: int, float, half (from or to it), convert, divide (integers), sfu, dot (of bytes), tensor, load, store, shared,
  shuffle, barrier, branch, element (of a vector: taken out, or put in). lanes: numbers of a vector that it takes, or
  products that a warp's matrix instruction adds up; nbytes: of them. trips: how often a thread does it. address: if it
  only says where something is. alike: of how many, one for each element of a vector, a compiler makes a single one.
  """
  pipe: str
  lanes: int
  nbytes: int
  trips: int
  address: bool = False
  alike: int = 1

def pipe(u: UOp) -> str|None:
  """The pipe that executes a UOp, None for one that is no instruction."""
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
  """Those of a thread, in order. Of steps that are put side by side, addresses and the loop itself count once."""
  users, side = users_of(uops), side_by_side(uops, variables or {})
  folded, places, alike = set(_folded(uops, users)), _addresses(uops, users), _alike(uops)
  found, loops = list[Instruction](), [(1, 1)]
  for u in uops:
    if u.op is Ops.RANGE: loops.append((loops[-1][0] * length(u, variables or {}), side[u]))
    # an element that is used where it is, or moves together with others of its vector
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
  elif kind == "shared" and u.op is Ops.LOAD and u.src[0].src[1].op is Ops.RANGE:  # neighbours: loads of 16 bytes
    trips = math.ceil(trips / min(together, max(16 // nbytes, 1)))
  return Instruction(kind, lanes, nbytes, trips, address, alike)

def _parts(stack: UOp) -> set[UOp]:
  """What a vector is put together of: other vectors, of which elements are taken, and scalars."""
  return {s.src[0] if s.op is Ops.INDEX and pipe(s) == "element" else s for s in stack.src}

# *** what compilers do ***

def _folded(uops: Sequence[UOp], users: Mapping[UOp, list[UOp]]) -> Iterator[UOp]:
  """
  What is a part of another instruction: a constant that is added to a place, a product that is added to something,
  once, the rest of a division that is made anyway, one of two operations on bits.
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
  """Integers that only say where something is, and those that no memory holds: compilers count them along."""
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
  """Scalars that are computed of each element of a loaded vector in the same way: how many there are."""
  found = dict[UOp, tuple[int, int]]()  # elements, and which
  for u in uops:
    if u.op is Ops.INDEX and pipe(u) == "element" and is_const(u.src[1]):
      found[u] = u.src[0].max_numel(), int(u.src[1].vmin)
    elif u.op in GroupOp.ALU or u.op in (Ops.CAST, Ops.BITCAST):
      of = {found[s] for s in u.src if s in found}
      if len(of) == 1: found[u] = of.pop()
  return {u: n for u, (n, _) in found.items()}

def side_by_side(uops: Sequence[UOp], variables: Mapping[str, int]) -> dict[UOp, int]:
  """How many steps of each loop compilers put side by side."""
  found, loops = dict[UOp, int](), list[tuple[UOp, int, bool]]()  # a loop, the instructions inside, whether no loop is
  for u in uops:
    if u.op is Ops.RANGE: loops.append((u, 0, True))
    elif u.op is Ops.END:
      loop, count, innermost = loops.pop()
      found[loop] = _together(loop, length(loop, variables), count) if innermost else 1
      if loops: loops[-1] = loops[-1][0], loops[-1][1] + count, found[loop] > UNROLLED
    elif loops: loops[-1] = loops[-1][0], loops[-1][1] + (pipe(u) is not None), loops[-1][2]
  return found

def _together(loop: UOp, trips: int, count: int) -> int:
  """Of a loop without others inside, by the instructions of its body."""
  if is_const(loop.src[0]) and trips * count <= MOST: return max(trips, 1)
  return UNROLLED if count <= SHORT else 1

def serial_steps(uops: Sequence[UOp], variables: Mapping[str, int] | None = None) -> int:
  """Steps of the longest nest of loops that a thread goes through one after another; 1 without any."""
  most, trips = 1, [1]
  for u in uops:
    if u.op is Ops.RANGE:
      trips.append(trips[-1] * length(u, variables or {}))
      most = max(most, trips[-1])
    elif u.op is Ops.END: trips.pop()
  return most
