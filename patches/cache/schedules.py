"""
Stored schedules: the Opts that searches found, as JSON, one entry for each kernel and device.

A store on disk holds the entries of this user; files in patches/search/tuned hold those for machines that were
measured.

A kernel is known by its graph with all sizes, its family by the graph without them. An entry records the conditions of
its search: the device and its driver, tinygrad's version, and the code of the patches that touched the kernel, without
comments and docstrings. An entry is used only if all of these are still the same. The driver may differ for an entry
from another machine.
"""
from __future__ import annotations
import ast as syntax
import contextlib, dataclasses, functools, hashlib, importlib, inspect, json, math, os, pathlib, subprocess, types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.helpers import NUM_CPU_THREADS
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm import patches
from tinygrad_llm.patches import TINYGRAD
from tinygrad_llm.patches.cache import disk_cache
from tinygrad_llm.patches.ir.actions import Opts, ScheduleOps

VERSION = 1
STORE = disk_cache.Store(f"schedules-{VERSION}", 64 << 20)
VERSIONS = disk_cache.Store("versions", 1 << 20)  # versions of compilers and patches, slow to find out
ROOMS = pathlib.Path(__file__).resolve().parent.parent
FILES = ROOMS / "search" / "tuned"

# *** the grammar of a schedule

MOST_OPTS, MOST = 64, 1 << 20

def to_json(opts: Opts) -> list[list[Any]]:
  return [[opt.op.name, opt.axis, list(opt.arg) if isinstance(opt.arg, tuple) else opt.arg] for opt in opts]

def from_json(rows: Any) -> Opts:
  """The Opts in a list of [name of an action, axis or null, amount]. ValueError: it is no such list."""
  def fail(row: Any) -> ValueError: return ValueError(f"{str(row)[:80]} is no action on a kernel")
  def number(x: Any) -> bool: return isinstance(x, int) and not isinstance(x, bool) and 0 <= abs(x) <= MOST
  if not isinstance(rows, list) or len(rows) > MOST_OPTS: raise fail(rows)
  found = []
  for row in rows:
    if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], str): raise fail(row)
    name, axis, arg = row
    op = OptOps.__members__.get(name) or ScheduleOps.__members__.get(name)
    if op is None or not (axis is None or number(axis)): raise fail(row)
    several = 3 if op is OptOps.TC else 5 if op is ScheduleOps.BLOCK else None
    if isinstance(arg, list) and len(arg) == several and all(map(number, arg)): arg = tuple(arg)
    elif not (arg is None or number(arg)): raise fail(row)
    found.append(Opt(op, axis, arg))  # type: ignore[arg-type]
  return tuple(found)

# *** what a kernel is

def _hash(ast: UOp, sizes: bool) -> str:
  """
  A hash of a kernel by its nodes' contents: whether two equal sizes are one node makes no difference. Parameters are
  numbered in their order, since a launch of several kernels has the parameters of all of them.
  """
  known, ops = dict[UOp, bytes](), ast.toposort()
  slots = sorted(u.arg.slot for u in ops if u.op is Ops.PARAM)
  for u in ops:
    arg = u.arg
    if u.op is Ops.SINK: arg = None  # the kernel's name and requested schedule
    elif u.op is Ops.PARAM: arg = (slots.index(arg.slot), arg.name, arg.addrspace, arg.vmin_vmax if sizes else None)
    elif u.op is Ops.CONST and not sizes and isinstance(arg, int) and not isinstance(arg, bool): arg = None
    known[u] = hashlib.sha256(repr((u.op, u.dtype, arg)).encode() + b"".join(known[s] for s in u.src)).digest()
  return known[ast].hex()[:24]

@functools.lru_cache(1024)
def key_of(ast: UOp) -> str:
  """The key of a kernel as it is scheduled, whatever the slots of its parameters and the schedule requested for it."""
  return _hash(ast, True)

def family_of(ast: UOp) -> str:
  """The key of a kernel without its sizes."""
  return _hash(ast, False)

def sizes_of(ast: UOp) -> list[int]:
  """The sizes of a kernel's loops and parameters, in order."""
  ops = ast.toposort()
  return [int(u.vmax) + 1 for u in ops if u.op is Ops.RANGE] + [u.max_numel() for u in ops if u.op is Ops.PARAM]

# *** what it was found with

@functools.cache
def device_of(name: str, ren: Renderer) -> dict[str, Any]:
  """The properties of a device that a schedule depends on: {device, renderer, arch, model, driver, threads}."""
  kind = name.split(":")[0]
  found: dict[str, Any] = {"device": kind, "renderer": type(ren).__name__, "arch": ren.target.arch, "model": "",
                           "driver": "", "threads": 0}
  if kind == "CPU": found |= {"model": processor(), "driver": _compiler(), "threads": NUM_CPU_THREADS.value}
  else:
    with contextlib.suppress(Exception): found |= CARDS.get(name) or _card(kind, name)
  return found

CARDS: dict[str, dict[str, str]] = {}  # by device; for compile workers, which may not ask devices

def cards() -> dict[str, dict[str, str]]:
  """Models and drivers of the open devices, for compile workers."""
  from tinygrad import Device
  found = dict[str, dict[str, str]]()
  for name in sorted(Device._opened_devices):
    with contextlib.suppress(Exception):
      if card := _card(name.split(":")[0], name): found[name] = card
  return found

def processor() -> str:
  """The processor's name, as the system gives it; on x86 with the numbers that tell generations apart."""
  known = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in disk_cache.processor())}
  name = next((known[key] for key in ("model name", "CPU part", "cpu") if key in known), disk_cache.processor()[-1])
  numbers = [f"{key.removeprefix('cpu ')} {known[key]}" for key in ("cpu family", "model") if key in known]
  return f"{name} ({', '.join(numbers)})" if numbers else name

def _compiler() -> str:
  """The C compiler's version, asked once and kept."""
  cc = os.environ.get("CC", "clang")
  key = repr(("compiler", disk_cache.program(cc)))
  if (known := VERSIONS.get(key)) is not None: return known.decode()
  try: line = subprocess.run([cc, "--version"], capture_output=True, text=True).stdout.splitlines()[0]
  except (OSError, IndexError): return ""
  VERSIONS.put(key, line.encode())
  return line

def _card(kind: str, name: str) -> dict[str, str]:
  """The model and the driver of a GPU, where tinygrad can say; {} elsewhere."""
  from tinygrad import Device
  if kind == "CUDA":
    from tinygrad.runtime.autogen import cuda
    import ctypes
    version, text = ctypes.c_int(), ctypes.create_string_buffer(256)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    cuda.cuDeviceGetName(text, 256, int(name.split(":")[1]) if ":" in name else 0)
    return {"model": text.value.decode(), "driver": str(version.value)}
  if kind == "NV":
    version_file = pathlib.Path("/proc/driver/nvidia/version")
    return {"model": nv_model(Device[name]),
            "driver": version_file.read_text().splitlines()[0][:120] if version_file.exists() else ""}
  if kind == "METAL":
    import platform
    return {"model": str(Device[name].sysdevice.name), "driver": platform.mac_ver()[0]}  # type: ignore[attr-defined]
  if kind == "CL":
    device: Any = Device[name]
    return {"model": device.device_name, "driver": getattr(device, "driver_version", "")}
  return {}

def nv_model(device: Any) -> str:
  """The name of a GPU of tinygrad's NV device, as its driver gives it; else how many processors it has."""
  from tinygrad.runtime import ops_nv
  nv = ops_nv.nv_gpu
  with contextlib.suppress(RuntimeError, ValueError, AttributeError):
    found = device.iface.rm_control(device.subdevice, nv.NV2080_CTRL_CMD_GPU_GET_NAME_STRING,
                                    nv.NV2080_CTRL_GPU_GET_NAME_STRING_PARAMS())
    if text := bytes(found.gpuNameString.ascii).split(b"\0")[0].decode("ascii", "replace"): return text
  return f"{device.num_gpcs} x {device.num_tpc_per_gpc} x {device.num_sm_per_tpc} processors"

@functools.cache
def _code(module: Any) -> str:
  """A module's code without docstrings and comments."""
  tree = syntax.parse(inspect.getsource(module))
  for node in syntax.walk(tree):
    first = body[0] if isinstance(body := getattr(node, "body", None), list) and body else None
    if not isinstance(first, syntax.Expr) or not isinstance(first.value, syntax.Constant): continue
    if isinstance(first.value.value, str): first.value.value = ""
  return syntax.dump(tree)

@functools.cache
def version_of(patch: str) -> str:
  """A hash of a patch's code and of all modules that it imports, directly or not, other patches left out."""
  module = importlib.import_module(f"{patches.__name__}.{patches.module_of(patch)}")
  code = [_code(module), *(_code(helper) for _, helper in sorted(_helpers(module).items()))]
  return hashlib.sha256("\0".join(code).encode()).hexdigest()[:12]

@functools.cache
def _helpers(module: types.ModuleType) -> dict[str, types.ModuleType]:
  """By name, the modules of this package that a module imports, directly or not; patches are left out."""
  found, room = dict[str, types.ModuleType](), f"{patches.__name__}."
  for node in syntax.walk(syntax.parse(inspect.getsource(module))):
    if not isinstance(node, syntax.ImportFrom) or node.module is None: continue
    for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
      inner = name.removeprefix(room)
      if name == inner or "." not in inner or inner in patches.MODULES: continue
      if not (ROOMS / inner.replace(".", "/")).with_suffix(".py").is_file(): continue  # a name in a module
      helper = importlib.import_module(name)
      found |= {name: helper} | _helpers(helper)
  return found

def versions(touched: Iterable[str]) -> dict[str, str]:
  return {name: _versions()[name] for name in sorted(set(touched) & set(patches.enabled()))}

@functools.cache
def _versions() -> dict[str, str]:
  """The versions of all patches that are on, kept on disk: parsing the patches takes longer than reading the result."""
  key = f"versions {patches.patch_set()}"
  if (known := VERSIONS.get(key)) is not None: return dict(json.loads(known))
  found = {name: version_of(name) for name in patches.enabled()}
  VERSIONS.put(key, json.dumps(found).encode())
  return found

# *** entries

@dataclass(frozen=True)
class Entry:
  """
  The schedule found for a kernel. `opts`: None if the default schedule is best. `ratio`: the winner's time over the
  default's. `us`: the winner's time in microseconds. `sizes`: they tell which kernel of a family is nearest.
  """
  kernel: str
  family: str
  sizes: list[int]
  name: str
  device: dict[str, Any]
  patches: dict[str, str]
  opts: Opts|None
  ratio: float
  us: float
  date: str
  tinygrad: str = TINYGRAD
  version: int = VERSION
  extra: dict[str, Any] = field(default_factory=dict)

  def json(self) -> dict[str, Any]:
    return {**dataclasses.asdict(self), "opts": None if self.opts is None else to_json(self.opts)}

  @classmethod
  def of(cls, row: Any) -> Entry:
    """The entry in a row of JSON. ValueError: it is no entry, or has another version."""
    kinds = {"kernel": str, "family": str, "sizes": list, "name": str, "device": dict, "patches": dict, "ratio": float,
             "us": float, "date": str, "tinygrad": str, "version": int, "extra": dict}
    if not isinstance(row, dict) or row.keys() != {*kinds, "opts"}: raise ValueError("not a schedule entry")
    for name, kind in kinds.items():
      if not isinstance(row[name], (int, float) if kind is float else kind):
        raise ValueError(f"{name} is no {kind.__name__}")
    if row["version"] != VERSION: raise ValueError(f"version is {row['version']}, not {VERSION}")
    if not all(isinstance(n, int) for n in row["sizes"]): raise ValueError("sizes must be integers")
    if not all(isinstance(x, str) for x in row["patches"].values()): raise ValueError("patches have no versions")
    if not all(math.isfinite(row[name]) and row[name] > 0 for name in ("ratio", "us")):
      raise ValueError("ratio and us must be positive")
    return cls(**{**row, "opts": None if row["opts"] is None else from_json(row["opts"])})

  def holds(self, device: dict[str, Any], own: bool = True) -> bool:
    """
    Whether it was found with the device and software that are here now. own: on this machine, so the driver counts,
    too.
    """
    ignored = set() if own and not self.extra.get("imported") else {"driver"}
    return (self.tinygrad == TINYGRAD and all(_versions().get(name) == v for name, v in self.patches.items()) and
            all(self.device.get(k) == v for k, v in device.items() if k not in ignored))

def _name(kernel: str, device: dict[str, Any]) -> str:
  """The store's key of an entry. It lacks the driver, so a new driver's entry replaces the old one's."""
  return json.dumps([kernel, {k: v for k, v in device.items() if k != "driver"}], sort_keys=True)

def put(entry: Entry) -> None:
  """Stores an entry, in place of an older one."""
  STORE.put(_name(entry.kernel, entry.device), json.dumps(entry.json()).encode())
  stamp.cache_clear()
  lookup.cache_clear()

def entries() -> Iterator[Entry]:
  """All entries of this user, whatever they were found with."""
  for data in STORE.entries():
    with contextlib.suppress(ValueError): yield Entry.of(json.loads(data))

@functools.cache
def shipped() -> tuple[Entry, ...]:
  """All entries of the package's files."""
  found = list[Entry]()
  for path in sorted(FILES.glob("*.json")) if FILES.is_dir() else ():
    with contextlib.suppress(ValueError, OSError):
      found += [Entry.of(row) for row in json.loads(path.read_text())["schedules"]]
  return tuple(found)

@functools.cache
def lookup(kernel: str, name: str, ren: Renderer) -> Entry|None:
  """The entry of a kernel for a device: the user's own, or one of the package; None if none holds."""
  device = device_of(name, ren)
  if (data := STORE.get(_name(kernel, device))) is not None:
    with contextlib.suppress(ValueError):
      if (entry := Entry.of(json.loads(data))).holds(device): return entry
  return next((e for e in shipped() if e.kernel == kernel and e.holds(device, own=False)), None)

def nearest(ast: UOp, device: dict[str, Any], most: int = 3) -> list[Opts]:
  """Winners of kernels that differ in sizes alone, the most similar first, at most `most`."""
  family, sizes = family_of(ast), sizes_of(ast)
  def apart(entry: Entry) -> float:
    return sum(abs(math.log2(a / b)) for a, b in zip(entry.sizes, sizes) if a > 0 and b > 0)
  same = [e for e in (*entries(), *shipped()) if e.family == family and e.opts is not None and
          len(e.sizes) == len(sizes) and e.device.get("device") == device["device"]]
  return list(dict.fromkeys(e.opts for e in sorted(same, key=apart) if e.opts is not None))[:most]

@functools.cache
def stamp() -> tuple[Any, ...]:
  """A value that changes when an entry does, for keys of steps with many kernels."""
  return STORE.stamp(), tuple((path.name, path.stat().st_mtime_ns) for path in sorted(FILES.glob("*.json")))
