"""
Captured TinyJits on disk: a start replays what an earlier process traced, scheduled and compiled.

Why: with every program on disk, tracing and scheduling a model of 16 layers in Python still took 13 s of a start.
How: a TinyJit of a functools.partial of a module's function reads its bound arguments, its inputs and nothing else.
  Before such a jit captures, its linear (the schedule) is looked up on disk; afterwards it is stored there.
  The key holds a hash of the code: of the packages of the function and of every object found in the arguments, of the
  patches, and tinygrad's version. It also holds what kernels depend on (disk_cache.surroundings_of_step), the views of
  the inputs, and the bound arguments down to the last number. A tensor is described by shape, type, device and place,
  not by contents.
  In an entry, a buffer of the arguments is its place among them, an intermediate buffer its size. Two things cannot be
  described so: an object of unknown make, and a buffer with contents that is not among the arguments. A jit with one of
  them is not kept; it captures as before.
  The pass comes after those that change kernels, to keep what they made. restore() does the same ahead of a jit's first
  call, and runs nothing.
Numbers: docs/performance.md, First start; `make start`.
Upstream: not sent; tinygrad pickles a captured jit with the contents of its buffers, for another purpose.
"""
from __future__ import annotations
import dataclasses, enum, functools, hashlib, importlib, pathlib, sys, types
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any
import numpy as np
from tinygrad import Device, Tensor
from tinygrad.dtype import AddrSpace, DType
from tinygrad.engine import jit
from tinygrad.engine.jit import CapturedJit, _TinyJit
from tinygrad.engine.realize import get_graph_runtime, get_runtime
from tinygrad.helpers import BEAM, IGNORE_BEAM_CACHE, JIT, JIT_BATCH_SIZE, VALIDATE_WITH_CPU, all_int, getenv, to_tuple
from tinygrad.uop.ops import Ops, UOp, buffers
from tinygrad_llm.patches import is_on, places
from tinygrad_llm.patches.cache import disk_cache, programs, serialize
from tinygrad_llm.patches.host.process_lock import lock

SEAMS = {
  "tinygrad.engine.jit:_TinyJit": "87ce13451fb5",
  "tinygrad.engine.jit:CapturedJit": "1aff72163bdb",
  "tinygrad.engine.jit:jit_lower": "3206ddd1ed56",
  "tinygrad.engine.realize:get_graph_runtime": "876e20ebc5d3",
  "tinygrad.engine.jit:_prepare_jit_inputs": "cb52af817f46",
  "tinygrad.uop.ops:UOp.new_buffer": "ab23e7926921",
}

STORE = disk_cache.Store("captures")
_call, _jit_lower = _TinyJit.__call__, jit.jit_lower
# what the running capture has lowered and not run yet: (the linear, its buffers without contents)
_lowered: ContextVar[list[tuple[UOp, set[UOp]]]|None] = ContextVar("what a capture lowered", default=None)

class Unknown(Exception):
  """A value that a key cannot describe."""

class Description:
  """
  Values as text, the same in each process that has the same values.

  buffers: the tensors' buffers, in the order of their first mention. packages: the packages that hold the values' code.
  """
  def __init__(self) -> None:
    self.buffers: dict[UOp, int] = {}
    self.packages: set[str] = {"tinygrad"}
    self._seen: dict[int, int] = {}
    self._alive: list[Any] = []  # an id belongs to one object only as long as the object lives

  def text(self, x: Any) -> str:
    if x is None or isinstance(x, (bool, int, float, str, bytes, DType)): return f"{type(x).__name__} {x!r}"
    if isinstance(x, (tuple, list)): return f"{type(x).__name__}({', '.join(map(self.text, x))})"
    if isinstance(x, dict): return f"dict({', '.join(f'{self.text(k)}: {self.text(v)}' for k, v in x.items())})"
    if isinstance(x, (set, frozenset)): return f"set({', '.join(sorted(map(self.text, x)))})"
    if isinstance(x, (np.ndarray, np.generic)): return f"{x.dtype} {x.shape} {hashlib.sha256(x.tobytes()).hexdigest()}"
    if isinstance(x, UOp): return self.uop(x)
    if id(x) in self._seen: return f"again {self._seen[id(x)]}"
    self._seen[id(x)] = len(self._seen)
    self._alive.append(x)
    if isinstance(x, Tensor): return f"Tensor {self.uop(x.uop)}"
    if isinstance(x, enum.Enum): return f"{self.name(type(x))} {x.name}"
    if isinstance(x, functools.partial): return f"partial({self.text((x.func, x.args, x.keywords))})"
    if isinstance(x, (types.FunctionType, type)): return self.code(x)
    if isinstance(x, types.MethodType): return f"method({self.text((x.__func__, x.__self__))})"
    if dataclasses.is_dataclass(x): fields = {f.name: getattr(x, f.name) for f in dataclasses.fields(x)}
    elif hasattr(x, "__dict__") and _is_plain(type(x)): fields = vars(x)
    else: raise Unknown(f"{type(x)}")
    return f"{self.name(type(x))}({self.text(fields)})"

  def uop(self, u: UOp) -> str:
    if (place := self._place(u)) is not None: return f"buffer {place}"
    if u.op is Ops.RESHAPE and u.tag is None and all_int(shape := u.shape): return f"{shape} of {self.uop(u.src[0])}"
    return hashlib.sha256(serialize.dump([u], self._place)).hexdigest()

  def code(self, x: types.FunctionType | type) -> str:
    """
    A class or a function of a module, by name; another function also by its first line, bytecode and the values it
    holds.
    """
    if isinstance(x, type) or _find(x.__module__, x.__qualname__) is x: return self.name(x)
    cells = [cell.cell_contents for cell in x.__closure__ or ()]
    return f"{self.name(x)} {x.__code__.co_firstlineno} {x.__code__.co_code!r} {self.text((cells, x.__defaults__))}"

  def name(self, x: Any) -> str:
    self.packages.add(x.__module__.split(".")[0])
    return f"{x.__module__}.{x.__qualname__}"

  def _place(self, u: UOp) -> Any:
    if not _is_buffer(u): return None
    return self.buffers.setdefault(u, len(self.buffers)), _layout(u)

def _is_plain(cls: type) -> bool:
  """Whether objects of a class consist of their attributes alone."""
  return cls.__new__ is object.__new__ and not any("__slots__" in vars(base) for base in cls.__mro__)

def _is_buffer(u: UOp) -> bool: return u.op is Ops.BUFFER and u.addrspace is AddrSpace.GLOBAL
def _layout(u: UOp) -> tuple: return u.device, u.max_numel(), u.dtype

def _find(module: str, name: str) -> Any:
  try: return functools.reduce(getattr, name.split("."), importlib.import_module(module))
  except (ImportError, AttributeError): return None

@functools.cache
def source(package: str) -> str:
  """
  A hash of a package's code; for tinygrad and the standard library just the name, as the key holds their versions.
  """
  if package == "tinygrad" or package in sys.stdlib_module_names and package != "__main__": return package
  if (file := getattr(sys.modules.get(package), "__file__", None)) is None: raise Unknown(package)
  path = pathlib.Path(file)
  files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
  return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()

@dataclasses.dataclass
class Key:
  """
  The key of a jit. text: the store's key of the entry. buffers: the bound arguments' buffers. bases: the inputs'
  buffers. CapturedJit takes the rest.
  """
  text: str
  buffers: dict[UOp, int]
  names: list[int | str]
  inputs: list[tuple]
  bases: list[UOp]

def key(self: _TinyJit, args: tuple, kwargs: dict[str, Any]) -> Key | None:
  """The key of a jit that is about to capture; None if the capture is not to be kept."""
  beam = getenv("JITBEAM", BEAM.value)
  if not disk_cache.caching() or disk_cache.shown() or not JIT: return None
  if self.prune or VALIDATE_WITH_CPU or getenv("HCQ2"): return None
  if (beam and IGNORE_BEAM_CACHE) or not isinstance(function := self.fxn, functools.partial): return None
  if not isinstance(f := function.func, types.FunctionType) or _find(f.__module__, f.__qualname__) is not f: return None
  bases, _, names, inputs = jit._prepare_jit_inputs(args, kwargs)
  described = Description()
  try:
    bound = described.text(function)
    held, given = dict(described.buffers), [described.text(x) for x in _unbound(args, kwargs)]
    views = described.text(inputs)
    devices = sorted({d for u in (*held, *bases) for d in to_tuple(u.device)} | {Device.DEFAULT})
    renderers = [(d, type(r := Device[d].renderer), r.target, r.suffix, r.compiler.cachekey) for d in devices]
    if any(not isinstance(u.device, str) for u in (*held, *bases)): return None
    sources = [(package, source(package)) for package in sorted(described.packages)]
  except (Unknown, ValueError): return None
  how = JIT.value, JIT_BATCH_SIZE.value, beam and (beam, disk_cache.search_settings())
  text = repr((disk_cache.surroundings_of_step(), how, renderers, sources, bound, given, names, views,
               [*map(_layout, bases)]))
  return Key(text, held, names, inputs, bases)

def _unbound(args: tuple, kwargs: dict[str, Any]) -> Iterator[Any]:
  """The inputs that are not tensors; a variable without its value."""
  for x in (*args, *sorted(kwargs.items())):
    if isinstance(x, UOp): yield x.unbind()[0]
    elif not isinstance(x, Tensor): yield x

def get(key: Key) -> CapturedJit | None:
  if (data := STORE.get(key.text)) is None: return None
  held = list(key.buffers)
  def buffer(token: tuple) -> UOp: return held[token[1]] if token[0] == "held" else UOp.new_buffer(*token[1])
  try:
    linear, *ret = serialize.load(data, buffer)
    if linear.op is Ops.LINEAR:
      made = None if not ret else Tensor(ret[0]) if len(ret) == 1 else tuple(map(Tensor, ret))
      return CapturedJit(made, linear, key.names, key.inputs)
  except Exception: pass  # a damaged or foreign entry may raise anything
  STORE.drop(key.text)
  return None

def put(key: Key, ret: Any, linear: UOp, fresh: set[UOp]) -> None:
  tensors = () if ret is None else ret if isinstance(ret, tuple) and len(ret) > 1 else (ret,)
  if not all(isinstance(t, Tensor) for t in tensors): return
  def token(u: UOp) -> Any:
    if not _is_buffer(u): return None
    if u in key.buffers: return "held", key.buffers[u]
    if u in fresh: return "new", _layout(u)
    raise ValueError("a buffer with contents that is not among the arguments")
  try: STORE.put(key.text, serialize.dump([linear, *(t.uop for t in tensors)], token))
  except ValueError: pass

def call(self: _TinyJit, *args: Any, **kwargs: Any) -> Any:
  captures = self.captured is None and self.cnt == 1
  found = key(self, args, kwargs) if captures else None
  if found is not None and _restored(self, found): return _call(self, *args, **kwargs)
  if captures and (tell := programs.progress.get()) is not None: tell(0, 0)
  if found is None: return _call(self, *args, **kwargs)
  lowered: list[tuple[UOp, set[UOp]]] = []
  token = _lowered.set(lowered)
  try: ret = _call(self, *args, **kwargs)
  finally: _lowered.reset(token)
  if len(lowered) == 1: put(found, ret, *lowered[0])
  return ret

def jit_lower(linear: UOp, held_bufs: set[UOp], input_uops: list[UOp]) -> UOp:
  lowered: UOp = _jit_lower(linear, held_bufs, input_uops)
  if (found := _lowered.get()) is None: return lowered
  fresh = {u for u in lowered.toposort() if _is_buffer(u) and ((b := buffers.get(u)) is None or not b.is_allocated())}
  found.append((lowered, fresh))
  return lowered

def _restored(self: _TinyJit, key: Key) -> bool:
  if (captured := get(key)) is None: return False
  self.captured, self.cnt = captured, 2
  return True

def restore(self: _TinyJit, *args: Any, **kwargs: Any) -> bool:
  """Whether a jit is ready to replay: it has captured, or its capture for these arguments was found on disk."""
  if self.captured is not None: return True
  with lock:
    if not is_on("captures") or (found := key(self, args, kwargs)) is None or not _restored(self, found): return False
    assert self.captured is not None
    _make_ready(self.captured, tuple(found.bases))
    return True

def _make_ready(captured: CapturedJit, inputs: tuple[UOp, ...]) -> None:
  """Does what the first call would do before it runs: loads the programs and makes the graphs."""
  for u in captured.linear.toposort():
    if u.op is Ops.CALL and u.src[0].op is Ops.PROGRAM: get_runtime(u.src[1].device, u.src[0])
  if captured._written_uops.intersection(inputs): return  # the jit also writes an input: each call copies it
  for ast in (call.src[0] for call in captured.linear.src):
    if ast.op is Ops.CUSTOM_FUNCTION and ast.arg == "graph": get_graph_runtime(ast, inputs)

def install() -> None:
  places.replace(_TinyJit, "__call__", call)
  places.replace(jit, "jit_lower", jit_lower)
