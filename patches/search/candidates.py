"""
The candidates of a kernel: each is lowered and estimated, compiled, run on data of the kernel's shape, timed cold, and
compared with the unoptimised kernel. All of this runs in a process that a candidate may break (sandbox.py).
"""
from __future__ import annotations
import functools, hashlib, itertools, math, pathlib, re, statistics
from collections.abc import Callable, Sequence
from typing import Any
import numpy as np
from tinygrad import Device, codegen, dtypes
from tinygrad.device import Buffer
from tinygrad.engine.jit import create_graph_call
from tinygrad.engine.realize import get_runtime
from tinygrad.helpers import Context
from tinygrad.uop.ops import GroupOp, Ops, ProgramInfo, UOp, graph_rewrite, sym_infer
from tinygrad_llm import patches
from tinygrad_llm.patches import hooks
from tinygrad_llm.patches.cache import serialize
from tinygrad_llm.patches.cache.programs import slim
from tinygrad_llm.patches.host import thread_pool
from tinygrad_llm.patches.ir.actions import Opts
from tinygrad_llm.patches.ir.targets import has_vectors
from tinygrad_llm.patches.pipeline import PASSES, Pass, Phase
from tinygrad_llm.patches.search.cost import cost_model
from tinygrad_llm.patches.search.cost.hardware import cards
from tinygrad_llm.patches.search.space import with_opts

UNSEEN = (Phase.LOOPS, Phase.VECTORS, Phase.RENDER)

def _last_cache() -> int:
  """Bytes of the last-level cache as Linux reports it, else 0: the caches of Macs are smaller than COLD."""
  sizes = pathlib.Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
  return max((int(m[1]) << 10 for path in sizes if (m := re.match(r"(\d+)K", path.read_text()))), default=0)

COLD = max(128 << 20, 5 * _last_cache() // 4)  # bytes of all copies of a kernel's arguments: more than a cache holds
COPIES = 256
SMALL = 128 << 10  # bytes of an argument that a step finds in a cache, at most: activations
NODES = 20000      # instructions of a candidate, at most: a longer one is not compiled
TOLERANCE = 2e-3   # error allowed in float32 outputs, relative to their rms: terms are added in another order
ROUNDED = 8e-3     # the same for outputs of fewer bits
APART = 5e-3       # share of integer outputs that may differ: some are rounded from floats
REPEATED = 4194301  # words after which large contents repeat: a prime, so that no two rows are alike
BATCH = 2e-3       # seconds of launches that are timed together: a launch costs more than a short kernel
LAUNCHES = 1024
IN_GRAPH = 64      # launches per graph, at most: the graph's own 7 us (H100) are then 0.1 us for each
ALONE = 3e-5       # seconds that a launch outside of a graph takes longer, at most

class Refused(Exception):
  """The candidate is invalid: illegal, too large, or wrong."""

def _launches(expected: float, most: int) -> int:
  """How many launches of `expected` seconds are timed together, at most `most`."""
  return max(1, min(most, math.ceil(BATCH / max(expected, 1e-6))))

class Candidates:
  """A kernel and its candidates. variables: values of the kernel's variables; cold: bytes of all argument copies."""
  def __init__(self, data: bytes, device: str, variables: dict[str, int], cold: int = COLD):
    self.ast, = serialize.load(data)
    self.device, self.variables, self.cold = device, variables, cold
    self.ren = Device[device].renderer
    self.lowered: dict[Opts|None, UOp] = {}
    self.programs: dict[Opts|None, UOp] = {}
    self.params = sorted((u for u in self.ast.toposort() if u.op is Ops.PARAM and u.arg.slot >= 0),
                         key=lambda u: u.arg.slot)
    self.place = {u.arg.slot: i for i, u in enumerate(self.params)}  # by slot: a fused launch's stage skips some
    self.outputs = sorted({u.src[0].buf_uop.arg.slot for u in self.ast.toposort() if u.op is Ops.STORE})
    self.turn = itertools.count()
    self.at_work: Opts|None|str = ""  # the candidate that ran last

  # *** before it is compiled

  def lower(self, opts: Opts|None) -> tuple[float, str]:
    """The cost model's microseconds (0 for a device that it does not know), and a digest of the source."""
    with Context(ALLOW_DEVICE_USAGE=0): sink = codegen.full_rewrite_to_sink(with_opts(self.ast, opts), self.ren)
    program = UOp(Ops.PROGRAM, src=(sink,), arg=ProgramInfo.from_sink(sink, self.ren.target))
    program = codegen.do_linearize(self.ren, program, sink)
    if (made := codegen.do_estimates(program, *program.src)) is not None: program = made
    linear = program.src[1].src
    if len(linear) > NODES: raise Refused(f"{len(linear)} instructions")
    self.lowered[opts] = program = codegen.do_render(self.ren, program, program.src[1])
    moved = int(sym_infer(program.src[0].arg.estimates.mem, self.variables))
    digest = hashlib.sha256(program.src[2].arg.encode()).hexdigest()[:16]
    if not (known := cards(self.ren.target)): return 0.0, digest
    return cost_model.estimate(cost_model.work(linear, moved, self.variables), known[0]).us, digest

  def compile(self, opts: Opts|None) -> bytes:
    """The compiled program in the form that add() takes."""
    if opts not in self.lowered: self.lower(opts)
    program = graph_rewrite(self.lowered.pop(opts), codegen.pm_to_program, ctx=self.ren, name="compile")
    return serialize.dump([slim(program)])

  def add(self, opts: Opts|None, program: bytes) -> None: self.programs[opts], = serialize.load(program)

  def touched(self, opts: Opts|None) -> list[str]:
    """The patches that change the kernel, and those that might: rewrite rules for its kind of target work unseen."""
    with hooks.recording() as found, Context(ALLOW_DEVICE_USAGE=0):
      codegen.full_rewrite_to_sink(with_opts(self.ast, opts), self.ren)
    def may(p: Pass) -> bool:
      return p.phase in UNSEEN and p.targets != "all" and p.suits(has_vectors(self.ren))
    return [p.name for p in PASSES if may(p) or f"{patches.__name__}.{p.module}" in found]

  # *** data

  @functools.cached_property
  def copies(self) -> list[list[Buffer]]:
    """
    Several copies of the arguments, so that a launch finds them cold, as a step finds weights and keys.

    Small arguments have one place only: in a step, another kernel has just written them. For graphs, outputs have one
    place too, so that no launch starts before the previous one ends.
    """
    sizes = [u.max_numel() * u.dtype.itemsize for u in self.params]
    large = sum(size for size in sizes if size > SMALL)
    count = min(COPIES, max(2, math.ceil(self.cold / large))) if large else 1
    made, filled = list[list[Buffer]](), self.data(0)
    once = {self.place[slot] for slot in self.outputs} if self.has_graphs else set[int]()
    shared = [size <= SMALL or i in once for i, size in enumerate(sizes)]
    for _ in range(count):
      try: made.append([made[0][i] if made and shared[i] else Buffer(self.device, u.max_numel(), u.dtype).allocate()
                        for i, u in enumerate(self.params)])
      except (MemoryError, RuntimeError):  # fewer copies are less cold, but better than none
        if not made: raise
        break
    for buffers in made: write(buffers, filled)
    return made

  def data(self, seed: int) -> list[np.ndarray]:
    """Random contents of the arguments: floats and packed words of moderate size, indices in range."""
    if self._data[0] != seed:
      rng, narrow = np.random.default_rng(seed), has_exponents(self.ast)
      self._data = seed, [contents(u, place_bound(self.ast, u), rng, narrow) for u in self.params]
    return self._data[1]

  _data: tuple[int, list[np.ndarray]] = -1, []  # the seed and the contents of the last call

  def prepare(self) -> None:
    """Makes the data, the reference results, and the masks of the elements that are compared."""
    self.reference(0), self.written, self.copies

  # *** running

  def run(self, opts: Opts|None, copy: int) -> float:
    """Launches a candidate once, on one of the copies; returns its seconds."""
    program, buffers = self._next(opts), self.copies[copy % len(self.copies)]
    info = program.arg
    sizes, local = info.launch_dims(self.variables)
    args = [buffers[self.place[i]].get_buf(self.device) for i in info.globals]
    return get_runtime(self.device, program)(*args, global_size=sizes, local_size=local,
                                             vals=info.vals(self.variables), wait=True) or 0.0

  def _next(self, opts: Opts|None) -> UOp:
    self.at_work = opts
    return self.programs[opts]

  def _coldest(self) -> list[Buffer]:
    """The copy that was not touched for the longest time."""
    return self.copies[next(self.turn) % len(self.copies)]

  @functools.cached_property
  def has_graphs(self) -> bool:
    """Whether launches are timed in a graph, as in a step: a launch outside of one costs microseconds more."""
    return not has_vectors(self.ren) and Device[self.device].graph is not None

  def _graph(self, opts: Opts|None, expected: float) -> Callable[[], float]:
    """
    Records launches of one schedule in a device graph, each on the least recently used copy of the buffers: cold data.

    The function returned runs the graph and gives seconds per launch. expected: a rough guess of these seconds, which
    sets the number of launches.
    """
    program, calls, device = self._next(opts), list[UOp](), Device[self.device]
    for _ in range(_launches(expected, IN_GRAPH)):
      buffers = self._coldest()
      calls.append(program.call(*(UOp.from_buffer(buffers[self.place[i]]) for i in program.arg.globals)))
    graph = device.graph(create_graph_call(calls).src[0], ())
    def run() -> float:
      self.at_work = opts
      return (graph((), self.variables, wait=True) or 0.0) / len(calls)
    run()  # warm-up: the first run includes the driver's preparations
    return run

  def _table(self, opts: Opts|None, count: int) -> thread_pool.Table:
    """`count` launches on a CPU, each on the next copy."""
    program = self._next(opts)
    sizes, runtime, commands = program.arg.launch_dims(self.variables)[0], get_runtime(self.device, program), []
    for _ in range(count):
      buffers = self._coldest()
      args = [*(buffers[self.place[i]].get_buf(self.device).va_addr for i in program.arg.globals),
              *(v or 0 for v in program.arg.vals(self.variables))]
      commands.append(thread_pool.command(runtime, sizes[0], args))
    return thread_pool.Table(commands)

  def _seconds(self, opts: Opts|None, expected: float) -> float:
    """Seconds of a cold launch: each uses the copy not touched for longest. expected: the result, roughly."""
    if not has_vectors(self.ren): return self.run(opts, next(self.turn))
    count = _launches(expected, LAUNCHES)
    return thread_pool.pool().run(self._table(opts, count)) / count

  def time(self, many: Sequence[Opts|None], rounds: int, enough: float = math.inf) -> list[list[float]]:
    """
    Seconds of each candidate in every round, timed in turns: one list per candidate.

    enough: seconds; a candidate that takes longer in its first launch is not timed again.
    """
    found: list[list[float]] = [[] for _ in many]
    first, graphs = [self.run(opts, next(self.turn)) for opts in many], dict[int, Callable[[], float]]()
    for i, opts in enumerate(many):
      if self.has_graphs and first[i] <= enough + ALONE:
        graphs[i] = self._graph(opts, first[i])
        first[i] = graphs[i]()
    for _ in range(rounds):
      for i, opts in enumerate(many):
        if first[i] > enough: found[i] = found[i] or [first[i]]
        elif i in graphs: found[i].append(graphs[i]())
        else: found[i].append(self._seconds(opts, statistics.median(found[i]) if found[i] else first[i]))
    return found

  def survey(self, rounds: int) -> tuple[float, int]:
    """Seconds of the kernel with its present schedule, and the bytes that it moves, each counted once."""
    program = self.compile(None)
    self.add(None, program)
    moved = int(sym_infer(self.programs[None].src[0].arg.estimates.mem, self.variables))
    return min(self.time([None], rounds)[0]), moved

  # *** numbers

  def reference(self, seed: int) -> list[np.ndarray]:
    """The unoptimised kernel's outputs for random arguments."""
    if seed not in self._references:
      if UNOPTIMISED not in self.programs:
        with Context(NOOPT=1): self.programs[UNOPTIMISED] = codegen.to_program(with_opts(self.ast, None), self.ren)
      self._references[seed] = self._result(UNOPTIMISED, seed)
    return self._references[seed]

  @functools.cached_property
  def _references(self) -> dict[int, list[np.ndarray]]: return {}

  def _result(self, opts: Opts|None, seed: int) -> list[np.ndarray]:
    write(self.copies[0], self.data(seed))
    self.run(opts, 0)
    return [read_array(np.frombuffer(self.copies[0][self.place[slot]].as_memoryview(), np.uint8), self.dtype(slot))
            for slot in self.outputs]

  @functools.cached_property
  def written(self) -> list[np.ndarray]:
    """Masks of the output elements that the presently scheduled kernel changes: some elements are only padding."""
    if None not in self.programs: self.add(None, self.compile(None))
    found = [np.zeros(1, bool)] * len(self.outputs)
    for seed in (1, 2):
      before = [read_array(self.data(seed)[self.place[slot]], self.dtype(slot)) for slot in self.outputs]
      found = [known | (bits(new) != bits(old)) for known, new, old in zip(found, self._result(None, seed), before)]
    return found

  def dtype(self, slot: int) -> Any: return self.params[self.place[slot]].dtype

  def check(self, opts: Opts|None, seed: int) -> float:
    """The largest error against the unoptimised kernel, over the allowed error. Refused if it is above 1."""
    wanted, found = self.reference(seed), self._result(opts, seed)
    worst = max(error(a[at], b[at], self.dtype(slot).itemsize < 4)
                for a, b, at, slot in zip(found, wanted, self.written, self.outputs))
    if not worst <= 1: raise Refused(f"wrong numbers, {worst:.1f} times what is allowed")
    return worst

UNOPTIMISED: Any = "unoptimised"

def error(found: np.ndarray, wanted: np.ndarray, coarse: bool) -> float:
  """The largest error over the allowed error. NaN and infinities must be where they were, else it is infinite."""
  if not wanted.size: return 0.0
  if found.dtype.kind != "f": return float(np.mean(found != wanted)) / APART
  known = np.isfinite(wanted)
  if (np.isfinite(found) != known).any(): return math.inf
  if not known.any(): return 0.0
  wanted, found = wanted[known].astype(np.float64), found[known].astype(np.float64)
  rms = math.sqrt(float(np.mean(wanted * wanted)))
  allowed = (ROUNDED if coarse else TOLERANCE) * (rms + np.abs(wanted)) + 1e-30
  return float(np.max(np.abs(found - wanted) / allowed))

# *** contents

def write(buffers: Sequence[Buffer], contents: Sequence[np.ndarray]) -> None:
  for buffer, data in zip(buffers, contents):
    if hasattr(buffer.allocator, "_as_buffer"): buffer.as_memoryview(force_zero_copy=True)[:] = data.tobytes()
    else: buffer.copy_from(Buffer("PYTHON", buffer.size, buffer.dtype, opaque=memoryview(bytearray(data.tobytes()))))

def read_array(data: np.ndarray, dtype: Any) -> np.ndarray:
  """Bytes as an array of numbers, a copy. bfloat16 becomes float32, integers are unsigned."""
  data = np.ascontiguousarray(data).view(np.uint8)
  if dtype is dtypes.bfloat16: return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
  kind = {dtypes.float: np.float32, dtypes.half: np.float16, dtypes.double: np.float64}.get(dtype)
  return data.view(kind if kind is not None else f"u{dtype.itemsize}").copy()

def bits(x: np.ndarray) -> np.ndarray: return x.view(f"u{x.dtype.itemsize}")

def contents(u: UOp, bound: int|None, rng: np.random.Generator, narrow: bool) -> np.ndarray:
  """Random contents of an argument. bound: the largest value, for an index; narrow: whether has_exponents() holds."""
  n = u.max_numel()
  if bound is not None: return rng.integers(0, bound + 1, n).astype(f"i{u.dtype.itemsize}")
  if u.dtype is dtypes.float: return rng.standard_normal(n, np.float32)
  if u.dtype is dtypes.half: return rng.standard_normal(n, np.float32).astype(np.float16)
  if u.dtype is dtypes.bfloat16: return (rng.standard_normal(n, np.float32).view(np.uint32) >> 16).astype(np.uint16)
  size = n * u.dtype.itemsize
  count = -(-size // 4)
  words = rng.integers(0, 1 << 32, min(count, REPEATED), np.uint32)
  # read as halves: neither infinite nor tiny; as floats: below 2; narrow: bytes from 64 to 123, where 127 means 2**0
  words = words & 0x3b3b3b3b | 0x40404040 if narrow else words & 0xbbffbbff | 0x04000400
  return np.resize(words, count).view(np.uint8)[:size]

def has_exponents(ast: UOp) -> bool:
  """
  Whether the kernel computes the bits of floats, as for scales that are powers of two.

  Most random bytes would make such a float infinite, or so small that a processor is a hundred times slower with it.
  No real model has such scales.
  """
  return any(u.op is Ops.BITCAST and u.dtype is dtypes.float and u.src[0].op in GroupOp.ALU for u in ast.toposort())

def place_bound(ast: UOp, param: UOp) -> int|None:
  """The largest value of an argument for which all indices computed from it are in range; None if any value is."""
  if not dtypes.is_int(param.dtype): return None
  loads = [u for u in ast.toposort() if u.op is Ops.INDEX and u.src[0] is param]
  used = [u for u in ast.toposort() if u.op is Ops.INDEX and u.src[0] is not param and
          any(load in i.backward_slice_with_self for i in u.src[1:] for load in loads)]
  if all(u.src[1].vmin >= 0 and u.src[1].vmax < u.src[0].max_numel() for u in used): return None
  def last(n: int) -> list[int]:
    known = {load: load.const_like(n) for load in loads}
    return [int(u.replace(src=(u.src[0], *(i.substitute(known, walk=True).simplify() for i in u.src[1:]))).src[1].vmax)
            for u in used]
  def inside(n: int) -> bool: return all(at < u.src[0].max_numel() for at, u in zip(last(n), used))
  most = 1
  while most < 1 << 24 and inside(2 * most) and last(2 * most) != last(most): most *= 2
  least, most = most, 2 * most
  if not inside(least): return 0
  while most - least > 1:
    middle = (least + most) // 2
    if inside(middle) and last(middle) != last(least): least = middle
    else: most = middle
  return least
