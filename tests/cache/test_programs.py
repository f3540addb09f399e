"""cache/programs.py: kernels that an earlier process lowered and compiled are read from disk, and are the same."""
import hashlib, os, pathlib, re, struct, subprocess, sys
from dataclasses import replace
import numpy as np
import pytest
from tinygrad import Device, Tensor, TinyJit, UOp, dtypes, helpers
from tinygrad.engine import realize
from tinygrad.helpers import Context
from tinygrad.uop.ops import sym_infer
import tinygrad_llm  # noqa: F401  # applies the patches
from tinygrad_llm.patches.cache import programs, disk_cache
from tinygrad_llm.progress import BACK, BELOW

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(realize.lower_and_compile is not programs.lower_and_compile, reason="it is off")

# runs some kernels; prints the number of kernels lowered in this process, and the result
CODE = """
import sys, tinygrad_llm, numpy as np
from tinygrad import Tensor, Device, codegen
from tinygrad_llm.patches.cache import programs
lowered = []
stock = codegen.full_rewrite_to_sink
def counted(ast, *args, **kwargs):
  lowered.append(ast)
  return stock(ast, *args, **kwargs)
codegen.full_rewrite_to_sink = counted
%s
def main():
  Device["CPU"]
  x = Tensor(np.arange(48, dtype=np.float32).reshape(6, 8))
  y = ((x @ x.T).softmax() + x.sum()).realize()
  z = (x.cast("half") * 2 + 1).cumsum(1).realize()
  print(len(lowered), y.numpy().tobytes().hex() + z.numpy().tobytes().hex())
if __name__ == "__main__": main()
"""

def process(folder: pathlib.Path, before: str = "", **env: str) -> tuple[int, str]:
  """(kernels that a fresh process lowers itself, their results)."""
  (file := folder / "code.py").write_text(CODE % before)
  done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, cwd=ROOT, timeout=300, env={
    **os.environ, "PYTHONPATH": str(ROOT), "CACHEDB": str(folder / "cache.db"), "DEV": "CPU",
    "NO_KERNEL_CHAINS": "1", **env})
  assert done.returncode == 0, done.stderr
  count, result = done.stdout.splitlines()[-1].split()
  return int(count), result

def entries(folder: pathlib.Path) -> list[pathlib.Path]:
  kept = folder / "cache.db.d" / "programs"
  return sorted(kept.iterdir()) if kept.exists() else []

def test_a_second_process_lowers_nothing(tmp_path):
  first, result = process(tmp_path)
  assert first == len(entries(tmp_path)) > 6  # with the CPU device's own four
  assert process(tmp_path) == (0, result)

@pytest.mark.parametrize("switch", ["NO_PROGRAMS", "NO_PATCHES"])
def test_disabled_by_switch(tmp_path, switch):
  first, result = process(tmp_path, PARALLEL="0", **{switch: "1"})
  assert first > 6 and entries(tmp_path) == []
  assert process(tmp_path, PARALLEL="0", **{switch: "1"}) == (first, result)

@pytest.mark.parametrize("env", [{"CCACHE": "0"}, {"CACHELEVEL": "0"}, {"DEBUG": "3"}])
def test_disabled_by_ccache_cachelevel_and_debug(tmp_path, env):
  first, result = process(tmp_path)
  before = entries(tmp_path)
  assert process(tmp_path, **env) == (first, result)
  assert entries(tmp_path) == before

def test_damaged_entries_are_rebuilt(tmp_path):
  """A truncated entry, an empty one, and one with a right checksum of wrong bytes are made again."""
  first, result = process(tmp_path)
  files = entries(tmp_path)
  sound = [file.read_bytes() for file in files]
  files[0].write_bytes(sound[0][:100])
  files[1].write_bytes(b"")
  files[2].write_bytes(hashlib.sha256(b"no pickle").digest() + b"no pickle")
  assert process(tmp_path) == (3, result)
  assert entries(tmp_path) == files
  assert process(tmp_path) == (0, result)

def test_compile_workers_cache_their_kernels(tmp_path):
  """At PARALLEL=2, patched workers lower all but the first kernel of each batch, and cache them."""
  workers = "programs.start = 0"
  alone, result = process(tmp_path, PARALLEL="0")
  count = len(entries(tmp_path))
  (apart := tmp_path / "apart").mkdir()
  first, again = process(apart, workers, PARALLEL="2")
  assert again == result and first < alone
  assert len(entries(apart)) == count
  assert [file.name for file in entries(apart)] == [file.name for file in entries(tmp_path)]
  assert process(apart, PARALLEL="0") == (0, result)

def test_compiler_errors_are_reported_unchanged(tmp_path):
  (bad := tmp_path / "clang").write_text("#!/bin/sh\ncat > /dev/null\nexit 3\n")
  bad.chmod(0o755)
  with pytest.raises(AssertionError, match="CalledProcessError"): process(tmp_path, CC=str(bad))
  assert entries(tmp_path) == []

def test_beam_caches_only_the_winner(tmp_path):
  # threads and dispatch have kernels of their own; without beam_search, tinygrad's own search lowers candidates here
  env = {"NO_THREADS": "1", "NO_DISPATCH": "1", "NO_BEAM_SEARCH": "1", "PARALLEL": "0"}
  beam = {**env, "BEAM": "1", "BEAM_UOPS_MAX": "500"}
  first, result = process(tmp_path, **env)
  plain = len(entries(tmp_path))
  searched, again = process(tmp_path, **beam)
  np.testing.assert_allclose(*(np.frombuffer(bytes.fromhex(x)[:144], np.float32) for x in (result, again)), rtol=1e-5)
  assert searched > 3 * first
  assert len(entries(tmp_path)) == 2 * plain - 4  # all kernels under other keys, except the CPU device's own
  assert process(tmp_path, **beam) == (0, again)
  assert process(tmp_path, **beam | {"BEAM_UOPS_MAX": "501"})[0] > 0
  assert process(tmp_path, **env) == (0, result)

# *** one kernel

@pytest.fixture
def folder(tmp_path, monkeypatch) -> pathlib.Path:
  monkeypatch.setattr(helpers, "CACHEDB", str(tmp_path / "cache.db"))
  return tmp_path

def call(rows: int = 64) -> UOp:
  """A matvec over a symbolic number of rows."""
  n = UOp.variable("n", 1, rows).bind(3)
  linear, _ = (Tensor.empty(rows, 32)[:n].float() @ Tensor.empty(32)).linear_with_vars()
  return linear.src[-1]

def test_cached_program_holds_only_used_fields(folder):
  """A cached program keeps sizes, parameters, estimates, opts, source and binary, and little else."""
  sink, renderer = call().src[0], Device["CPU"].renderer
  full, kept = programs._do_to_program(sink, renderer), programs.do_to_program(sink, renderer)
  read = programs.get(sink, renderer)
  assert read is kept and len(read.toposort()) < len(full.toposort()) / 2
  assert read.arg == full.arg
  assert [s.arg for s in read.src[2:]] == [s.arg for s in full.src[2:]]
  a, b = read.to_elf(), full.to_elf()
  assert (a.lib, a.name, a.target, a.signature) == (b.lib, b.name, b.target, b.signature)
  assert read.src[0].arg.applied_opts == full.src[0].arg.applied_opts
  assert read.src[0].arg.axis_types == full.src[0].arg.axis_types
  for values in ({"n": 1}, {"n": 7}, {"n": 64}):
    assert read.arg.launch_dims(values) == full.arg.launch_dims(values)
    for field in ("ops", "lds", "mem"):
      x, y = (getattr(p.src[0].arg.estimates, field) for p in (read, full))
      assert sym_infer(x, values) == sym_infer(y, values)

def test_key_depends_on_everything_that_changes_a_kernel(folder, monkeypatch):
  """Everything that changes a kernel changes its key."""
  sink, renderer = call().src[0], Device["CPU"].renderer
  key = programs.key(sink, renderer)
  assert programs.key(call().src[0], renderer) == key
  others = [programs.key(call(65).src[0], renderer), programs.key(sink.replace(tag=1), renderer),
            programs.key(sink.replace(arg=replace(sink.arg, beam=2)), renderer),
            programs.key(sink.replace(arg=replace(sink.arg, opts_to_apply=())), renderer)]
  with Context(NOOPT=1): others.append(programs.key(sink, renderer))
  with Context(NUM_CPU_THREADS=7): others.append(programs.key(sink, renderer))
  monkeypatch.setattr(disk_cache, "patch_set", lambda: "others")
  others.append(programs.key(sink, renderer))
  monkeypatch.undo()
  monkeypatch.setattr(disk_cache, "machine", lambda: "another")
  others.append(programs.key(sink, renderer))
  monkeypatch.undo()
  monkeypatch.setattr(disk_cache, "TINYGRAD", "0.14.1")
  others.append(programs.key(sink, renderer))
  monkeypatch.undo()
  monkeypatch.setenv("MV_ROWS_PER_THREAD", "2")
  others.append(programs.key(sink, renderer))
  assert len({key, *others}) == 1 + len(others) and None not in others
  with Context(CCACHE=0): assert programs.key(sink, renderer) is None
  with Context(IGNORE_BEAM_CACHE=1):
    assert programs.key(sink, renderer) is not None
    assert programs.key(sink.replace(arg=replace(sink.arg, beam=2)), renderer) is None

def test_tinygrad_compile_cache_key_contains_machine():
  assert Device["CPU"].renderer.compiler.cachekey.endswith(disk_cache.machine())

def test_identical_kernels_are_lowered_once(folder, monkeypatch):
  """Identical kernels of a schedule, of later schedules and of other jits are lowered once, whatever their buffers."""
  (Tensor.empty(64, 64) @ Tensor.empty(64, 64)).realize()  # compiles the device's own programs first
  lowered = []
  stock = programs._do_to_program
  monkeypatch.setattr(programs, "_do_to_program", lambda ast, renderer: lowered.append(ast) or stock(ast, renderer))
  def layer(x): return (x * 3.5 + 0.25).contiguous()
  def step(x):
    for _ in range(5): x = layer(x)
    return x
  for _ in range(2):
    jit = TinyJit(step)
    jit.cnt = 1
    jit(Tensor.empty(1237, dtype=dtypes.float32).realize())
  step(Tensor.empty(1237)).realize()
  assert len(lowered) == 1

def test_progress_callback(folder, monkeypatch):
  """Progress is reported for each kernel as (done, total), here and in compile workers."""
  told = []
  monkeypatch.setattr(programs, "progress", lambda done, total: told.append((done, total)))
  Tensor.realize(*[Tensor.empty(100000 + i) * i for i in range(2, 7)])
  assert told == [(i, 5) for i in range(1, 6)]
  del told[:]
  monkeypatch.setattr(programs, "start", 0)
  monkeypatch.setattr(programs, "elsewhere", [])  # tinygrad's workers
  with Context(PARALLEL=2): Tensor.realize(*[Tensor.empty(150000 + i) * i for i in range(2, 7)])
  assert [x for x in told if x[1] == 5] == [(1, 5)] and [x for x in told if x[1] != 5] == [(i, 4) for i in range(1, 5)]
  del told[:]
  def lower(missing, tell):
    for name, task in missing.items():
      programs.to_program_cache[name] = programs.codegen.to_program(*task)
      tell()
  monkeypatch.setattr(programs, "elsewhere", [lambda: (lower, 0)])
  Tensor.realize(*[Tensor.empty(200000 + i) * i for i in range(2, 7)])
  assert told == [(i, 5) for i in range(1, 6)]
  del told[:]
  Tensor.realize(*[Tensor.empty(150000 + i) * i for i in range(2, 7)])
  assert told == []

def test_app_shows_progress_on_terminal_only(tmp_path, model_file):
  """The app shows progress on a terminal, and nowhere else."""
  pty, fcntl, termios = (pytest.importorskip(name) for name in ("pty", "fcntl", "termios"))
  code = "import sys, tinygrad_llm; print([*tinygrad_llm.load(sys.argv[1], progress=True).generate([5], max_tokens=2)])"
  command = [sys.executable, "-c", code, str(model_file(types="F32", layers=1, vocab=384, context=96))]
  env = {**os.environ, "CACHEDB": str(tmp_path / "cache.db"), "DEV": "CPU", "CCACHE": "0", "PARALLEL": "0"}
  done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, env=env)
  assert done.returncode == 0 and done.stderr == ""
  main, side = pty.openpty()
  fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
  child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=side, cwd=ROOT, env=env)
  os.close(side)
  shown = b""
  try:
    while piece := os.read(main, 4096): shown += piece
  except OSError: pass  # the other side is closed
  assert child.wait() == 0 and child.stdout.read().decode() == done.stdout
  assert shown.count(BELOW.encode()) == shown.count(BACK.encode()) == 1  # for the steps after the first token
  for part in shown.split(BELOW.encode()):
    assert part.index(b"scheduling: ") < part.index(b"compiling: ")
    counts = [tuple(map(int, x)) for x in re.findall(rb"compiling: .*? (\d+)/(\d+) ", part)]
    assert len(counts) > 5 and counts[-1][0] == counts[-1][1]
    assert re.search(rb"kernel/s|s/kernel", part) and re.search(rb"\d\d<\d\d:\d\d", part)  # the remaining time
    assert all(done <= total for done, total in counts) and counts == sorted(counts)
