"""
Program cache: compiled kernels are kept on disk, as lowered PROGRAMs.

Why: a start lowers every kernel again, in Python: tinygrad's cache holds the compiler's output only. With all machine
  code of a model of 5 layers in that cache, lowering took 3.5 s of the 8 s to the first token.
How: a PROGRAM is stored under to_program_key and all else that it depends on (disk_cache.surroundings). The entry holds
  the parts that are used after compilation: ProgramInfo, KernelInfo with its options and estimates, the parameters, the
  source and the binary. SINK and LINEAR hold the parameters alone: the lowered graph is 100x the size and serves VIZ
  and BEAM only. So BEAM's candidates and everything under DEBUG=3 and VIZ are lowered as before. For a whole PROGRAM,
  lower with Context(CACHELEVEL=0).
  CCACHE=0 and CACHELEVEL=0 switch the cache off, IGNORE_BEAM_CACHE=1 only for BEAM's results. Compile workers store
  their programs themselves. Few or small kernels are lowered in this process: a worker takes a second to start. The
  keys of tinygrad's own cache of machine code carry the processor, too.
  `progress`, if set in this thread, is called with (kernels made, kernels to make) of each batch, and with (0, 0)
  before captures.py makes a schedule.
Numbers: docs/performance.md, First start; `make start`.
Upstream: not sent; the key would have to be complete there first (DEV=CPU compiles for "native").
"""
from __future__ import annotations
import functools, sys, time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, cast
from tinygrad import codegen
from tinygrad.codegen import to_program_cache, to_program_key
from tinygrad.codegen.opt import search
from tinygrad.device import Compiler
from tinygrad.engine import realize
from tinygrad.helpers import CACHELEVEL, CCACHE, IGNORE_BEAM_CACHE, PARALLEL, tqdm
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches import places
from tinygrad_llm.patches.cache import disk_cache, serialize

SEAMS = {
  "tinygrad.codegen:do_to_program": "f4acce5335e4",
  "tinygrad.codegen:to_program": "0ac8cb89e06a",
  "tinygrad.codegen:to_program_key": "c20f3e3b2ead",
  "tinygrad.codegen.opt.search:_try_compile": "e081044fe13f",
  "tinygrad.engine.realize:lower_and_compile": "bced2cdfd2f2",
  "tinygrad.engine.realize:_get_call_to_compile": "72598a7e08c6",
  "tinygrad.engine.realize:estimate_uop": "ae82433dcf2d",
  "tinygrad.uop.ops:UOp.to_elf": "fd6935d9fd3d",
  "tinygrad.uop.ops:UOp.key": "2618cde4dd7c",
  "tinygrad.uop.ops:KernelInfo": "6d5ba5070bdf",
  "tinygrad.uop.ops:ProgramInfo": "ae131047bc29",
  "tinygrad.device:Compiler.__init__": "1630afe6e1cc",
}

# functions that return the schedule that a search found for a kernel; it is a part of the key
searched_opts: list[Callable[[UOp, Renderer], Any]] = places.Functions(__name__, "searched_opts")
Missing = dict[tuple, tuple[UOp, Renderer]]  # kernels neither in memory nor on disk, by to_program_key

progress: ContextVar[Callable[[int, int], None] | None] = ContextVar("progress", default=None)
STORE = disk_cache.Store("programs")
_COMPILED = (Ops.SINK, Ops.LINEAR, Ops.SOURCE, Ops.BINARY)
start = 1.3  # seconds until a compile worker has started and lowers at full speed
# functions that return (a function that lowers programs in other processes, the seconds until these work), or None
elsewhere: list[Callable[[], tuple[Callable[[Missing, Callable[[], None]], None], float] | None]] = places.Functions(
  __name__, "elsewhere")

_do_to_program, _lower_and_compile, _init = codegen.do_to_program, realize.lower_and_compile, Compiler.__init__

def key(ast: UOp, renderer: Renderer) -> str | None:
  """The store's key of a program; None if the program is not to be kept."""
  if not disk_cache.caching() or disk_cache.shown() or ast.op is not Ops.SINK: return None
  if (beam := getattr(ast.arg, "beam", 0)) and IGNORE_BEAM_CACHE: return None
  return repr((disk_cache.surroundings(), to_program_key(ast, renderer), ast.tag, renderer.suffix,
               renderer.compiler.cachekey, disk_cache.search_settings() if beam else None,
               [opts(ast, renderer) for opts in searched_opts]))

def slim(program: UOp) -> UOp:
  """A compiled PROGRAM without the graph that it was lowered from."""
  sink, linear, source, binary = program.src
  kept = tuple(u for u in linear.src if u.op is Ops.PARAM)
  return program.replace(src=(sink.replace(src=kept), linear.replace(src=kept), source, binary))

def get(ast: UOp, renderer: Renderer) -> UOp | None:
  """The program on disk, or None."""
  if (name := key(ast, renderer)) is None or (data := STORE.get(name)) is None: return None
  try:
    program, = serialize.load(data)
    if tuple(s.op for s in program.src) == _COMPILED: return program
  except Exception: pass  # a damaged or foreign entry may raise anything
  STORE.drop(name)
  return None

def do_to_program(ast: UOp, renderer: Renderer) -> UOp:
  if (found := get(ast, renderer)) is not None: return found
  program = _do_to_program(ast, renderer)
  if (name := key(ast, renderer)) is None or tuple(s.op for s in program.src) != _COMPILED: return cast(UOp, program)
  program = slim(program)
  try: STORE.put(name, serialize.dump([program]))
  except ValueError: pass  # an argument of a class that serialize does not write
  return program

def searched(ast: UOp, renderer: Renderer) -> UOp:
  """to_program for BEAM's candidates. None goes to disk: each kernel has hundreds, and BEAM reads their LINEAR."""
  if (program := to_program_cache.get(name := to_program_key(ast, renderer))) is None:
    to_program_cache[name] = program = _do_to_program(ast, renderer)
  return program

def lower_and_compile(linear: UOp) -> UOp:
  """Fetches programs from disk and lowers kernels here where that is soon done; tinygrad does the rest."""
  calls = [a for c in linear.toposort() if c.op is Ops.CALL and (a := realize._get_call_to_compile(c)) is not None]
  missing = {name: a for a in calls if (name := to_program_key(*a)) not in to_program_cache}
  for name, a in list(missing.items()):
    if (program := get(*a)) is not None: to_program_cache[name] = program
    if program is not None: del missing[name]
  if missing and not any(getattr(ast.arg, "beam", 0) for ast, _ in missing.values()): _lower(missing)
  return _lower_and_compile(linear)

def _lower(missing: Missing) -> None:
  """
  Lowers the smallest kernels first, until the remaining ones would take long enough to pay for other processes. Those
  begin with the largest.
  """
  sizes = {name: len(ast.toposort()) for name, (ast, _) in missing.items()}
  order = sorted(missing, key=lambda name: sizes[name])
  left, done, begun = sum(sizes.values()), 0, time.perf_counter()
  saved = 1 - 1 / max(PARALLEL.value, 1)  # share of the time that workers save
  lower, wait = next((offer for ask in elsewhere if (offer := ask()) is not None), (None, start))
  bar = Progress(total=len(missing), disable=True)
  for i, name in enumerate(order):
    if done and (time.perf_counter() - begun) / done * left * saved > 2 * wait:
      rest = {name: missing[name] for name in reversed(order[i:])}
      if lower is not None: lower(rest, functools.partial(bar.update, 1))
      break
    to_program_cache[name] = codegen.to_program(*missing[name])
    left, done = left - sizes[name], done + sizes[name]
    bar.update(1)

class Progress(tqdm):
  """tinygrad's progress bar, shown with DEBUG=1 only; otherwise it reports to `progress`."""
  def update(self, n: int = 0, close: bool = False) -> None:
    super().update(n, close)
    if self.disable and n and (tell := progress.get()) is not None: tell(self.n, self.t)

def init_compiler(self: Compiler, cachekey: str | None = None) -> None:
  _init(self, None if cachekey is None else f"{cachekey}_{disk_cache.machine()}")

def install() -> None:
  places.replace(codegen, "do_to_program", do_to_program)
  places.replace(search, "to_program", searched)
  if cpu := sys.modules.get("tinygrad.runtime.ops_cpu"): places.replace(cpu, "do_to_program", do_to_program)
  places.replace(realize, "lower_and_compile", lower_and_compile)
  places.replace(realize, "tqdm", Progress)
  switches = (*realize.to_program_context, CACHELEVEL, CCACHE, IGNORE_BEAM_CACHE)  # these go to the compile workers
  places.replace(realize, "to_program_context", switches)
  places.replace(Compiler, "__init__", init_compiler)
