"""host/threads.py and host/thread_pool.py: which threads work, when, and that the results are right."""
import ctypes
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from tests.support import child
import numpy as np
import pytest
from bench import busy
from tests.support.child import run
from tests.support.extended import extended, sample
from tinygrad import Context, Device, Tensor, dtypes
from tinygrad.codegen import to_program
from tinygrad.helpers import WIN
from tinygrad.runtime.ops_cpu import CPUProgram
from tinygrad.uop.ops import KernelInfo, UOp
from tinygrad_llm.files.hub import resolve
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.host import thread_pool

pytestmark = pytest.mark.skipif(WIN or Device.DEFAULT != "CPU" or not is_on("threads"), reason="no threads to test")

# matvec, GEMM, sums, and a chain with a variable, eager and replayed, against float64
NUMBERS = '''
import os, numpy as np, tinygrad_llm
from tinygrad import Tensor, TinyJit, UOp
rng = np.random.default_rng(0)
columns = 16 if os.environ.get("BEAM") else 96  # of a product, for which BEAM has most to try
w, x, m = (rng.standard_normal(s).astype(np.float32) for s in ((1024, 768), (768,), (768, columns)))
W, X, M = (Tensor(a).realize() for a in (w, x, m))
def check(got, wanted): np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-3, atol=1e-3)
wide = w.astype(np.float64)
for _ in range(3):
  check(W @ X, wide @ x)
  check(W @ M, wide @ m)
  check((W * W).sum(0), (wide * wide).sum(0))
@TinyJit
def step(x, n): return ((W @ (x * n)) + 1).realize(), (W[:, :n] @ x[:n]).realize()
n = UOp.variable("n", 1, 768)
for i in (700, 3, 768, 1, 33):
  both = step(Tensor(x * i).realize(), n.bind(i))
  np.testing.assert_allclose(both[0].numpy() / i**2, wide @ x + 1 / i**2, rtol=1e-3, atol=1e-3)
  np.testing.assert_allclose(both[1][:].numpy() / i, wide[:, :i] @ x[:i], rtol=1e-3, atol=1e-3)
from tinygrad_llm.patches.host import thread_pool
print("workers", len(thread_pool.pool().workers))
'''

SETTINGS: list[dict[str, str]] = [
  {"NUM_CPU_THREADS": "5"}, {"NO_DISPATCH": "1"}, {"JIT": "0"}, {"DEV": "CPU:X86"}, {}, {"JIT": "2"}, {"DEBUG": "2"},
  {"PROFILE": "1"}, {"BEAM": "1", "PARALLEL": "2", "NO_BEAM_SEARCH": "1"}]

@pytest.mark.parametrize("env", sample(SETTINGS, SETTINGS[:2]), ids=str)
def test_results_match_reference(env: dict[str, str]):
  env = {"NUM_CPU_THREADS": "2", "DEV": "CPU", **env}
  found, wanted = run(NUMBERS, **env).stdout.splitlines()[-1], f"workers {int(env['NUM_CPU_THREADS']) - 1}"
  assert found == wanted or found == "workers 0" and "BEAM" in env  # the search may find one thread faster

@pytest.mark.parametrize("env", sample([{"NO_THREADS": "1"}, {"HCQ2": "1"}, {"NO_THREADS": "1", "HCQ2": "1"}],
                                       [{"NO_THREADS": "1", "HCQ2": "1"}]), ids=str)
def test_results_without_pass(env: dict[str, str]):
  """Without the pass there are no workers; tinygrad's command queues, which have none, still work."""
  assert run(NUMBERS, NUM_CPU_THREADS="2", DEV="CPU", **env).stdout.splitlines()[-1] == "workers 0"

# *** the pool, with kernels that count the runs of each share

def counting(shares: int) -> CPUProgram:
  """A kernel(counts, by): each share does counts[share] += by."""
  counts, by = UOp.param(0, dtypes.int, (64,)), UOp.variable("by", 0, 99, dtypes.int, param=True)
  share = UOp.variable("core_id", 0, max(shares - 1, 1), dtypes.int, param=True)
  body = counts[share].store(counts[share].load() + by)
  program = to_program(body.sink(arg=KernelInfo(f"counting_{shares}"), tag=1), Device["CPU"].renderer)
  return CPUProgram(Device["CPU"], program.to_elf())

class Counts:
  """A table of launches, the array that they count into, and its expected values."""
  def __init__(self, shares: list[int]):
    self.shares, self.counts = shares, np.zeros(64, np.int32)
    self.programs = {n: counting(n) for n in set(shares)}
    words = [thread_pool.command(self.programs[n], n, [self.counts.ctypes.data, *self._values(n, i + 1)])
             for i, n in enumerate(shares)]
    self.table = thread_pool.Table(words)
    self.wanted = np.zeros(64, np.int32)
    for i, n in enumerate(shares): self.wanted[:n] += i + 1

  def _values(self, n: int, by: int) -> list[int]:
    return [0, by] if self.programs[n].runtimevars["core_id"] == 1 else [by, 0]

@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_every_share_runs_once(size: int):
  """Each share runs once for any number of shares, workers and cores; a launch's other arguments stay."""
  pool, counts = thread_pool.Pool(size), Counts([1, 2, 7, 1, 8, 3, 64, 5])
  for i in range(1, 50):
    pool.run(counts.table)
    np.testing.assert_array_equal(counts.counts, counts.wanted * i)
  assert len(pool.workers) == size - 1

def test_values_of_variables():
  """A run writes each value into all its words first, and no other word."""
  rng, pool, counts = np.random.default_rng(2), thread_pool.Pool(2), Counts([2, 1, 3, 2])
  places = [at + thread_pool.HEAD + 1 for at in counts.table.at]  # of `by`
  if counts.programs[2].runtimevars["core_id"] == 1: places = [place + 1 for place in places]
  values, before = counts.table.bind([[places[0], places[3]], [], [places[2]]]), [*counts.table.words]
  for _ in range(20):
    counts.counts[:], wanted = 0, np.zeros(64, np.int32)
    values[0], values[1], values[2] = one, _, two = rng.integers(0, 100, 3).tolist()
    pool.run(counts.table)
    for shares, by in zip(counts.shares, (one, 2, two, one)): wanted[:shares] += by
    np.testing.assert_array_equal(counts.counts, wanted)
    changed = {i for i, (was, now) in enumerate(zip(before, counts.table.words)) if was != now}
    assert changed <= {places[i] for i in (0, 2, 3)}

def test_workers_start_when_needed():
  pool, one, two = thread_pool.Pool(4), Counts([1, 1]), Counts([1, 2])
  pool.run(one.table)
  assert pool.workers == []
  pool.run(two.table)
  assert len(pool.workers) == 3

def test_no_wakeup_is_lost():
  """Workers wake whether they spin, fall asleep or sleep when the next table comes."""
  pool, counts, runs = thread_pool.Pool(3), Counts([2, 1, 3]), 3000
  rng, worst = np.random.default_rng(0), 0.0
  for i in range(runs):
    worst = max(worst, pool.run(counts.table))
    if i % 2: time.sleep(rng.uniform(0, 100e-6))
    else:
      end = time.perf_counter() + rng.uniform(0, 60e-6)
      while time.perf_counter() < end: pass
  np.testing.assert_array_equal(counts.counts, counts.wanted * runs)

def test_concurrent_callers():
  """One table runs at a time."""
  pool, counts = thread_pool.Pool(2), Counts([2, 3, 1, 2])
  callers = [threading.Thread(target=lambda: [pool.run(counts.table) for _ in range(500)]) for _ in range(3)]
  for t in callers: t.start()
  for t in callers: t.join()
  np.testing.assert_array_equal(counts.counts, counts.wanted * 1500)

def test_empty_table(): assert thread_pool.Pool(2).run(thread_pool.Table([])) < 1

def test_too_many_arguments():
  with pytest.raises(AssertionError, match="at most 63"): thread_pool.command(counting(1), 1, [0] * 64)

def test_more_shares_than_pool_threads():
  """Kernels with more shares than the pool has threads work: tinygrad's limit may be raised after the pool started."""
  w, x = np.ones((2048, 1024), np.float32), np.arange(1024, dtype=np.float32)
  W, X = Tensor(w).realize(), Tensor(x).realize()
  with Context(NUM_CPU_THREADS=8): y = (W * 2 @ X).realize()
  np.testing.assert_allclose(y.numpy(), w @ x * 2, rtol=1e-5)

def test_two_devices():
  w, x = (np.random.default_rng(i).standard_normal(s).astype(np.float32) for i, s in enumerate(((1024, 768), (768,))))
  for device in ("CPU:1", "CPU"):
    y = Tensor(w, device=device).realize() @ Tensor(x, device=device).realize()
    np.testing.assert_allclose(y.numpy(), w @ x, rtol=1e-3, atol=1e-3)

# *** CPU time

def matvec(rows: int = 4096) -> tuple[Tensor, Tensor]:
  return Tensor.ones(rows, 4096).contiguous().realize(), Tensor.ones(4096).contiguous().realize()

def processor_times(w: Tensor, x: Tensor) -> tuple[float, float, float]:
  """Seconds of ten products: wall time, CPU time of the caller, CPU time of the other threads."""
  start = time.perf_counter(), time.thread_time(), time.process_time()
  for _ in range(10): (w @ x).realize()
  wall, caller, both = (b - a for a, b in zip(start, (time.perf_counter(), time.thread_time(), time.process_time())))
  return wall, caller, both - caller

@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core")
def test_both_cores_work():
  """The worker computes a good part of each product, in parallel with the caller if a core is free."""
  w, x = matvec()
  tries = []
  for _ in range(6):
    with Context(NUM_CPU_THREADS=1):
      (w @ x).realize()
      alone = processor_times(w, x)
    (w @ x).realize()
    wall, caller, worker = processor_times(w, x)
    assert alone[2] < alone[1] / 4, "a kernel of one thread wakes the worker"
    # the worker's half of the product; the rest of the caller's time is Python's. If another process has the core, the
    # caller computes both halves
    tries.append((caller + worker) / wall)
    if tries[-1] > 1.4 and worker > alone[1] / 8: return
  pytest.skip(f"the machine is busy: {tries}")

def test_idle_threads_use_no_cpu_time():
  w, x = matvec(1024)
  (w @ x).realize()
  assert thread_pool.pool().workers
  time.sleep(0.01)
  before = time.process_time()
  time.sleep(0.5)
  assert time.process_time() - before < 0.05

# *** processes

@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork():
  done = run('''
import os, signal, numpy as np, tinygrad_llm
from tinygrad import Tensor
from tinygrad_llm.patches.host import thread_pool
w = Tensor.ones(2048, 1024).contiguous().realize()
def total(n): return float((w @ Tensor.full((1024,), n).contiguous()).realize().sum().item())
first = total(1)
if (child := os.fork()) == 0:
  signal.alarm(60)
  os._exit(0 if total(2) == 2 * first and len(thread_pool.pool().workers) == 1 else 1)
print(os.waitpid(child, 0)[1], total(3) == 3 * first)  # not before: tinygrad's memory is the parent's and the child's
''', NUM_CPU_THREADS="2", DEV="CPU")
  assert done.stdout == "0 True\n"

def test_interrupt():
  """Ctrl-C ends a launch between two kernels, and the next one is right."""
  done = run('''
import signal, sys, numpy as np, tinygrad_llm
from tinygrad import Tensor
w, x = Tensor.ones(2048, 1024).contiguous().realize(), Tensor.ones(1024).contiguous().realize()
(w @ x).realize()
# Python drops what is raised inside a __del__ (tinygrad's UOps have one): then it is pressed again
press = lambda *_: signal.setitimer(signal.ITIMER_REAL, 0.1)
sys.unraisablehook = press
for i in range(5):
  signal.signal(signal.SIGALRM, signal.default_int_handler)
  press()
  try:
    while True: (w @ x).realize()
  except KeyboardInterrupt: print("stopped")
  assert ((w @ x).numpy() == 1024).all()
''', NUM_CPU_THREADS="2", DEV="CPU")
  assert done.stdout == "stopped\n" * 5

# *** a free thread takes the next share

def without_workers(monkeypatch: pytest.MonkeyPatch, size: int) -> thread_pool.Pool:
  """A pool whose workers have started but never get a core."""
  monkeypatch.setattr(threading.Thread, "start", lambda self: None)
  return thread_pool.Pool(size)

@pytest.mark.parametrize("size", [2, 5])
def test_caller_runs_unclaimed_shares(monkeypatch: pytest.MonkeyPatch, size: int):
  pool, counts = without_workers(monkeypatch, size), Counts([1, 2, 7, 1, 8, 3, 64, 5])
  for i in range(1, 4):
    pool.run(counts.table)
    np.testing.assert_array_equal(counts.counts, counts.wanted * i)

@pytest.mark.parametrize("active", [1, 2, 3])
def test_fewer_threads_than_shares(active: int):
  """Active threads also run the shares of the resting ones."""
  pool, counts = thread_pool.Pool(8), Counts([8, 2, 64, 1, 7])
  pool.run(counts.table)
  for i in range(2, 200):
    pool.head.limit = pool.head.active = active
    pool._looked = time.perf_counter()
    pool.run(counts.table)
    np.testing.assert_array_equal(counts.counts, counts.wanted * i)
  assert pool.head.active <= active

@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_no_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch):
  """The pool notices changes of its threads' CPU affinity while it runs, and uses no more threads than cores."""
  monkeypatch.setattr(thread_pool, "CORES_EVERY", 0)
  pool, counts, mine = thread_pool.Pool(8), Counts([8, 8]), os.sched_getaffinity(0)
  pool.run(counts.table)
  threads = [0, *(t.native_id or 0 for t in pool.workers)]
  try:
    for cores in ({min(mine)}, mine):
      for thread in threads: os.sched_setaffinity(thread, cores)
      pool.run(counts.table)
      assert pool.head.limit == min(8, len(cores)) >= pool.head.active
  finally: os.sched_setaffinity(0, mine)
  np.testing.assert_array_equal(counts.counts, counts.wanted * 3)

class Calls:
  """A table of one launch of a Python function of the share. seen: (share, thread) of each call."""
  def __init__(self, shares: int, function: Callable[[int], object]):
    self.seen: list[tuple[int, int]] = []
    def kernel(share: int) -> None:
      self.seen.append((share, threading.get_ident()))
      function(share)
    self.kernel = ctypes.CFUNCTYPE(None, ctypes.c_uint64)(kernel)
    address = ctypes.cast(self.kernel, ctypes.c_void_p).value or 0
    self.table = thread_pool.Table([[address, shares, 0, thread_pool.HEAD + 1, 0]])

def test_slow_workers_are_rested():
  """A worker that delays a launch rests afterwards, except for a trial now and then."""
  begun, pool, even = threading.Event(), thread_pool.Pool(2), Counts([2] * 50)
  late = Calls(2, lambda share: (begun.set(), time.sleep(0.05)) if share else begun.wait(30))
  pool._looked = time.perf_counter() + 3600  # skips the check of cores, so that it works on one core, too
  pool.run(late.table)
  assert sorted(share for share, _ in late.seen) == [0, 1] and len({thread for _, thread in late.seen}) == 2
  assert pool.head.active == 1
  pool.run((two := Calls(2, lambda share: None)).table)
  assert {thread for _, thread in two.seen} == {threading.get_ident()}
  end = time.monotonic() + 60
  while pool.head.active == 1 and time.monotonic() < end: pool.run(even.table)
  assert pool.head.active == 2

def test_free_worker_takes_more_shares():
  """While the caller is busy with one share, a worker runs all others."""
  done, pool, first = threading.Semaphore(0), thread_pool.Pool(6), Counts([6])
  calls = Calls(6, lambda share: done.release() if share else [done.acquire(timeout=30) for _ in range(5)])
  pool.run(first.table)  # starts the workers
  pool._looked, pool.head.limit, pool.head.active = time.perf_counter() + 3600, 2, 2
  pool.run(calls.table)
  workers = {thread for share, thread in calls.seen if share}
  assert sorted(share for share, _ in calls.seen) == list(range(6)) and threading.get_ident() not in workers

STRESS = '''
import faulthandler, os, random, sys, threading, time
faulthandler.dump_traceback_later(120, exit=True)
import numpy as np, tinygrad_llm
sys.path += {paths!r}
from tests.host.test_threads import Counts
from tinygrad_llm.patches.host import thread_pool
rng, cores = random.Random({seed}), sorted(os.sched_getaffinity(0))
tables = [Counts([rng.choice((1, 2, 3, 4, 7, 8, 64)) for _ in range(rng.randint(1, 30))]) for _ in range(6)]
pools = [thread_pool.Pool(size) for size in (2, 3, 5, 8)]
thread_pool.CORES_EVERY = 0.001
def answer(mine, runs):
  for i in range(1, runs + 1):
    pool = rng.choice(pools)
    pool.run(mine.table)
    np.testing.assert_array_equal(mine.counts, mine.wanted * i)
    if i % 16 == 0: time.sleep(rng.random() * .004)  # some fall asleep
    if i % 50 == 0:                                  # others move, or share a core with all
      for thread in pool.workers: os.sched_setaffinity(thread.native_id, rng.choice((cores, cores[:1], cores[-1:])))
  done.append(mine)
done = []
stop = threading.Event()
def forks():
  while not stop.wait(.01):
    if (child := os.fork()) == 0:
      fresh = Counts([2, 8, 1])
      thread_pool.pool().run(fresh.table)
      os._exit(0 if (fresh.counts == fresh.wanted).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    forked.append(child)
forked = []
threads = [threading.Thread(target=answer, args=(t, 400)) for t in tables]
forker = threading.Thread(target=forks)
for t in (forker, *threads): t.start()
for t in threads: t.join()
stop.set()
forker.join()
print(len(done), len(forked) > 0)
'''

@pytest.mark.skipif(not hasattr(os, "fork") or not hasattr(os, "sched_setaffinity"), reason="Linux only")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=extended) for seed in range(1, 20))])
def test_stress(seed: int):
  """Stress: concurrent launches, forks in between, and workers that change cores beside a busy loop."""
  loop = subprocess.Popen([sys.executable, "-c", "while True: pass"])
  try: done = run(STRESS.format(seed=seed, paths=[str(child.ROOT)]),
                  DEV="CPU", NUM_CPU_THREADS="4")
  finally:
    loop.kill()
    loop.wait()
  assert done.stdout == "6 True\n"

@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork_while_another_thread_launches():
  """A forked child makes its own pool, even if another thread held the parent's locks."""
  done = run('''
import os, signal, threading
import tinygrad_llm
from tinygrad import Tensor
from tinygrad_llm.patches.host import thread_pool
w = Tensor.ones(2048, 1024).contiguous().realize()
def total(): return float((w @ Tensor.ones(1024).contiguous()).realize().sum().item())
first = total()
for held in (thread_pool.pool()._lock, thread_pool._making):
  with held:
    if (child := os.fork()) == 0:
      signal.alarm(60)
      os._exit(0 if total() == first else 1)
  print(os.waitpid(child, 0)[1])
''', NUM_CPU_THREADS="2", DEV="CPU")
  assert done.stdout == "0\n0\n"

@extended
@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", lambda _: [0])(0)) < 2, reason="one core")
@pytest.mark.parametrize("case", ["affinity", "moved", "pinned"])
def test_speed_with_fewer_cores_than_threads(case: str):
  """With fewer free cores than threads, speed is at least 0.8 of that with one thread a core (see bench/busy.py)."""
  found = busy.measure(str(resolve(None)), case, [1, 2, 8], [child.ROOT], 64, 20)
  median = {threads: statistics.median(speeds) for (threads, _), speeds in found.items()}
  few = busy.free_cores(case)
  for threads in (2, 8): assert median[threads] >= 0.8 * median[min(threads, few)], median
