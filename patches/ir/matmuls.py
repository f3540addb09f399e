"""
The matmul of a kernel: x of several tokens times a matrix that may be packed, or several such matrices by the same x.

Used for thread blocks (tiles/mma_tiles.py) and for tile registers (tiles/amx_tiles.py), which compute tiles of it.
"""
from __future__ import annotations
from dataclasses import dataclass
from tinygrad.codegen.simplify import pm_flatten_range
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import AxisType, Ops, UOp, graph_rewrite
from tinygrad.uop.symbolic import sym
from tinygrad_llm.patches.ir.indices import steps
from tinygrad_llm.patches.ir.sums import product

@dataclass(frozen=True)
class Product:
  """A sum of x times a weight, both floats. loads: the weight's loads, the one of most bytes first."""
  red: UOp
  x: UOp
  w: UOp
  loads: tuple[UOp, ...]

@dataclass(frozen=True)
class Matmul:
  """
  Products over the same loops.

  tokens: the output loops that only x has, the outermost first; the first may be of unknown length.

  rows: the output loops that only the weights have; matrices: the output loops that both have.
  """
  products: tuple[Product, ...]
  tokens: tuple[UOp, ...]
  rows: tuple[UOp, ...]
  loops: tuple[UOp, ...]
  matrices: tuple[UOp, ...]

  @property
  def n_rows(self) -> int: return steps(self.rows)

  @property
  def n_matrices(self) -> int:
    """The largest number of matrices."""
    return steps(self.matrices)

  @property
  def n_tokens(self) -> UOp: return product([r.src[0] for r in self.tokens])

def loads(root: UOp) -> list[UOp]:
  """The loads of values, without the loads that only compute an index."""
  found = [u for u in root.toposort() if u.op is Ops.INDEX]
  places = {v for u in found for v in u.src[1].toposort()}
  return [u for u in found if u not in places]

def _factors(red: UOp) -> list[UOp]:
  """The factors of a summed term, below a cast from another float type."""
  value = red.src[0]
  if value.op is Ops.CAST and dtypes.is_float(value.src[0].dtype): value = value.src[0]
  return list(value.split_uop(Ops.MUL))

def _product(red: UOp, tokens: set[UOp], rows: set[UOp]) -> Product|None:
  xs, ws = list[UOp](), list[UOp]()
  for factor in _factors(red):
    of_tokens, of_rows = tokens.intersection(factor.ranges), rows.intersection(factor.ranges)
    if of_tokens and of_rows: return None
    (ws if of_rows else xs).append(factor)
  if not xs or not ws or not all(dtypes.is_float(f.dtype) for f in (*xs, *ws)): return None
  loops = set(red.src[1:])
  def moved(u: UOp) -> int: return steps(loops.intersection(u.ranges)) * u.dtype.itemsize
  found = sorted((u for f in ws for u in loads(f)), key=moved, reverse=True)
  x, w = (product(factors) for factors in (xs, ws))
  return Product(red, x, w, tuple(found))

def _outputs(sink: UOp) -> list[UOp]:
  """The output loops, the outermost first."""
  found = {r for end in sink.src if end.op is Ops.END for r in UOp.sink(*end.src[1:]).ranges}
  return sorted(found, key=lambda r: r.arg)

def divided(sink: UOp) -> UOp:
  """
  Splits an output loop in two where an index divides it by a constant.

  An example is a loop over the rows of several matrices, divided by the rows of one.
  """
  new = dict[UOp, UOp]()
  divisions = [u for u in sink.toposort() if u.op is Ops.FLOORDIV and u.src[1].op is Ops.CONST]
  for r in _outputs(sink):
    by = {u.src[1].val for u in divisions if u.src[0] is r}
    if len(by) != 1 or (outer := r.src[0].divides(n := int(min(by)))) is None: continue
    sizes = (outer, UOp.const(n))
    parts = [r.replace(src=(length,), arg=(*r.arg[:-1], i, r.arg[-1])) for i, length in enumerate(sizes)]
    new[r] = parts[0] * n + parts[1]
  return graph_rewrite(sink.substitute(new), sym + pm_flatten_range, name="divided loops") if new else sink

def loaded_after(sink: UOp) -> int:
  """The number of loads in an epilogue: loads for each output element outside of its sums."""
  inside = sink.toposort(lambda u: u.op is not Ops.REDUCE)
  return sum(u.op is Ops.INDEX and u.src[0].op is Ops.PARAM for u in inside) - len(sink.src)

def find(sink: UOp) -> Matmul|str:
  """The matmul of a kernel, or why it has none."""
  ops = sink.toposort()
  reds = [u for u in ops if u.op is Ops.REDUCE]
  if not reds or any(red.arg != (Ops.ADD, 0) or red.src[1:] != reds[0].src[1:] for red in reds): return "not one sum"
  if any(set(reds) & red.backward_slice.keys() for red in reds): return "a sum inside of another"
  if any(end.op is not Ops.END or end.src[0].op is not Ops.STORE for end in sink.src): return "not one store"
  if any(end.src[1:] != sink.src[0].src[1:] for end in sink.src): return "stores of different loops"
  loops, outputs = reds[0].src[1:], _outputs(sink)
  if any(r.op is not Ops.RANGE or r.src[0].op is not Ops.CONST or r.arg[-1] is not AxisType.REDUCE for r in loops):
    return "a loop of symbolic length"
  if any(r not in loops and r not in outputs for r in (u for u in ops if u.op is Ops.RANGE)): return "another loop"
  if any(r.arg[-1] not in (AxisType.GLOBAL, AxisType.WEAK) for r in outputs): return "loops that are shared"
  factors = [f for red in reds for f in _factors(red) if f.ranges]
  # the weights are the side with a constant number of rows and fewer bytes, since they are packed
  of = [{r for r in outputs if r in f.ranges} for f in factors]
  both = [r for r in outputs if all(r in found for found in of)]
  alone = list(dict.fromkeys(frozenset(found.difference(both)) for found in of if found.difference(both)))
  if len(alone) != 2: return "not two matrices"
  def packed(rs: frozenset[UOp]) -> tuple[bool, int, int]:
    found = {u for f in factors if rs.intersection(f.ranges) for u in loads(f)}
    nbytes = sum(steps(r for r in loops if r in u.ranges) * u.dtype.itemsize for u in found)
    return all(r.src[0].op is Ops.CONST for r in rs), -nbytes, steps(rs)
  x, w = sorted(alone, key=packed)
  if any(r.src[0].op is not Ops.CONST for r in w): return "a symbolic number of rows"
  tokens, rows = ([r for r in outputs if r in rs] for rs in (x, w))
  if any(r.src[0].op is not Ops.CONST for r in tokens[1:]): return "symbolic token loops inside other loops"
  products = [_product(red, set(tokens), set(rows)) for red in reds]
  if any(p is None or not p.loads for p in products): return "not a product of x and a weight"
  return Matmul(tuple(p for p in products if p is not None), tuple(tokens), tuple(rows), tuple(loops),
                tuple(both))
