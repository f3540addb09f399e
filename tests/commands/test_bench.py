"""bench: llama-bench's terms and formats, peers that take turns in processes of their own, and the device check."""
import argparse
import csv
import importlib.util
import io
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import textwrap
import time

from tests.support import child
import numpy as np
import pytest
from tests.support.extended import extended, some
from gguf import GGUFReader
from tests.support.synthetic import write_model
import tinygrad_llm
from bench import gpu_check, lowering, models, peers
from bench.published import published
from bench.peer import CachedPositions, Peer, PeerFailed
from bench.random_model import TINY, quant_named, random_rows, write_random
from tinygrad_llm import InputError
from tinygrad_llm.bench import ModelInfo, Result, Runner, Test, deviation, make_tests, numbers, random_tokens, report
from tinygrad_llm.device.bandwidth import ReadBandwidth
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.patches import PATCHES
from tinygrad_llm.quants.table import QUANT_TYPES, reference

ROOT = pathlib.Path(__file__).parents[2]
Test.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a class of tests

@pytest.fixture(scope="module")
def model(model_file): return str(model_file(types="Q8_0", vocab=384, context=96))

def command(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
  return subprocess.run([sys.executable, *args], capture_output=True, text=True, cwd=ROOT, timeout=300,
                        env={**os.environ, "DEV": "CPU", **(env or {})})

def bench(*args: str, **options) -> subprocess.CompletedProcess:
  return command("-m", "tinygrad_llm.bench", *args, **options)

# *** tinygrad_llm.bench

@pytest.mark.parametrize(("texts", "values"), [
  (["512"], [512]), (["16,32"], [16, 32]), (["16", "32,64"], [16, 32, 64]), (["1-4"], [1, 2, 3, 4]),
  (["64-256+64"], [64, 128, 192, 256]), (["1-9+4,0"], [1, 5, 9, 0]), (["64-600*2"], [64, 128, 256, 512]),
  (["7-7*0"], [7]), (["0"], [0])])
def test_number_list_argument(texts, values): assert numbers("-p", texts) == values

@pytest.mark.parametrize("text", ["", "x", "-1", "1,,2", "1-", "4-2", "1-9*1", "0-9*2", "1-9+0", "1.5", "1-2-3",
                                  "1-100000", "99999999999", "9" * 5000, "\u0663"])
def test_bad_number_list_argument(text):
  with pytest.raises(InputError, match="^-p"): numbers("-p", [text])

def test_tests_are_named_and_ordered_as_in_llama_bench():
  names = [test.name for test in make_tests([512, 0, 64], [128], [0, 32])]
  assert names == ["pp512", "pp64", "tg128", "pp512 @ d32", "pp64 @ d32", "tg128 @ d32"]

@pytest.mark.parametrize(("arguments", "kept"), [
  ({"tied": True}, {}), ({"tied": False}, {"token_embd.weight": 1 / 384}),
  ({"arch": "qwen3moe"}, {"token_embd.weight": 1 / 384, "_exps.": 2 / 8})])
def test_bytes_per_token(model_file, arguments, kept):
  """Against gguf-py's reader: an untied embedding counts as one row, and two of eight experts are read."""
  path = model_file(types="Q8_0", vocab=384, context=96, **arguments)
  tensors = GGUFReader(path).tensors
  info = ModelInfo.from_gguf(open_gguf(path))
  share = [next((part for key, part in kept.items() if key in t.name), 1) for t in tensors]
  assert info.bytes_per_token == round(sum(int(t.n_bytes) * part for t, part in zip(tensors, share)))
  assert (info.size, info.n_params) == (sum(int(t.n_bytes) for t in tensors), sum(int(t.n_elements) for t in tensors))
  assert info.name.startswith(arguments.get("arch", "llama")) and info.name.endswith("Q8_0")

def test_mtp_layers_are_not_counted(tmp_path):
  path = write_model(tmp_path / "m.gguf", types="Q8_0", layers=3, kv={"llama.nextn_predict_layers": 1})
  last = sum(int(t.n_bytes) for t in GGUFReader(path).tensors if t.name.startswith("blk.2."))
  assert ModelInfo.from_gguf(open_gguf(path)).size == sum(int(t.n_bytes) for t in GGUFReader(path).tensors) - last

@pytest.fixture(scope="module")
def runner(model):
  """A runner that decodes with float32 activations, so that its logits equal prefill's."""
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("NO_Q8_ACTIVATIONS", "1")
    return Runner(tinygrad_llm.load(model, max_context=64, chunk=16), random_tokens(384, 64))

@extended
@pytest.mark.parametrize(("depth", "n"), [(0, 5), (0, 20), (7, 5), (18, 20)])
def test_timed_runs_compute_the_model(runner, depth, n):
  want = runner.llm.logits(runner.ids[:depth + n])[-1]
  close = {"rtol": 1e-3, "atol": 1e-3 * want.std()}
  runner.llm.logits(runner.ids[30:])  # fills the cache with another text
  runner.fill(depth)
  np.testing.assert_allclose(runner.prompt(n, depth), want, **close)
  runner.generate(n - 1, depth)  # writes the same again
  np.testing.assert_allclose(runner.step(depth + n - 1), want, **close)

def test_only_the_repetition_is_timed(runner, monkeypatch):
  fed = []
  monkeypatch.setattr(runner, "prompt", lambda n, depth=0: fed.append(("prompt", n, depth)))
  monkeypatch.setattr(runner, "step", lambda i: (time.sleep(0.01), fed.append(i)))
  monkeypatch.setattr(runner, "fill", lambda depth: (time.sleep(0.2), fed.append(("fill", depth))))
  samples = runner.run(Test(0, 4, 8), 3)
  assert fed == [("fill", 8), 8, 9, 10, *[("fill", 8), 8, 9, 10, 11] * 3]
  assert len(samples) == 3 and all(0.04 <= ns / 1e9 < 0.15 for ns in samples)
  runner.run(Test(6, 0, 2), 2)
  assert fed[-6:] == [("fill", 2), ("prompt", 6, 2)] * 3

def test_mean_and_deviation_of_samples():
  info = ModelInfo("llama", 1, 1, 2_000_000, 1, 1)
  result = Result("m", info, Test(0, 10), "CPU", 256, "", [10**9, 2 * 10**9])
  fields = result.fields()
  assert (fields["avg_ns"], fields["avg_ts"]) == (1_500_000_000, 7.5)
  assert fields["stddev_ts"] == pytest.approx(np.std([10, 5], ddof=1))
  assert fields["stddev_ns"] == pytest.approx(np.std(result.samples, ddof=1), abs=1)
  assert fields["avg_gbs"] == 7.5 * 2e6 / 1e9 and deviation([3.0]) == 0
  assert Result("m", info, Test(10, 0), "CPU", 256, "", [10**9]).fields()["avg_gbs"] is None

LLAMA_BENCH = ("build_commit build_number cpu_info gpu_info backends model_filename model_type model_size "
               "model_n_params n_batch n_ubatch n_threads type_k type_v n_prompt n_gen n_depth test_time avg_ns "
               "stddev_ns avg_ts stddev_ts").split()

def test_json_output(model):
  done = bench("-m", model, "-p", "8", "-n", "4", "-d", "0,16", "-r", "3", "-o", "json", env={"NUM_CPU_THREADS": "1"})
  assert done.returncode == 0, done.stderr
  reports = json.loads(done.stdout)
  assert [(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in reports] == [(8, 0, 0), (0, 4, 0), (8, 0, 16), (0, 4, 16)]
  for r in reports:
    assert list(r)[:len(LLAMA_BENCH)] == LLAMA_BENCH
    assert r["model_filename"] == model and r["backends"] == "CPU" and r["n_threads"] == 1
    assert r["samples_ts"] == [(r["n_prompt"] + r["n_gen"]) * 1e9 / ns for ns in r["samples_ns"]]
    assert len(r["samples_ns"]) == 3 and min(r["samples_ns"]) > 0
    assert r["avg_ts"] == pytest.approx(statistics.mean(r["samples_ts"]))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", r["test_time"])
    assert r["model_size"] / 2 < r["device_memory_bytes"] < r["peak_memory_bytes"] < 4 << 30
  assert sorted(peaks := [r["peak_memory_bytes"] for r in reports]) == peaks

@extended
def test_markdown_with_several_models(model, model_file):
  other = str(model_file(types="F16", vocab=384, context=96))
  done = bench("-m", model, "-m", other, "-p", "0", "-n", "2", "-r", "2")
  rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if "|" in line]
  assert rows[0] == ["model", "size", "params", "backend", "threads", "test", "t/s", "GB/s", "peak mem"]
  assert [row[0].split()[-1] for row in rows[2:]] == ["Q8_0", "F16"] and [row[5] for row in rows[2:]] == ["tg2", "tg2"]
  assert all(re.fullmatch(r"\d+\.\d\d ± \d+\.\d\d", row[6]) for row in rows[2:])
  assert all(re.fullmatch(r"\d+\.\d\d [MG]iB", row[8]) for row in rows[2:])
  assert len({len(line) for line in done.stdout.splitlines() if "|" in line}) == 1
  assert "build: " in done.stdout

def test_markdown_output(capsys):
  info = ModelInfo("llama 1M Q8_0", 1 << 20, 10**6, 10**6, 1, 1)
  results = [Result("m", info, test, "CPU", 256, "", [10**9, 10**8], 3 << 20) for test in (Test(4, 0), Test(0, 2))]
  report(iter(results), "CPU", "md")
  rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()
          if "|" in line]
  assert rows[0] == ["model", "size", "params", "backend", "threads", "test", "t/s", "GB/s", "peak mem"]
  assert [row[0] for row in rows[2:]] == ["llama 1M Q8_0"] * 2 and [row[5] for row in rows[2:]] == ["pp4", "tg2"]
  assert all(re.fullmatch(r"\d+\.\d\d ± \d+\.\d\d", row[6]) and row[8] == "3.00 MiB" for row in rows[2:])

def test_csv_and_jsonl_output(capsys):
  info = ModelInfo('a "b", c', 1, 1, 1, 1, 1)
  results = [Result("m", info, test, "CPU", 256, "", [10**9, 10**8], 3 << 20) for test in (Test(4, 0), Test(0, 2))]
  report(iter(results), "CPU", "csv")
  head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
  assert head[:len(LLAMA_BENCH)] == LLAMA_BENCH and [len(row) for row in rows] == [len(head)] * 2
  assert [(row[head.index("n_prompt")], row[head.index("n_gen")]) for row in rows] == [("4", "0"), ("0", "2")]
  assert [row[head.index("model_type")] for row in rows] == ['a "b", c'] * 2
  assert [row[head.index("peak_memory_bytes")] for row in rows] == [str(3 << 20)] * 2
  report(iter(results), "CPU", "jsonl")
  lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  assert [line["n_gen"] for line in lines] == [0, 2] and lines[0]["samples_ns"] == [10**9, 10**8]

@pytest.mark.parametrize(("args", "words"), some([
  (["-m", "/none.gguf"], "/none.gguf"), (["-p", "x"], "-p 'x'"), (["-r", "0"], "-r 0"), (["-p0", "-n", "0"], "-p 0"),
  (["-n", "64", "-p", "9", "-d", "64"], "128 positions"), (["-o", "sql"], "-o/--output"), (["--what"], "--what")],
  1, 6))
def test_bad_input_is_one_line(model, args, words):
  done = bench(*(() if "-m" in args else ("-m", model)), *args)
  assert (done.returncode, done.stdout) == (2, "")
  assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and words in done.stderr

# *** peers

FAKE = """
import json, os, sys, time
sys.path.insert(0, {root!r})
from bench.peer import serve
import numpy as np
class Fake:
  def load(self, model, ids, threads, settings):
    print("a library talks")
    self.n, self.ids = 0, ids
    return f"fake {{model}} {{threads}} {{settings}}"
  def time(self, n_prompt, n_gen, n_depth, passes):
    with open({log!r}, "a") as f: print(os.environ["FAKE"], n_prompt, n_gen, n_depth, passes, file=f)
    if os.environ["FAKE"] == "dies" and n_gen > 1: sys.exit("out of luck")
    if os.environ["FAKE"] == "fails" and n_gen > 1: raise ValueError("no\\nluck")
    return int(1e9 * (n_prompt + n_gen) * passes * (0.4 if os.environ["FAKE"] == "slow" else 0.001))
  def logits(self, n):
    x = np.arange(n, dtype=np.float32)
    return {{"nan": x * np.nan, "other": x[::-1].copy(), "short": x[1:]}}.get(os.environ["FAKE"], x)
  def kernels(self): return "others" if os.environ["FAKE"] == "NO_GEMV=1" else "these"
serve(Fake())
"""

class FakeContestant(peers.Contestant):
  script = ""
  def start(self, run):
    self.peer = run.start(self, [sys.executable, self.script], {"FAKE": self.name}, {"s": 1})
    self.logits = self.peer.logits(peers.CHECKED)

@pytest.fixture
def fake(tmp_path, monkeypatch):
  (script := tmp_path / "fake.py").write_text(textwrap.dedent(FAKE).format(root=str(ROOT), log=str(tmp_path / "log")))
  monkeypatch.setattr(FakeContestant, "script", str(script))
  return tmp_path / "log"

def race(names: list[str], tests: list[Test], repetitions: int = 3, bandwidth=None) -> tuple[peers.Run, list]:
  info = ModelInfo("fake 1M Q8_0", 1000, 500, 10**6, 100, 4096)
  run = peers.Run("m.gguf", info, tests, 2, repetitions, 1.0, bandwidth, lambda text: None)
  contestants = [FakeContestant(name) for name in names]
  run.measure(contestants)
  peers.compare(contestants)
  return run, contestants

def test_peers_interleave_and_slow_peers_get_fewer_tokens(fake):
  tests = [Test(0, 128), Test(64, 0, 32)]
  _, (fast, slow) = race(["fast", "slow"], tests)
  calls = [line.split() for line in fake.read_text().splitlines()]
  for test, kind in zip(tests, (2, 1)):
    timed = [call for call in calls if call[kind] != "0"][-6:]
    assert [call[0] for call in timed] == ["fast", "slow"] * 3
    assert all(call[3] == str(test.n_depth) for call in timed)
  assert (fast.samples[tests[0]].tokens, fast.samples[tests[0]].passes) == (128, 8)  # 0.128 s per pass
  assert (slow.samples[tests[0]].tokens, slow.samples[tests[0]].passes) == (4, 1)  # 1.6 s; two would take 0.8 s
  assert (fast.samples[tests[1]].tokens, fast.samples[tests[1]].passes) == (64, 16)
  assert slow.samples[tests[1]].tokens == 16  # 6.4 s; prompts may take 10 s
  assert slow.samples[tests[0]].median == pytest.approx(2.5) and fast.samples[tests[0]].median == pytest.approx(1000)

def test_peer_report(fake):
  class Bandwidth:
    def measure(self): return 10.0
  run, contestants = race(["tinygrad_llm", "slow", "llama.cpp"], [Test(0, 128)], bandwidth=Bandwidth())
  report = peers.model_report(run, contestants)
  ours, slow, llama = report["rows"]
  assert ours["median_ts"] == pytest.approx(1000) and ours["gbs"] == pytest.approx(1.0)
  assert ours["share"] == pytest.approx(0.1) and len(ours["samples_ns"]) == len(ours["bandwidth_gbs"]) == 3
  assert slow["vs"]["llama.cpp"] == pytest.approx(0.0025) and llama["vs"]["tinygrad_llm"] == pytest.approx(1)
  text = peers.table(report, 2)
  assert "| tg128 | slow | 4 | 2.50 | 2.50 - 2.50 | 0.00 | 0% | 0.00 | 0.00 |" in text
  assert "| tg128 | tinygrad_llm | 128 x 8 | 1000.00 |" in text and "the machine reads 10.0 GB/s" in text

def test_failing_peer_is_dropped_and_others_continue(fake):
  test = Test(0, 8)
  _, (well, dies, fails, nan, other, short) = race(["well", "dies", "fails", "nan", "other", "short"], [test])
  assert len(well.samples[test].ns) == 3 and not well.failed and well.kl == 0
  assert dies.failed == "ended with exit code 1: out of luck" and fails.failed == "ValueError: no luck"
  assert "not finite" in nan.failed and "15 logits" in short.failed
  assert other.failed.startswith("its logits are others'")

def test_peers_are_grouped_to_fit_memory(fake, monkeypatch):
  """Memory holds two peers besides this project, which runs with each group of peers."""
  monkeypatch.setattr(peers, "free_memory", lambda: int(4.1 * (1 << 30) / 0.8))
  _, contestants = race(["tinygrad_llm", "a", "b", "c"], [test := Test(0, 128)])
  assert [len(c.samples[test].ns) for c in contestants] == [6, 3, 3, 3]
  assert all(peers.ratio(c.samples[test], contestants[0].samples[test]) == pytest.approx(1) for c in contestants)
  assert all(c.peer.process.poll() is not None for c in contestants)

def test_patches_without_effect_are_not_timed(fake):
  """
  A patch is not timed if the kernels are the same without it, unless it changes how they run, or if its device differs.
  """
  test, names = Test(0, 128), ["tinygrad_llm", "NO_LANES=1", "NO_GEMV=1", "NO_THREADS=1", "stock"]
  run, contestants = race(names, [test])
  assert [len(c.samples[test].ns) for c in contestants] == [3, 0, 3, 3, 3]
  assert "NO_LANES=1: -, the same kernels in tg128" in peers.table(peers.model_report(run, contestants), 2)
  def timed(device: str) -> set[str]: return {name for name in PATCHES if not peers.nothing_to_time(name, device)}
  assert {"gemv", "threads", "lanes", "hooks"} <= timed("CPU") and not {"dot_int8_gpu", "captures"} & timed("CPU")
  assert {"gemv", "dot_int8_gpu", "hooks"} <= timed("CUDA:0") and not {"lanes", "captures"} & timed("CUDA")
  fake.unlink()
  idle = FakeContestant("NO_DOT_INT8_GPU=1")
  idle.idle = "for GPUs"
  run.measure([FakeContestant("tinygrad_llm"), idle])
  assert "NO_DOT_INT8_GPU=1" not in fake.read_text()
  assert "NO_DOT_INT8_GPU=1: -, for GPUs\n" in peers.table(peers.model_report(run, [idle]), 2)

def test_ratio_compares_adjacent_samples():
  """The machine is half as fast in the last two rounds: our ratio stays, but a ratio of medians would not."""
  a = peers.Samples(1, 1, [10, 10, 10, 20, 20], rounds=[1, 2, 3, 4, 5])
  first, last = (peers.Samples(1, 1, [20, 40, 40], rounds=rounds) for rounds in ([1, 2, 3], [3, 4, 5]))
  assert peers.ratio(a, last) == pytest.approx(2) and peers.ratio(a, first) == pytest.approx(4)
  a, b = (peers.Samples(*of, [10, 10, 30], rounds=[1, 2, 3]) for of in ((4, 2), (1, 1)))
  assert peers.ratio(a, b) == pytest.approx(8)

def state(pid: int) -> str: return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]

@pytest.mark.skipif(not pathlib.Path("/proc/self/stat").exists(), reason="the state of a process is read from /proc")
def test_idle_peer_is_suspended(fake):
  peer = Peer([sys.executable, FakeContestant.script], {"FAKE": "x"})
  assert peer.load("m.gguf", [1, 2], 2, {})["version"] == "fake m.gguf 2 {}"
  assert peer.time(0, 3, 0, 2) == 6_000_000
  deadline = time.monotonic() + 5
  while state(peer.process.pid) != "T" and time.monotonic() < deadline: time.sleep(0.01)
  assert state(peer.process.pid) == "T"
  peer.close()
  assert peer.process.returncode == -signal.SIGKILL

def test_peer_that_fails_to_start():
  peer = Peer([sys.executable, "-c", "import nothing_of_that_name"], {})
  with pytest.raises(PeerFailed, match="exit code 1: ModuleNotFoundError: No module named 'nothing_of_that_name'"):
    peer.load("m", [], 1, {})
  peer.close()

def test_prefill_of_depth_is_not_timed():
  """The cache is filled up to the depth, and one token fed, before the clock starts; each pass begins at the depth."""
  class Worker(CachedPositions):
    held, fed = 0, list[tuple[int, int]]()
    def keep(self, n: int) -> None:
      assert n <= self.held
      self.held = n
    def feed(self, first: int, last: int) -> None:
      assert first == self.held < last
      self.held = last
      self.fed.append((first, last))
  worker = Worker()
  for args, wanted in (((3, 0, 0, 2), [(0, 1), (0, 3), (0, 3)]), ((0, 2, 5, 1), [(0, 5), (5, 6), (5, 6), (6, 7)]),
                       ((2, 0, 5, 1), [(5, 6), (5, 7)]), ((0, 1, 0, 1), [(0, 1), (0, 1)])):
    assert worker.time(*args) > 0
    assert worker.fed == wanted
    worker.fed.clear()

def kernel_hash(model: str) -> str:
  from bench.peer_tinygrad import TinygradLLM
  worker = TinygradLLM()
  worker.load(model, [1, 2, 3, 4], 2, {"prompts": False})
  with pytest.raises(ValueError, match="no step has run"): worker.kernels()
  assert worker.time(0, 2, 0, 1) > 0
  return worker.kernels()

@extended
def test_step_hash_changes_with_its_kernels(model_file):
  """The hash of a step's kernels ignores a patch that the step does not use, and changes with one that it uses."""
  model = str(model_file(types="F16", layers=1, context=96))
  found = {env: child.call(kernel_hash, model, **({env: "1"} if env else {})).value
           for env in ("", "NO_TABLE_LOOKUP", "NO_GEMV")}
  assert found[""] == found["NO_TABLE_LOOKUP"] != found["NO_GEMV"]

def test_peer_environments(monkeypatch):
  for switch in ("NO_PATCHES", f"NO_{PATCHES[0].upper()}"): monkeypatch.setenv(switch, "1")
  ours = {**os.environ, **peers.environment("tinygrad_llm")}
  assert all(ours[f"NO_{name.upper()}"] == "0" for name in PATCHES) and ours["NO_PATCHES"] == "0"
  assert peers.environment("stock")["NO_PATCHES"] == "1"
  one = peers.environment("NO_WORKERS=1+BEAM=2")
  assert (one["NO_WORKERS"], one["BEAM"], one["NO_PATCHES"]) == ("1", "2", "0")
  args = argparse.Namespace(peers="stock", ablate=True, llama_python=None)
  names = [c.name for c in peers._contestants(args)]
  assert names == ["tinygrad_llm", "stock", *(f"NO_{name.upper()}=1" for name in PATCHES)]

@extended
def test_lowering_stage_times_add_up(tmp_path):
  """The stages' seconds add up to about the time that it took; a wrong name gives one line."""
  out = tmp_path / "lowering.json"
  done = command("bench/lowering.py", "smollm-135m-Q8_0", "--targets", "CPU:x86-64-v3", "--out", str(out))
  assert done.returncode == 0, done.stderr
  report = json.loads(out.read_text())
  row, = report["rows"]
  seconds = [row[stage] for stage in lowering.COLUMNS]
  assert row["kernels"] >= row["programs"] > 10 and min(seconds) > 0
  assert 0.3 * row["wall"] < sum(seconds) < 2 * row["wall"]  # imports are extra, and clang is another process
  assert done.stdout.split("\n")[1].split()[:3] == ["smollm-135m-Q8_0", "CPU:x86-64-v3", "decode"]
  wrong = command("bench/lowering.py", "nonsense")
  assert wrong.returncode == 2 and wrong.stderr.startswith("error: nonsense: no such case; give of bundled, ")

@extended
def test_peers_end_to_end(model, tmp_path):
  has_llama = importlib.util.find_spec("llama_cpp") is not None
  done = command("bench/peers.py", "-m", model, "--peers", "stock,llama.cpp" if has_llama else "stock", "-p", "8",
                 "-n", "4", "-r", "2", "--seconds", "0.01", "-t", "1", "--json", "--out", str(tmp_path / "out.json"))
  assert done.returncode == 0, done.stderr
  report = json.loads(done.stdout)
  assert json.loads((tmp_path / "out.json").read_text()) == report
  assert report["machine"]["cores"] >= 1 and report["versions"]["tinygrad"] == "0.14.0" and report["threads"] == 1
  of = report["models"][0]
  ours, stock = of["peers"][:2]
  assert [(r["test"], r["peer"]) for r in of["rows"] if r["peer"] != "llama.cpp"] == [
    ("pp8", "tinygrad_llm"), ("pp8", "stock"), ("tg4", "tinygrad_llm"), ("tg4", "stock")]
  assert ours["about"].startswith("tinygrad 0.14.0, patches: ") and stock["about"].endswith("patches: none")
  assert stock["kl"] < 1e-3 and ours["top"] == stock["top"] and of["bandwidth_gbs"][0] > 0
  if has_llama: assert of["peers"][2]["kl"] < 0.1 and {"failed", "ts"} & of["peers"][2]["tried"][0].keys()

@pytest.mark.parametrize(("args", "words"), some([
  ([], "-m/--model"), (["-m", "/none.gguf"], "/none.gguf"), (["--peers", "ollama"], "--peers 'ollama'"),
  (["-t", "0"], "-t 0"), (["--seconds", "0"], "--seconds 0"), (["-p", "500"], "500 positions"),
  (["--llama-python", "/none/python", "-p8", "-n8"], "--llama-python /none/python"),
  (["--llama-python", "/bin/false", "-p8", "-n8"], "llama.cpp is not there")], 0, 7))
def test_peers_bad_input(model, args, words, tmp_path):
  given = ["-m", model] if args and "-m" not in args else []
  done = command("bench/peers.py", *given, *args, "--out", str(tmp_path / "out.json"))
  assert (done.returncode, done.stdout) == (2, "") and words in done.stderr
  assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1

def test_bandwidth_reads_whole_buffer(monkeypatch):
  bandwidth = ReadBandwidth(3, 1 << 20)
  assert sum(part.nbytes for part in bandwidth.parts) == bandwidth.nbytes == 1 << 20 and len(bandwidth.parts) == 3
  read = []
  monkeypatch.setattr(np, "add", type("add", (), {"reduce": staticmethod(lambda part: read.append(part.nbytes))}))
  assert bandwidth.measure() > 0 and sum(read) == 1 << 20

def test_models_are_written_once(monkeypatch, tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  path = models.model("tiny", "MXFP4", 1)
  before = path.stat().st_mtime_ns
  assert path.is_relative_to(tmp_path) and models.model("tiny", "MXFP4", 1) == path
  assert path.stat().st_mtime_ns == before
  assert ModelInfo.from_gguf(open_gguf(path)).name.endswith("MXFP4")

# *** the device check

def test_random_rows_are_finite_and_of_sensible_size():
  for qt in QUANT_TYPES.values(): assert np.isfinite(reference(qt, random_rows(qt, 8, 768, 3), 768)).all(), qt.name
  for name in ("Q4_K", "Q6_K", "Q8_0", "F16"):
    weights = reference(quant_named(name), random_rows(quant_named(name), 64, 1024, 0, 0.5), 1024)
    assert abs(weights.mean()) < 0.05 and 0.4 < weights.std() < 0.6, name

def test_random_model_file_is_read_by_gguf_py(tmp_path):
  reader = GGUFReader(write_random(tmp_path / "m.gguf", TINY))
  assert {t.name for t in reader.tensors} >= {"token_embd.weight", "blk.1.ffn_down.weight", "output_norm.weight"}
  assert len(reader.fields["tokenizer.ggml.tokens"].data) == TINY.vocab
  assert tinygrad_llm.load(str(tmp_path / "m.gguf"), max_context=16).tokenizer.decode([259]) == "w0"

def test_gpu_check_expected_values_match_gguf_py():
  x = gpu_check.check_input().astype(np.float64)
  with np.load(gpu_check.EXPECTED) as file:
    assert set(file.files) == {qt.name for qt in QUANT_TYPES.values()} | {"logits"}
    for qt in QUANT_TYPES.values():
      weights = reference(qt, random_rows(qt, gpu_check.ROWS, gpu_check.N, 0), gpu_check.N).astype(np.float64)
      np.testing.assert_allclose(file[qt.name], weights @ x, rtol=1e-9, atol=1e-9 * np.abs(weights @ x).max())

def check(part: str, env: dict[str, str] | None = None, before: str = "") -> list[list]:
  """The rows of a part of gpu_check, run in a process of its own."""
  code = (f"import sys\n{before}\nsys.path.insert(0, {str(ROOT)!r})\nfrom bench import gpu_check\n"
          f"sys.argv = ['gpu_check.py', '--part', {part!r}, '--small']\ngpu_check.main()\n")
  done = command("-c", code, env=env)
  assert done.returncode == 0, done.stderr
  messages = [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@")]
  return [value for kind, value in messages if kind == "row"]

BARE = """
class Absent:
  def find_spec(self, name, path=None, target=None):
    if name.split(".")[0] in ("gguf", "tqdm", "tokenizers", "jinja2"): raise ModuleNotFoundError(name)
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in ("gguf", "tqdm", "tokenizers") else real(name, *a)
sys.meta_path.insert(0, Absent())
"""

@extended
def test_gpu_check_needs_only_numpy_and_tinygrad():
  (name, right, detail), = check("model", before=BARE)
  assert right is True, detail
  (name, right, detail), = check("weights", before=BARE)
  assert right is True and name == f"matvec of {sum(not qt.grid for qt in QUANT_TYPES.values())} types", detail
  assert "not checked without gguf-py: IQ1_S" in detail

@extended
def test_gpu_check_detects_wrong_results(monkeypatch, tmp_path):
  with np.load(gpu_check.EXPECTED) as file: values = {name: file[name] for name in file.files}
  values["Q5_K"] = values["Q5_K"] + 0.01 * np.abs(values["Q5_K"]).max()
  np.savez(tmp_path / "x.npz", **values)
  monkeypatch.setattr(gpu_check, "EXPECTED", tmp_path / "x.npz")
  monkeypatch.setattr("tinygrad_llm.quants.table.QUANT_TYPES", {1: quant_named("F16"), 13: quant_named("Q5_K")})
  (_, right, detail), = gpu_check.part_weights(argparse.Namespace(), {})
  assert right is False and detail.startswith("wrong: Q5_K 0.01")
  monkeypatch.undo()
  monkeypatch.setattr(gpu_check, "EXPECTED", tmp_path / "x.npz")
  np.savez(tmp_path / "x.npz", logits=values["logits"] + 1)
  assert next(gpu_check.part_model(argparse.Namespace(), {}))[1] is False

def test_gpu_check_reports_failed_and_hanging_parts(monkeypatch, capsys):
  args = argparse.Namespace(small=True, model=None, copy_gbs=0.0, gpu="")
  monkeypatch.setenv("DEV", "CUDA:NONSENSE")
  (row,), _ = gpu_check.run_part("device", args, 60, 0)
  assert row[1] is False and row[2].startswith("failed: ")
  monkeypatch.setenv("DEV", "CPU")
  (row,), _ = gpu_check.run_part("speed", args, 0.3, 0)
  assert row[1] is None and row[2].startswith("stopped after 0 s")
  assert "WRONG" in capsys.readouterr().out

def test_published_figures_match_card_exactly():
  geforce = "NVIDIA GeForce RTX "
  for name, card in {f"{geforce}4090": "RTX 4090", "NVIDIA H100 80GB HBM3": "H100", "METAL Apple M4 Max": "M4 Max",
                     "NVIDIA A100-SXM4-80GB": "A100", f"{geforce}3090 Ti": None, f"{geforce}4090 D": None,
                     f"{geforce}4090 Laptop GPU": None, "NVIDIA A1000": None, "CPU x86_64": None}.items():
    assert getattr(published(name), "card", None) == card, name

def test_gpu_check_shows_estimates_and_published_figures():
  parts = {"speed": {"figures": {"tg128": {"ts": 500.0}, "pp512": {"ts": 20000.0}, "bytes_per_token": 8e8,
                                 "n_params": 1.2e9}},
           "estimates": {"figures": {"tg128": {"us": 1000.0}, "pp512": {"us": 25.0}}}}
  rows = {name: (right, detail) for name, right, detail in gpu_check.beside(parts, "NVIDIA GeForce RTX 4090")}
  assert rows["tg128, of its estimate"] == (None, "50% of the tokens a second")
  assert rows["pp512, of its estimate"] == (None, "50% of the tokens a second")
  assert rows["tg128, of llama.cpp's GB/s"] == (None, f"{400 / (189 * 3.83):.0%}")
  assert rows["pp512, of llama.cpp's TFLOPS"] == (None, f"{48 / (14771 * 6.74e9 * 2 / 1e12):.0%}")
  assert gpu_check.beside({"speed": {"figures": {}}}, "NVIDIA A1000") == []

def gpu_check_without_clang(tmp_path: pathlib.Path, *args: str, before: str = "", **env: str
                            ) -> subprocess.CompletedProcess:
  """Runs the whole command in an environment whose PATH has no clang."""
  code = f"import sys\n{before}\nsys.path.insert(0, {str(ROOT)!r})\nfrom bench import gpu_check\ngpu_check.main()\n"
  out = ["--out", str(tmp_path / "gpu.json")]
  plain = {k: v for k, v in os.environ.items() if k != "CC"} | {"PATH": str(tmp_path), "CACHELEVEL": "0"} | env
  return subprocess.run([sys.executable, "-c", code, *args, *out], capture_output=True, text=True, cwd=ROOT, env=plain)

@extended
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="the ziglang wheel is not installed")
def test_gpu_check_compiles_without_clang_on_path(tmp_path):
  done = gpu_check_without_clang(tmp_path, "--parts", "copy", DEV="CPU")
  assert done.returncode == 0, done.stdout + done.stderr
  assert "| it adds up" in done.stdout and "all numbers are right" in done.stdout
  assert set(json.loads((tmp_path / "gpu.json").read_text())["parts"]) == {"device", "copy"}

@pytest.mark.parametrize(("args", "env", "words"), [
  ((), {"DEV": "CPU"}, "error: CC: no clang on PATH and no ziglang wheel; install clang"),
  (("--parts", "model,no"), {"DEV": "CPU"}, "error: --parts 'no': no such part"),
  (("--nothing",), {"DEV": "CPU"}, "error: bench/gpu_check.py: unrecognized arguments: --nothing")])
def test_gpu_check_names_missing_dependency_in_one_line(tmp_path, args, env, words):
  done = gpu_check_without_clang(tmp_path, *args, before="sys.modules['ziglang'] = None", **env)
  assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith(words) and done.stderr.count("\n") == 1

@pytest.mark.skipif(sys.platform == "darwin", reason="Metal is there")
def test_gpu_check_missing_device_is_one_row(tmp_path):
  done = gpu_check_without_clang(tmp_path, DEV="METAL")
  rows = [line for line in done.stdout.splitlines() if line.startswith("| device")]
  assert done.returncode == 1 and len(rows) == 1 and "failed: DEV=METAL: it does not open" in rows[0]

def test_gpu_check_exit_code(monkeypatch, tmp_path, capsys):
  monkeypatch.setenv("DEV", "CPU")
  monkeypatch.setattr(gpu_check, "PARTS", {"device": gpu_check.PARTS["device"]})
  out = tmp_path / "gpu.json"
  assert gpu_check.parent(argparse.Namespace(small=True, model=None, out=out, parts=None, gpu="")) == 0
  written = json.loads(out.read_text())
  assert written["right"] is True and written["device"] == "CPU" and set(written["parts"]) == {"device"}
  monkeypatch.setenv("DEV", "FOO")
  assert gpu_check.parent(argparse.Namespace(small=True, model=None, out=out, parts=None, gpu="")) == 1
  assert json.loads(out.read_text())["right"] is False and "SOMETHING IS WRONG" in capsys.readouterr().out
