"""
Interning: nodes are found and made in fewer steps of Python, and equal nodes are one object for all threads.

Why: a node is made, or found in the table of all nodes, 1.5 million times while a model's 23 kernels are scheduled and
  lowered. Each time tinygrad reads a context variable twice, and it makes a node by the initialiser of a dataclass.
  Equal nodes are one object only while a single thread makes them. Between the look-up of a node and its insertion
  another thread may insert its own. A node that is found while its __del__ runs lives on without a place in the table.
  A captured step then refused its own arguments, once in some dozens of runs of two threads.
How: the table comes first, and a new node's fields are set one by one. An atomic operation inserts it. The callback of
  a dead node's weak reference frees its place. By then nothing can find the node any more, and a place that a new node
  has taken is left alone. Only nodes of buffers have more to clean up. A weak reference does that, too, so no other
  node calls Python for it. Under SPEC=2 and above, tinygrad makes the nodes.
Numbers: processor seconds to schedule and lower a 1B Llama in Q4_K_M (a decode step and a prompt at two depths each)
  are 0.97 of tinygrad's. This is from 3 pairs at once on the two threads of one core, AMD EPYC Zen 4.
Upstream: not sent; UOpMetaClass could do so.
"""
from __future__ import annotations
import weakref
from _weakref import _remove_dead_weakref as remove_dead  # type: ignore[attr-defined]  # as weakref.WeakValueDictionary does
from typing import Any
from tinygrad.dtype import DType, dtypes
from tinygrad.helpers import SPEC
from tinygrad.uop import ops
from tinygrad.uop.ops import Ops, UOp, UOpMetaClass
from tinygrad_llm.patches import places

SEAMS = {
  "tinygrad.uop.ops:UOpMetaClass": "64121763bf9f",
  "tinygrad.uop.ops:UOp": "e70558d48ab4",
}

class Place(weakref.ref[UOp]):
  """The table's weak reference to a node. key: the node's key in the table."""
  __slots__ = ("key",)
  key: tuple[Any, ...]

_stock, _table, _new, _void = UOpMetaClass.__call__, UOpMetaClass.ucache, object.__new__, dtypes.void

def _free(place: Place, table: dict[tuple[Any, ...], Any] = _table, remove: Any = remove_dead) -> None:
  remove(table, place.key)

def make(cls: type[UOp], op: Ops, dtype: DType|None = None, src: tuple[UOp, ...] = (), arg: Any = None, tag: Any = None,
         metadata: Any = None, _buffer: Any = None) -> UOp:
  """The one node with these fields, from the table or new."""
  if dtype is None: dtype = ops.dtype_from_uop(op, src, arg) or _void
  known = _table.get(key := (op, dtype, src, arg, tag))
  if known is not None and (found := known()) is not None: return found
  if SPEC.value > 1: return _checked(cls, key, metadata, _buffer)
  made = _new(cls)
  made.op, made.dtype, made.src, made.arg, made.tag = key
  if (found := _place(made, key)) is not made: return found
  if metadata is not None: ops.all_metadata[made] = metadata
  if _buffer is not None: ops.buffers[made] = _buffer
  return made

def _place(node: UOp, key: tuple[Any, ...]) -> UOp:
  """
  Inserts a node into the table; returns the node that has the place: this one, or an equal one of a faster thread.
  """
  place = Place(node, _free)
  place.key = key
  while (holder := _table.setdefault(key, place)) is not place:
    if (found := holder()) is not None: return found
    remove_dead(_table, key)
  return node

def _checked(cls: type[UOp], key: tuple[Any, ...], metadata: Any, _buffer: Any) -> UOp:
  """Makes a node by tinygrad's own function, which also checks it."""
  made: UOp = _stock(cls, *key, metadata, _buffer)  # type: ignore[call-arg]
  del _table[key]
  return _place(made, key)

class Buffers(weakref.WeakKeyDictionary):
  """{node: buffer}. counts: {weak reference to a node: the buffer that loses a reference when the node ends}."""
  counts: dict[weakref.ref[UOp], Any] = {}
  def __setitem__(self, node: UOp, buffer: Any) -> None:
    super().__setitem__(node, buffer)
    if node.op is Ops.BUFFER: self.counts[weakref.ref(node, _uncount)] = buffer

def _uncount(ended: weakref.ref[UOp], counts: dict[weakref.ref[UOp], Any] = Buffers.counts) -> None:
  if (buffer := counts.pop(ended, None)) is not None: buffer.ref(-1)

def install() -> None:
  places.replace(UOpMetaClass, "__call__", make)
  ops.buffers.__class__ = Buffers  # jit.py and others hold this very object
  for held, buffer in list(ops.buffers.items()): ops.buffers[held] = buffer
  del UOp.__del__
  for key, reference in list(_table.items()):
    if (node := reference()) is not None:
      del _table[key]
      _place(node, key)
