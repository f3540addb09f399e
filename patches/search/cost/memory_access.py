"""
A kernel's memory accesses, read off its linear program. For each load and store: its width, how often a thread executes
it, and the cache lines and sectors that a warp touches together.
"""
from __future__ import annotations
import math, operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
import numpy as np
from tinygrad.dtype import AddrSpace
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.banks import wavefronts
from tinygrad_llm.patches.ir.indices import usual_length

WARP = 32
LINE, SECTOR = 128, 32  # bytes of a GPU's cache line, and of the least that caches move

@dataclass(frozen=True)
class Access:
  """
  A load from an argument or a store to it.

  - width: bytes per thread.
  - trips: how often a thread executes it.
  - first: byte offset of the first thread's first access.
  - lines, sectors: cache lines and sectors that a warp's request touches, on average.
  - wanted: distinct bytes that a warp's request needs, on average.
  """
  slot: int
  store: bool
  width: int
  trips: int
  first: int
  lines: float
  sectors: float
  wanted: float

  @property
  def useful(self) -> float:
    """The share of the touched sectors' bytes that the warp needs."""
    return self.wanted / (self.sectors * SECTOR)

# *** indices ***

BINARY: dict[Ops, Any] = {
  Ops.ADD: operator.add, Ops.MUL: operator.mul, Ops.SUB: operator.sub, Ops.SHL: operator.lshift,
  Ops.SHR: operator.rshift, Ops.AND: operator.and_, Ops.OR: operator.or_, Ops.XOR: operator.xor,
  Ops.CMPLT: operator.lt, Ops.CMPNE: operator.ne, Ops.CMPEQ: operator.eq, Ops.MAX: np.maximum,
  Ops.FLOORDIV: operator.floordiv, Ops.FLOORMOD: operator.mod, Ops.CDIV: operator.floordiv, Ops.CMOD: operator.mod}
Values = dict[UOp, Any]

def values(u: UOp, known: Values) -> Any:
  """
  The value of an index expression for all threads and steps at once, by broadcasting. Its terms are added to `known`.

  A loaded number counts as its own index, a float as 0, and a variable without a value as its minimum.
  """
  if u in known: return known[u]
  if u.op is Ops.CONST: found = np.int64(u.val)
  elif u.op is Ops.LOAD: found = values(u.src[0].src[1], known) if len(u.src[0].src) > 1 else np.int64(0)
  elif u.op in (Ops.PARAM, Ops.RANGE, Ops.SPECIAL): found = np.int64(u.vmin)
  elif u.op is Ops.INDEX: found = values(u.src[0], known) + values(u.src[1], known)  # an element of a loaded vector
  elif u.op in (Ops.CAST, Ops.AFTER): found = values(u.src[0], known)
  elif u.op is Ops.NEG: found = -values(u.src[0], known)
  elif u.op is Ops.WHERE: found = np.where(*[values(s, known) for s in u.src])
  elif u.op is Ops.MULACC: found = values(u.src[0], known) * values(u.src[1], known) + values(u.src[2], known)
  elif u.op in BINARY: found = BINARY[u.op](*[values(s, known) for s in u.src])
  else: found = np.int64(0)
  known[u] = found
  return found

def number(u: UOp, variables: Mapping[str, int]) -> int:
  """The value of a size expression, such as a loop's or a grid's."""
  known: Values = {x: np.int64(variables[x.arg.name]) for x in u.toposort()
                   if x.op is Ops.PARAM and getattr(x.arg, "name", None) in variables}
  return int(values(u, known))

def length(loop: UOp, variables: Mapping[str, int]) -> int:
  """The iterations of a loop, as usual_length() counts them."""
  return max(number(usual_length(loop), variables), 0)

def argument(u: UOp) -> UOp|None:
  """The kernel's argument that a load or store addresses; None for the kernel's own memory."""
  while u.op is not Ops.PARAM and u.src: u = u.src[0]
  return u if u.op is Ops.PARAM and u.addrspace is AddrSpace.GLOBAL else None

# *** threads ***

def local_size(uops: Sequence[UOp], variables: Mapping[str, int]) -> int:
  """Threads of a block."""
  return math.prod(number(u.src[0], variables) for u in uops if u.op is Ops.SPECIAL and u.arg.startswith("lidx"))

def _threads(uops: Sequence[UOp], variables: Mapping[str, int]) -> Values:
  """SPECIALs -> their values for each thread of a block, (threads, 1), in the hardware's order of threads."""
  known, step, group = Values(), 1, local_size(uops, variables)
  for u in sorted((u for u in uops if u.op is Ops.SPECIAL), key=lambda u: u.arg):
    size = number(u.src[0], variables)
    if u.arg.startswith("lidx"):
      known[u] = np.arange(group)[:, None] // step % size
      step *= size
    else: known[u] = np.int64((size - 1) // 2)  # a block in the middle
  for u in uops:
    if u.op is Ops.PARAM and u.addrspace is AddrSpace.ALU: known[u] = np.int64(variables.get(u.arg.name, u.vmin))
  return known

def _distinct(places: np.ndarray) -> np.ndarray:
  """The number of distinct values in each column of (threads, steps)."""
  places = np.sort(places, axis=0)
  found: np.ndarray = 1 + np.count_nonzero(np.diff(places, axis=0), axis=0)
  return found

def _spans(at: np.ndarray, width: int, unit: int) -> float:
  """Units of memory that a request touches, on average: each thread reads `width` bytes at offset `at`."""
  first = at // unit
  last = (at + width - 1) // unit
  if (first == last).all(): return float(_distinct(first).mean())
  between = [first + i for i in range(int((last - first).max()) + 1)]
  return float(_distinct(np.concatenate([np.minimum(x, last) for x in between])).mean())

# a load or a store, bytes per thread, trips, byte offsets (threads, steps)
Request = tuple[UOp, int, int, np.ndarray]

def _requests(uops: Sequence[UOp], variables: Mapping[str, int], wanted: Callable[[UOp], bool], samples: int, warps: int
              ) -> Iterator[Request]:
  """Loads and stores that are `wanted`. samples: steps of the loops around, warps: warps of a block, that are tried."""
  loops, sizes, threads = list[UOp](), list[int](), _threads(uops, variables)
  group = min(local_size(uops, variables), warps * WARP)
  threads = {u: v[:group] if np.ndim(v) else v for u, v in threads.items()}
  of_loops: dict[tuple[UOp, ...], Values] = {}
  for u in uops:
    if u.op is Ops.RANGE:
      loops.append(u)
      sizes.append(length(u, variables))
    elif u.op is Ops.END:
      loops.pop()
      sizes.pop()
    elif u.op in (Ops.LOAD, Ops.STORE) and len(u.src[0].src) > 1 and wanted(u):
      trips, index, item = math.prod(sizes), u.src[0].src[1], u.src[0].dtype.itemsize
      if (key := tuple(loops)) not in of_loops:
        steps = np.unique(np.linspace(0, max(trips - 1, 0), min(max(trips, 1), samples)).astype(np.int64))
        of_loops[key], inner = dict(threads), 1
        for r, size in zip(reversed(loops), reversed(sizes)):
          of_loops[key][r] = steps[None] // inner % max(size, 1)
          inner *= max(size, 1)
      known = of_loops[key]
      width = (u if u.op is Ops.LOAD else u.src[1]).max_numel() * item
      shape = np.broadcast_shapes((group, 1), *(np.shape(known[r]) for r in loops))
      yield u, width, trips, np.broadcast_to(values(index, known), shape) * item

def accesses(uops: Sequence[UOp], variables: Mapping[str, int] | None = None, samples: int = 16, warps: int = 4
             ) -> list[Access]:
  """
  All loads from arguments and stores to them.

  variables: values of the kernel's variables. Indices are computed at `samples` steps of the loops around an access,
  for `warps` warps of a block.
  """
  found = list[Access]()
  for u, width, trips, at in _requests(uops, variables or {}, lambda u: argument(u) is not None, samples, warps):
    warp = [at[first:first + WARP] for first in range(0, len(at), WARP)]
    lines, sectors = (sum(_spans(part, width, unit) for part in warp) / len(warp) for unit in (LINE, SECTOR))
    wanted = width * sum(float(_distinct(part).mean()) for part in warp) / len(warp)
    slot = argument(u).arg.slot  # type: ignore[union-attr]
    found.append(Access(slot, u.op is Ops.STORE, width, trips, int(at.flat[0]), lines, sectors, wanted))
  return found

def further_passes(uops: Sequence[UOp], variables: Mapping[str, int] | None = None) -> int:
  """Passes of shared memory that the first warp's requests take beyond one each: wide accesses, bank conflicts."""
  def is_shared(u: UOp) -> bool: return u.src[0].addrspace is AddrSpace.LOCAL
  return sum(trips * (wavefronts(at[:, 0].tolist(), width) - 1)
             for _, width, trips, at in _requests(uops, variables or {}, is_shared, 1, 1))
