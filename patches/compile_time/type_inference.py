"""
Type inference: a node's dtype and shape are taken from its sources, without a match over all operations.

Why: tinygrad finds them by a match over some sixty operations, one comparison each; arithmetic, which most nodes are,
  comes last. It computes a property of a node over the topologically sorted graph, although the sources have theirs.
  Each look-up of a property is a call of Python.
How: arithmetic whose sources agree has their dtype and shape, a load has its source's, a constant has the shape (). All
  other operations, and sources that differ, go to tinygrad's functions. A property is computed from the sources'
  properties and then is an attribute. A node shares the dict of loops of a source that is in all of its loops.
  A SHRINK has the shape of its size unless the bounds of its offset show that it leaves its source. For the same answer
  tinygrad simplifies the whole offset, which in a kernel is an index with all loops. Under SPEC=2 tinygrad does it.
  A constant is rounded to its type once.
Numbers: CPU seconds to the first token of the bundled model, caches empty, PARALLEL=0: 19.7 -> 17.4 (2-core AMD EPYC),
  with implicit_inputs on. SHRINK: seconds in _shape, two layers of a 1B Llama in Q4_K_M as in graph_rewrite's numbers,
  1.9 -> 0.3 of 25.
Upstream: not sent; two tables by operation would do in tinygrad.
"""
from __future__ import annotations
import functools
from collections.abc import Callable
from typing import Any
from tinygrad.dtype import AddrSpace, ConstFloat, DType, dtypes
from tinygrad.helpers import SPEC
from tinygrad.uop import ops, weak
from tinygrad.uop.ops import GroupOp, Ops, UOp, recursive_property, sint
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.dtype:DType": "989c3a73cb16",
  "tinygrad.dtype:ConstFloat": "cd94e860a545",
  "tinygrad.uop.ops:dtype_from_uop": "1ee1a4803d30",
  "tinygrad.uop.ops:promo_dtype": "4d0e830cc2eb",
  "tinygrad.uop.ops:recursive_property": "900fc653014f",
  "tinygrad.uop.ops:UOp._shape": "2a304e2c72d9",
  "tinygrad.uop.ops:UOp.shape": "d00a1efe2c3f",
  "tinygrad.uop.ops:UOp._ranges": "9e10c024c35b",
  "tinygrad.uop.ops:UOp.ranges": "eb260da81768",
  "tinygrad.uop.ops:UOp.ended_ranges": "8dfb6b2636bb",
  "tinygrad.uop.ops:UOp.addrspace": "cead1306ecaf",
}

COMPARISONS = frozenset(GroupOp.Comparison)
ARITHMETIC = frozenset(GroupOp.Binary - GroupOp.Comparison - {Ops.SHL, Ops.SHR} | {Ops.MULACC})
OF_FIRST = frozenset(GroupOp.Movement | {
  Ops.LOAD, Ops.REDUCE, Ops.AFTER, Ops.RANGE, Ops.STAGE, Ops.SPECIAL, Ops.CONTIGUOUS})
CASTS = frozenset({Ops.CAST, Ops.BITCAST})
NO_VALUE = frozenset({Ops.STORE, Ops.END, Ops.SINK, Ops.GROUP})

_stock_dtype = ops.dtype_from_uop
_stock_shape: Callable[[UOp], tuple[sint, ...]|None] = UOp.__dict__["_shape"].fxn
_stock_ranges: Callable[[UOp], dict[UOp, None]] = UOp.__dict__["_ranges"].fxn
_stock_addrspace: Callable[[UOp], AddrSpace|None] = UOp.__dict__["addrspace"].fxn

def dtype_from_uop(op: Ops, src: tuple[UOp, ...], arg: Any) -> DType|None:
  """The dtype of an operation; None if its caller has to give it."""
  if op in ARITHMETIC:
    first = src[0].dtype
    for x in src:
      if x.dtype is not first: return _stock_dtype(op, src, arg)
    return first
  if op in OF_FIRST: return src[0].dtype
  if op in CASTS and isinstance(arg, DType): return arg
  if op in COMPARISONS: return dtypes.bool
  if op in NO_VALUE: return dtypes.void
  return _stock_dtype(op, src, arg)

ELEMENTWISE = frozenset(GroupOp.Broadcastable)
SHAPE_OF_FIRST = frozenset({Ops.LOAD, Ops.STORE, Ops.AFTER, Ops.END, Ops.CONTIGUOUS, Ops.CAST} | GroupOp.Unary)
TOGETHER = frozenset(GroupOp.Elementwise | {Ops.STACK, Ops.WMMA, Ops.GROUP})
SCALARS = frozenset({Ops.CONST, Ops.RANGE, Ops.SPECIAL})

def _shape(node: UOp) -> tuple[sint, ...]|None:
  """The shape of a node; None if it has none."""
  if (op := node.op) in ELEMENTWISE:
    if (first := node.src[0]._shape) is None: return _stock_shape(node)
    for x in node.src:
      if (shape := x._shape) is not first and shape != first: return _stock_shape(node)
    return first  # type: ignore[no-any-return]
  if op in SCALARS: return ()
  if op is Ops.SHRINK: return _shrunk(*node.src) or _stock_shape(node)
  return node.src[0]._shape if op in SHAPE_OF_FIRST else _stock_shape(node)  # type: ignore[no-any-return]

def _shrunk(source: UOp, offset: UOp, size: UOp) -> tuple[sint, ...]|None:
  """The shape of a SHRINK of constant size; None if it is not known to fit, so that tinygrad has to decide."""
  starts, sizes = (x.src if x.op is Ops.STACK else (x,) for x in (offset, size))
  if SPEC.value > 1 or (whole := source._shape) is None or not len(whole) == len(starts) == len(sizes): return None
  for n, start, length in zip(whole, starts, sizes):
    if not isinstance(n, int) or not 0 <= length.vmin == length.vmax: return None
    if start.vmax < 0 or start.vmin + length.vmax > n: return None
  return tuple(int(length.vmax) for length in sizes)

def _ranges(node: UOp) -> dict[UOp, None]:
  """
  The loops that a node is in: its sources' loops without those that it ends. A source in all of them shares its dict.
  """
  found: dict[UOp, None] = {}
  for x in node.src:
    if not (loops := x.ranges) or loops is found or loops.keys() <= found.keys(): continue
    found = {**found, **loops} if found else loops
  if not (ended := node.ended_ranges): return found
  left = found.copy()
  for x in ended:
    for r in (x,) if x.op is Ops.RANGE else x.ranges: left.pop(r, None)
  return left

def _addrspace(node: UOp) -> AddrSpace|None:
  """A node's address space; None if it has none. Arithmetic is where its sources are; None if they differ."""
  if node.op not in TOGETHER: return _stock_addrspace(node)
  found = None
  for x in node.src:
    if (space := x.addrspace) is None or space is found: continue
    if found is not None: return None
    found = space
  return found

INTEGERS = frozenset((*dtypes.ints, dtypes.weakint))
_stock_const = DType.const
_of_float = functools.lru_cache(4096)(_stock_const)

def const(self: DType, val: Any) -> Any:
  """A number as a constant of the type. A ConstFloat's hash tells 0.0 from -0.0; another float's does not."""
  kind = type(val)
  if kind is int and self in INTEGERS: return val
  return _of_float(self, val) if kind is ConstFloat or kind is float and val else _stock_const(self, val)

class Known:
  """
  A property of a node, computed from its sources' properties, which are computed first. It then is the node's
  attribute: this is no data descriptor, so a second look-up calls nothing.
  """
  def __init__(self, find: Callable[[UOp], Any], name: str):
    self.find, self.name, self.__doc__ = find, name, find.__doc__

  def __get__(self, node: UOp|None, owner: Any = None) -> Any:
    if node is None: return self
    name, find, todo = self.name, self.find, list[UOp|None]((node,))
    while todo:
      if (n := todo.pop()) is None:
        n = todo.pop()
        n.__dict__[name] = find(n)  # type: ignore[union-attr, arg-type]
      elif name not in n.__dict__:
        todo += (n, None)
        todo += n.src
    return node.__dict__[name]

class Kept:
  """A property made of a known one and kept like it, but not on a RANGE: a node that holds itself is never freed."""
  def __init__(self, find: property):
    assert find.fget is not None
    self.find, self.name, self.__doc__ = find.fget, find.fget.__name__, find.__doc__

  def __get__(self, node: UOp|None, owner: Any = None) -> Any:
    if node is None: return self
    found = self.find(node)
    if node.op is not Ops.RANGE: node.__dict__[self.name] = found
    return found

OWN = {"_shape": _shape, "_ranges": _ranges, "addrspace": _addrspace}

def install() -> None:
  places.replace(DType, "const", const)
  for module in (ops, weak): places.replace(module, "dtype_from_uop", dtype_from_uop)
  for name, value in list(vars(UOp).items()):
    if isinstance(value, recursive_property): places.replace(UOp, name, Known(OWN.get(name, value.fxn), name))
  for name in ("shape", "ranges"): places.replace(UOp, name, Kept(vars(UOp)[name]))
