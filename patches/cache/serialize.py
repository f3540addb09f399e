"""
UOps as bytes that are read fast and from a file: a flat list, sources before users, without recursion.

Reading makes UOps, tinygrad's dataclasses and enumerations, its dtypes and constants, and plain values; no functions,
no buffers.
"""
from __future__ import annotations
import dataclasses, enum, importlib, io, pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from tinygrad.dtype import ConstFloat, DType, InvalidType
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir.actions import ScheduleOps

_LEAF = "leaf"

def dump(roots: Sequence[UOp], leaf: Callable[[UOp], Any] = lambda u: None) -> bytes:
  """
  The bytes of the graphs below `roots`. leaf: returns plain values that stand for a UOp in the bytes; None for most
  UOps.

  ValueError if an argument holds something that load() would not make.
  """
  order: dict[UOp, int] = {}
  for root in roots: _collect(root, order)
  stream = io.BytesIO()
  pickler = _Pickler(stream, order)
  pickler.dump((len(order), tuple(order[root] for root in roots)))
  for u in order:
    if (token := leaf(u)) is not None: pickler.dump((_LEAF, token))
    else: pickler.dump((u.op.value, u.dtype, tuple(order[s] for s in u.src), u.arg, u.tag))
  return stream.getvalue()

def load(data: bytes, leaf: Callable[[Any], UOp] | None = None) -> list[UOp]:
  """
  The roots in dumped bytes. leaf: makes a UOp of the values that dump's `leaf` put in its place. Any exception means
  that the bytes are damaged or foreign.
  """
  nodes: list[UOp] = []
  read = _Unpickler(io.BytesIO(data), nodes).load
  count, roots = read()
  for _ in range(count):
    row = read()
    if row[0] == _LEAF:
      assert leaf is not None
      nodes.append(leaf(row[1]))
    else:
      op, dtype, src, arg, tag = row
      nodes.append(UOp(_OPS[op], dtype, tuple([nodes[i] for i in src]), arg, tag))
  return [nodes[i] for i in roots]

_OPS = {op.value: op for op in Ops}

def _collect(root: UOp, order: dict[UOp, int]) -> None:
  for u in root.toposort(gate=lambda u: u not in order):
    if u in order: continue
    for inner in _inner(u.arg): _collect(inner, order)
    order[u] = len(order)

def _inner(arg: Any) -> Iterator[UOp]:
  """The UOps inside an argument."""
  if isinstance(arg, UOp): yield arg
  elif isinstance(arg, tuple):
    for x in arg: yield from _inner(x)
  elif dataclasses.is_dataclass(arg) and not isinstance(arg, DType):
    for field in dataclasses.fields(arg): yield from _inner(getattr(arg, field.name))

def allowed(cls: Any) -> bool:
  """Whether load() may make objects of a class."""
  if cls is ScheduleOps: return True
  if not isinstance(cls, type) or not cls.__module__.startswith("tinygrad."): return False
  return cls in (ConstFloat, InvalidType) or dataclasses.is_dataclass(cls) or issubclass(cls, enum.Enum)

class _Pickler(pickle.Pickler):
  def __init__(self, stream: io.BytesIO, order: dict[UOp, int]):
    super().__init__(stream, protocol=5)
    self.order = order

  def persistent_id(self, obj: Any) -> int | None: return self.order[obj] if isinstance(obj, UOp) else None

  def reducer_override(self, obj: Any) -> Any:
    if not allowed(obj if isinstance(obj, type) else type(obj)): raise ValueError(f"{type(obj)} is not written")
    # Python before 3.11.4 pickles an enum member as getattr and a name
    return (type(obj), (obj.value,)) if isinstance(obj, enum.Enum) else NotImplemented

class _Unpickler(pickle.Unpickler):
  def __init__(self, stream: io.BytesIO, nodes: list[UOp]):
    super().__init__(stream)
    self.nodes = nodes

  def persistent_load(self, pid: int) -> UOp: return self.nodes[pid]

  def find_class(self, module: str, name: str) -> Any:
    known = module.startswith("tinygrad.") or (module, name) == (ScheduleOps.__module__, ScheduleOps.__name__)
    cls = getattr(importlib.import_module(module), name) if known else None
    if not allowed(cls): raise pickle.UnpicklingError(f"{module}.{name} is not read")
    return cls
