"""
Fragments: which elements of two tiles and of their product each thread of a warp holds, with a tensor core or without.

Tile A is tokens x k, tile B is rows x k, and their product C is tokens x rows. A mapping of bits says where an element
is. A logical bit is a bit of its token ("m0" is the lowest), its row ("n0") or its k ("k0"). A physical bit carries it:
a bit of the thread's number in its warp ("l0"), or of the element's number in its thread ("u0", "r0").
"""
from __future__ import annotations
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from tinygrad.codegen.opt.tc import TensorCore
from tinygrad.dtype import DType, dtypes
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, UOp
from tinygrad_llm.patches.ir import sums
from tinygrad_llm.patches.ir.indices import size
from tinygrad_llm.patches.ir.targets import WARP

A, B, C = range(3)
BYTES = 16  # per load

@dataclass(frozen=True)
class Core:
  """
  The product that a warp computes at once.

  - tokens, rows, k: sizes of the tiles
  - dtype: of A and B
  - carriers: for A, B and C, the physical bit of each logical bit
  - elements: for A, B and C, the physical bits of a thread's elements, the lowest first
  - tc: the tensor core's instruction. None: each thread multiplies its elements, one k after another.
  """
  tokens: int
  rows: int
  k: int
  dtype: DType
  carriers: tuple[Mapping[str, str], ...]
  elements: tuple[tuple[str, ...], ...]
  tc: TensorCore|None = None

  def at(self, operand: int, dim: str, physical: Mapping[str, UOp]) -> UOp:
    """Returns the number of an element's token (dim m), row (n) or k (k)."""
    return _add(physical[name] * (1 << int(bit[1:])) for bit, name in self.carriers[operand].items() if bit[0] == dim)

  def own(self, operand: int) -> list[str]:
    """Returns the logical bits of a thread's elements, the lowest first."""
    logical = {name: bit for bit, name in self.carriers[operand].items()}
    return [logical[name] for name in self.elements[operand]]

@dataclass(frozen=True)
class Layout:
  """
  The layout of a block's tile in shared memory. lines: tokens or rows of the block; k: elements of each line.

  A thread's elements for an instruction are contiguous, or for several instructions if these make 16 bytes. The next
  thread's elements follow. The tile's k may have any order that A and B share; it is the order of `bits`.
  """
  core: Core
  operand: int
  lines: int
  k: int

  @property
  def dim(self) -> str: return "mn"[self.operand]

  @property
  def vector(self) -> int:
    """Elements per load."""
    return BYTES // self.core.dtype.itemsize

  @property
  def steps(self) -> int:
    """Instructions whose operands are loaded together, so that the smaller operand of them fills a load."""
    n = max(1, self.vector // min(1 << len(self.core.elements[of]) for of in (A, B)))
    while self.k % (self.core.k * n): n //= 2
    return n

  @property
  def bits(self) -> list[str]:
    """Bits of a k's number, the lowest first: of an element, of the instruction ("s0", ..), of a thread."""
    both = [*self.core.own(A), *self.core.own(B)]
    logical = sorted({bit for bit in self.core.carriers[A] if bit[0] == "k"}, key=lambda bit: (bit not in both, bit))
    own = [bit for bit in logical if bit in both]
    return [*own, *(f"s{i}" for i in range(self.steps.bit_length() - 1)), *logical[len(own):]]

  @property
  def order(self) -> list[str]:
    """Logical bits of an element's place in the operand of `steps` instructions, the lowest first."""
    own, further = self.core.own(self.operand), [bit for bit in self.bits if bit[0] == "s"]
    together = further[:max(0, self.vector.bit_length() - 1 - len(own))]
    # where several threads hold the same elements, some bits of their numbers carry no logical bit
    threads = sorted((name, bit) for bit, name in self.core.carriers[self.operand].items()
                     if name[0] == "l" and bit[0] in (self.dim, "k"))
    return [*own, *together, *(bit for _, bit in threads), *further[len(together):]]

  @property
  def tile(self) -> int: return self.core.tokens if self.operand == A else self.core.rows

  @property
  def together(self) -> int:
    """Lines that a thread writes together: as many as a thread's elements are in."""
    return 1 << sum(bit[0] == self.dim for bit in self.core.own(self.operand))

  def line(self, group: UOp, i: UOp) -> UOp:
    """Returns line i of a group of lines that are written together."""
    for n, bit in enumerate(bit for bit in self.core.own(self.operand) if bit[0] == self.dim):
      step = 1 << int(bit[1:])
      group = group // step * (2 * step) + i // (1 << n) % 2 * step + group % step
    return group

  def _place(self, high: UOp|int, tile: UOp, within: UOp) -> UOp:
    return (high * (self.lines // self.tile) + tile) * (1 << len(self.order)) + within

  def read(self, tile: UOp, k: UOp|int, physical: Mapping[str, UOp]) -> UOp:
    """Returns where a thread's elements are. tile: number of the lines' tile; k: number of the instruction."""
    carriers = self.core.carriers[self.operand]
    step = UOp.const(k) if isinstance(k, int) else k
    within = _add((step // (1 << int(bit[1:])) % 2 if bit[0] == "s" else physical[carriers[bit]]) * (1 << i)
                  for i, bit in enumerate(self.order))
    return self._place(k // self.steps, tile, within)

  def written(self, line: UOp, k: UOp) -> UOp:
    """Returns where an element is, from the numbers of its line and its k."""
    source = {**{f"{self.dim}{i}": (line, i) for i in range(self.tile.bit_length() - 1)},
              **{bit: (k, i) for i, bit in enumerate(self.bits)}}
    within, i = list[UOp](), 0
    while i < len(self.order):  # bits that are neighbours in both numbers are moved together
      (of, low), n = source[self.order[i]], 1
      while i + n < len(self.order) and source[self.order[i + n]] == (of, low + n): n += 1
      within.append(of // (1 << low) % (1 << n) * (1 << i))
      i += n
    return self._place(k // (1 << len(self.bits)), line // self.tile, _add(within))

def physical(core: Core, lane: UOp, unrolled: Callable[[int], UOp]) -> dict[str, UOp]:
  """Returns the physical bits of a thread of a warp: bits of its number, and unrolled loops over its elements."""
  names = sorted({name for of in core.carriers for name in of.values()})
  return {name: lane // (1 << int(name[1:])) % 2 if name[0] == "l" else unrolled(2) for name in names}

def loops(core: Core, n: int, steps: int, loop: Callable[[int, AxisType], UOp]) -> list[UOp]:
  """Returns loops over n of k, `steps` of which are loaded together. [] with a tensor core, which needs no loop."""
  return [] if core.tc is not None else [loop(n // steps, AxisType.REDUCE), loop(steps, AxisType.UNROLL)]

def product(core: Core, device: str, n: int, over: Sequence[UOp], operands: Callable[[UOp|int], Sequence[UOp]],
            physical: Mapping[str, UOp]) -> UOp:
  """
  Returns the product of a thread's elements over n of k.

  over: the loops over k, if there are any; the product is then of one step. operands: A and B for a number of k.
  """
  if core.tc is None: return sums.product(operands(over[0] * size(over[1]) + over[1]))
  return sums.added([_multiplied(core, device, operands(k), physical) for k in range(n // core.k)])

def _multiplied(core: Core, device: str, operands: Sequence[UOp], physical: Mapping[str, UOp]) -> UOp:
  """Returns one instruction's product of a thread's elements."""
  assert core.tc is not None
  axes = [[(physical[name].arg[0], 2) for name in names[::-1]] for names in core.elements]
  of_both = dict.fromkeys(n for n, _ in axes[A] + axes[B])
  full = tuple((*own, *((n, 1) for n in of_both if n not in dict(own))) for own in axes)
  zero = UOp.const((0.0,) * core.tc.elements_per_thread[2], core.tc.dtype_out)
  a, b = operands
  return UOp.wmma(a, b, zero, core.tc.dims, device, core.tc.threads, tc_upcast_axes=full)

def _add(terms: Iterable[UOp|int]) -> UOp: return sums.added(terms, UOp.const(0))

def of_tensor_core(tc: TensorCore) -> Core:
  """Returns the core of a tensor core's instruction, which tinygrad's table describes."""
  counts, physical = {"l": 0, "u": 0}, list[str]()
  for opt in tc.opts:
    physical.append(f"{opt[0]}{counts[opt[0]]}")
    counts[opt[0]] += 1
  of_c, dims = dict[str, str](), {"0": itertools.count(), "1": itertools.count()}
  for opt, name in zip(tc.opts, physical): of_c[name] = f"{'nm'[int(opt[1])]}{next(dims[opt[1]])}"
  def logical(name: str) -> str: return f"k{name[1:]}" if name[0] == "r" else of_c[name]
  carriers = [{logical(bit): name for name, bit in remap.items()} for remap in tc._remaps()]
  in_order = tc.base_upcast_axes()
  elements = [tuple(in_order[:n.bit_length() - 1])[::-1] for n in tc.elements_per_thread]
  return Core(tc.dims[1], tc.dims[0], tc.dims[2], tc.dtype_in, (*carriers, {bit: name for name, bit in of_c.items()}),
              tuple(elements), tc)

def without() -> Core:
  """Returns the core of a warp without tensor cores: 8 x 4 threads, each of which multiplies and adds floats."""
  of_a, of_b = {"m0": "l2", "m1": "l3", "m2": "l4"}, {"n0": "l0", "n1": "l1"}
  return Core(8, 4, 1, dtypes.float32, (of_a, of_b, {**of_a, **of_b}), ((), (), ()))

def core(ren: Renderer) -> Core|None:
  """
  Returns the core of a device: a tensor core of half operands and float sums, else `without`.

  None if the device's threads share no memory.
  """
  if not (ren.has_local and ren.has_shared): return None
  found = [tc for tc in ren.tensor_cores
           if (tc.dtype_in, tc.dtype_out, tc.threads) == (dtypes.half, dtypes.float, WARP)]
  return of_tensor_core(found[0]) if found else without()
