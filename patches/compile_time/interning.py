"""
A node that is already there is found, and a new one is made, in fewer steps of Python.

Why: a node is made, or found in the table of all nodes, 1.5 million times while a model's 23 kernels are scheduled and
  lowered. Each time tinygrad asks a context variable twice, and it makes a node by the initialiser of a dataclass.
How: the table comes first, and a new node's fields are set one by one. A node with metadata or a buffer, and each one
  under SPEC=2 and above, is made by tinygrad.
Numbers: processor seconds to schedule and lower two layers of a 1B Llama in Q4_K_M, a decode step and a prompt at two
  depths each: 0.97 (3 pairs at once on the two threads of one core, AMD EPYC Zen 4).
Upstream: not sent; UOpMetaClass could do so.
"""
from __future__ import annotations
import weakref
from typing import Any
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import SPEC
from tinygrad.uop import ops
from tinygrad.uop.ops import Ops, UOp, UOpMetaClass

SEAMS = {
  "tinygrad.uop.ops:UOpMetaClass": "64121763bf9f",
  "tinygrad.uop.ops:UOp": "e70558d48ab4",
}

_stock, _table, _new, _void = UOpMetaClass.__call__, UOpMetaClass.ucache, object.__new__, dtypes.void

def make(cls: type[UOp], op: Ops, dtype: DType|None = None, src: tuple[UOp, ...] = (), arg: Any = None, tag: Any = None,
         metadata: Any = None, _buffer: Any = None) -> UOp:
  """The one node of these fields."""
  if metadata is not None or _buffer is not None or SPEC.value > 1:
    return _stock(cls, op, dtype, src, arg, tag, metadata, _buffer)  # type: ignore[no-any-return]
  if dtype is None: dtype = ops.dtype_from_uop(op, src, arg) or _void
  known = _table.get(key := (op, dtype, src, arg, tag))
  if known is not None and (found := known()) is not None: return found
  made = _new(cls)
  made.op, made.dtype, made.src, made.arg, made.tag = key
  _table[key] = weakref.ref(made)
  return made

def install() -> None: UOpMetaClass.__call__ = make  # type: ignore[method-assign,assignment]
