"""
Tables of commands for the CPU device, and the native code that runs them: what `threads` and `dispatch` share.

A command is one launch of a kernel, in 64-bit words:
  FUNCTION  its address         SLOT   index of the argument that is the thread's number (ARGS if there is none)
  THREADS   how many it takes   WORDS  the words of this command                           HEAD..  the arguments
A table is its own ADDRESS, the COUNT of its commands, how many threads to WAKE, a spare word, and the commands.

A pool has a line of memory a thread, the caller's first. The address of a command in the ORDER of a line tells the
thread to run its share; the thread puts 0 there when it is done. No word has two writers at a time, so plain loads and
stores with fences around them do. While a table runs (BUSY) the workers spin; without one they do so for one or two
milliseconds, then sleep in read() on an eventfd, or on a pipe where there are none: writing to a pipe tells Linux that
the writer will wait, and the worker is woken on the caller's own core. Whoever spins for long lets another thread have
the core.

The native code is UOps, rendered and compiled by tinygrad, as that of its own CPU workers is. UOps have no RANGE with a
bound that is computed inside of another loop; calls take the place of such loops and of conditions.
"""
from __future__ import annotations
import ctypes, functools, itertools, os, threading, time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast
from tinygrad import Device, dtypes
from tinygrad.codegen import to_program
from tinygrad.dtype import AddrSpace
from tinygrad.helpers import NUM_CPU_THREADS, WIN, Context
from tinygrad.renderer.cstyle import ClangRenderer
from tinygrad.runtime.autogen import libc
from tinygrad.runtime.ops_cpu import MAX_ARGS as ARGS, CPUDevice, CPUProgram
from tinygrad.uop.ops import KernelInfo, Ops, UOp
from tinygrad_llm.patches import is_on

SEAMS = {
  "tinygrad.codegen:pm_linearize_cleanups": "93c6c50e305d",
  "tinygrad.codegen.late.linearizer:do_split_ends": "4a37c7ad670e",
  "tinygrad.codegen.late.linearizer:CFGContext": "57fd4a81c32d",
  "tinygrad.renderer.cstyle:ClangRenderer": "9763a2d76a66",
  "tinygrad.renderer.cstyle:base_rewrite": "ef3d9dfef266",
  "tinygrad.runtime.ops_cpu:CPUProgram.__init__": "bb170a876987",
  "tinygrad.runtime.ops_cpu:CPUProgram.__call__": "ebbeb3d86da2",
}

ADDRESS, COUNT, WAKE, TABLE_HEAD = 0, 1, 2, 4
FUNCTION, THREADS, SLOT, WORDS, HEAD = range(5)
ORDER, ASLEEP, BUSY, NUMBER, POOL, READ_FD, WRITE_FD, READ_TO, FUNCTIONS = range(9)  # of a line
LINE = 16  # words of a line: 128 bytes, as long as the longest cache line there is
RUN, IDLE, LAUNCH, REST, YIELD, READ, WRITE, CLOCK = range(8)  # of the table of functions
STAMP = 2  # words of a stamp: seconds and nanoseconds
MONOTONIC = getattr(time, "CLOCK_UPTIME_RAW", getattr(time, "CLOCK_MONOTONIC", 0))  # the clock of time.monotonic_ns()
SPINS = 1024    # looks at an order until a thread yields between two: some tens of microseconds
YIELDS = 4096   # looks until a worker then goes to sleep: one or two milliseconds on a core that nobody else wants
PAUSES = {"x86_64": "__builtin_ia32_pause();", "arm64": "__builtin_arm_isb(15);"}

# *** native code ***

def _words(slot: int, volatile: bool = False) -> UOp: return UOp.param(slot, dtypes.uint64, (ARGS,), volatile=volatile)
def _register(size: int = 1) -> UOp: return UOp.placeholder((size,), dtypes.uint64, 0, AddrSpace.REG)
def _range(end: UOp | int, axis: int, *after: UOp) -> UOp: return UOp.range(end, axis, dtype=dtypes.uint64, src=after)
def _word(value: int) -> UOp: return UOp.const(value, dtypes.uint64)
def _pick(condition: UOp, yes: int, no: int) -> UOp: return condition.where(_word(yes), _word(no))
def _fence(*after: UOp) -> UOp: return UOp(Ops.BARRIER, src=after)
def _call(function: UOp, *args: UOp) -> UOp: return function.load().call(*args, ret_dtype=dtypes.void)

def _spin(axis: int, counter: UOp, lines: UOp, order: UOp | int, functions: UOp, on: Callable[[UOp, UOp], UOp],
          rest: Callable[[UOp], UOp]) -> UOp:
  """Looks at lines[order] while on(it, looks); calls functions[rest(looks)] before each look. counter counts them."""
  loop = UOp.loop(axis)
  looks = counter.after(loop).index(0).load() + 1
  rested = _call(functions.after(counter.after(loop).index(0).store(looks)).index(rest(looks)))
  return (seen := lines.after(rested).index(order).load()).end(loop, on(seen, looks))

def rest(arch: str) -> UOp: return UOp(Ops.CUSTOM, dtypes.void, arg=PAUSES.get(arch, ""))

def run() -> UOp:
  """run(line, command): a thread's share of a command; its number is the thread's, then on in steps of the pool."""
  line, command, args = _words(0, True), _words(1), _register(ARGS + 1)
  number, pool, i = line[NUMBER].load(), line[POOL].load(), _range(ARGS, 0)
  copied = args.after(i).index(i).store(command[i + HEAD].load()).end(i)
  share = _range((command[THREADS].load() + pool - 1 - number).alu(Ops.CDIV, pool), 1, copied)
  ready = args.after(args.after(share).index(command[SLOT].load()).store(number + share * pool))
  called = _call(command.after(share)[FUNCTION], *[ready.index(i).load() for i in range(ARGS)]).end(share)
  return line.after(_fence(called))[ORDER].store(_word(0))

def idle() -> UOp:
  """idle(line, functions): sleeps, unless there is an order or a table runs by now."""
  line, functions = _words(0, True), _words(1)
  asleep = _fence(line.after(_call(functions[YIELD]))[ASLEEP].store(_word(1)))
  sleep = line.after(asleep)[ORDER].load().eq(0) & line.after(asleep)[BUSY].load().eq(0)
  slept = _call(functions.index(_pick(sleep, READ, REST)), line[READ_FD].load(), line[READ_TO], _word(8))
  return line.after(slept)[ASLEEP].store(_word(0))

def worker() -> UOp:
  """worker(line, functions): a thread's life, rounds of looks and then an order's share or a sleep."""
  line, functions, counter = _words(0, True), _words(1), _register()
  life = _range(2**64 - 1, 0, counter[0].store(_word(0)))
  spun = _spin(1, counter.after(life), line, ORDER, functions,
               lambda order, looks: order.eq(0) & (looks < SPINS + YIELDS),
               lambda looks: _pick(looks < SPINS, REST, YIELD))
  none = (order := line.after(spun)[ORDER].load()).eq(0)
  counted = counter.after(spun).index(0).store(_pick(none, SPINS + YIELDS, 0))
  function = functions.after(_fence(order, counted)).index(_pick(none, IDLE, RUN))
  return _call(function, line[0], none.where(line[FUNCTIONS].load(), order)).end(life)

def launch() -> UOp:
  """launch(lines, command, functions): the command whose address is the order of the caller, with all its threads."""
  lines, command, functions = _words(0, True), _words(1), _words(2)
  others, counter = command[THREADS].load().minimum(lines[POOL].load()) - 1, _register()
  w = _range(others, 0, _fence())
  ordered = lines.index((w + 1) * LINE + ORDER).store(lines.after(w)[ORDER].load()).end(w)
  ran = _call(functions.after(ordered)[RUN], lines[0], command[0])
  w = _range(others, 1, counter.after(ran).index(0).store(_word(0)))
  waited = _spin(2, counter.after(w), lines, (w + 1) * LINE + ORDER, functions, lambda order, _: order.ne(0),
                 lambda looks: _pick(looks < SPINS, REST, YIELD))
  return _fence(waited.end(w))

def walk(stamped: bool = False) -> UOp:
  """walk(lines, table, functions): all commands of a table. stamped: (.., stamps), one at first and one after each."""
  lines, table, functions, stamps = _words(0, True), _words(1), _words(2), _words(3)
  position, others = _register(), table[WAKE].load() - 1
  def stamp(number: UOp | int, after: UOp) -> UOp:
    if not stamped: return after
    place = stamps.after(after).index(number * STAMP)
    return _call(functions.after(after)[CLOCK], UOp.const(MONOTONIC, dtypes.int), place)
  w = _range(others, 0)
  busy = lines.index((w + 1) * LINE + BUSY).store(_word(1)).end(w)
  w = _range(others, 1, _fence(busy))
  sleeps = lines.after(w).index((w + 1) * LINE + ASLEEP).load().ne(0)
  woken = _call(functions.index(_pick(sleeps, WRITE, REST)), lines.index((w + 1) * LINE + WRITE_FD).load(),
                lines.index((w + 1) * LINE + POOL), _word(8)).end(w)
  c = _range(table[COUNT].load(), 2, position.after(stamp(0, woken)).index(0).store(_word(TABLE_HEAD)))
  at = position.after(c).index(0).load()
  order = lines.after(c)[ORDER].store(table[ADDRESS].load() + at * 8)
  ran = _call(functions.after(order)[LAUNCH], lines[0], table.index(at), functions[0])
  done = position.after(stamp(c + 1, ran)).index(0).store(at + table.index(at + WORDS).load()).end(c)
  w = _range(others, 3, done)
  return lines.index((w + 1) * LINE + BUSY).store(_word(0)).end(w)

# *** tables and the pool ***

def command(program: CPUProgram, threads: int, args: Sequence[int]) -> list[int]:
  """The words of a launch; the argument for the thread's number may be anything."""
  assert len(args) <= ARGS, f"CPU programs support at most {ARGS} arguments, got {len(args)}"
  return [program.addr, threads, program.runtimevars.get("core_id", ARGS), HEAD + len(args), *args]

class Table:
  """Commands in memory, ready to run. `at`: where each begins in `words`."""
  def __init__(self, commands: Sequence[list[int]]):
    *self.at, end = itertools.accumulate(map(len, commands), initial=TABLE_HEAD)
    self.threads = max((c[THREADS] for c in commands), default=1)
    self.words = (ctypes.c_uint64 * (end + ARGS))()  # run() copies ARGS words of the last command, as of any
    self.words[:end] = [ctypes.addressof(self.words), len(commands), 1, 0, *itertools.chain(*commands)]

class Pool:
  """
  The caller and up to `size` - 1 workers, which start with the first table that needs one.

  A worker does not end: its memory and code stay until the process ends, which ends the thread, too.
  """
  def __init__(self, size: int):
    self.size, self.workers, self._lock = size, list[threading.Thread](), threading.Lock()
    arch = Device["CPU"].renderer.target.arch.split(",")[0]
    self._code = _compiled({"run": run(), "idle": idle(), "launch": launch(), "rest": rest(arch), "worker": worker(),
                            "walk": walk()})
    self._worker, self._walk = (_function(self._code[name], n) for name, n in (("worker", 2), ("walk", 3)))
    system = [] if WIN else [_address(name) for name in ("sched_yield", "read", "write", "clock_gettime")]
    own = [self._code[name].addr for name in ("run", "idle", "launch", "rest")]
    self._functions = (ctypes.c_uint64 * 8)(*own, *system)
    self._memory = (ctypes.c_uint64 * (LINE * (size + 1)))()
    self._lines = -(-ctypes.addressof(self._memory) // (LINE * 8)) * LINE * 8
    self._line(0)[POOL] = 1

  def run(self, table: Table) -> float:
    """Runs a table and waits for it; returns how many seconds that took."""
    with self._lock:
      self._ready(table)
      start = time.perf_counter()
      self._walk(self._lines, ctypes.addressof(table.words), ctypes.addressof(self._functions))
      return time.perf_counter() - start

  def run_stamped(self, table: Table) -> ctypes.Array[ctypes.c_uint64]:
    """The same; returns STAMP words of a clock, MONOTONIC, at the start of the first command and at the end of each."""
    with self._lock:
      self._ready(table)
      stamps = (ctypes.c_uint64 * (STAMP * (table.words[COUNT] + 1)))()
      self._stamped_walk(self._lines, ctypes.addressof(table.words), ctypes.addressof(self._functions),
                         ctypes.addressof(stamps))
      return stamps

  @functools.cached_property
  def _stamped_walk(self) -> Callable[..., None]:
    self._code |= _compiled({"stamped_walk": walk(stamped=True)})
    return _function(self._code["stamped_walk"], 4)

  def _ready(self, table: Table) -> None:
    if table.threads > 1 + len(self.workers) < self.size: self._start()
    table.words[WAKE] = min(table.threads, 1 + len(self.workers))

  def _line(self, number: int) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * LINE).from_address(self._lines + number * LINE * 8)

  def _start(self) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
    for number in range(1, self.size):
      line = self._line(number)
      try:
        line[READ_FD], line[WRITE_FD] = _wake_up_call()
        line[NUMBER], line[FUNCTIONS] = number, ctypes.addressof(self._functions)
        thread = threading.Thread(target=self._worker, args=(ctypes.addressof(line), ctypes.addressof(self._functions)),
                                  name=f"tinygrad CPU {number}", daemon=True)
        thread.start()
      except (OSError, RuntimeError): break  # as many as the system allows
      self.workers.append(thread)
    self.size = 1 + len(self.workers)
    for number in range(self.size): self._line(number)[POOL] = self.size

def _compiled(bodies: dict[str, UOp]) -> dict[str, CPUProgram]:
  """Machine code, in memory as long as it is held."""
  device = cast(CPUDevice, Device["CPU"])
  clang = ClangRenderer(replace(device.renderer.target, renderer="CLANG"))
  with Context(EMULATED_DTYPES="", TRACK_MATCH_STATS=0):
    return {name: CPUProgram(device, to_program(body.sink(arg=KernelInfo(name), tag=1), clang).to_elf())
            for name, body in bodies.items()}

def _function(code: CPUProgram, pointers: int) -> Callable[..., None]:
  return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * pointers)(code.addr)

def _address(name: str) -> int: return ctypes.cast(getattr(libc.dll, name), ctypes.c_void_p).value or 0

def _wake_up_call() -> tuple[int, int]:
  """Descriptors to read 8 bytes from, which waits for them, and to write them to."""
  if hasattr(os, "eventfd"): return (fd := os.eventfd(0)), fd
  pipe = os.pipe()
  os.set_blocking(pipe[1], False)
  return pipe

@functools.cache
def pool() -> Pool:
  """The process's pool: as many threads as tinygrad lets a kernel have, one if `threads` is off or on Windows."""
  return Pool(NUM_CPU_THREADS.value if is_on("threads") and not WIN else 1)

if hasattr(os, "register_at_fork"): os.register_at_fork(after_in_child=pool.cache_clear)  # threads stay behind
