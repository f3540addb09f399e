"""bench --profile: every kernel is in one row, the rows add up to the step, and refusals take one line."""
import csv
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

from tests.support import child
import numpy as np
import pytest
from tests.support.extended import extended, some
import tinygrad_llm
from tests.support.html_page import data_of
from tinygrad import Device
from tinygrad.engine.realize import get_call_arg_uops
from tinygrad.uop.ops import Ops
from tinygrad_llm.analysis.pages.profiled import _scheduled
from tinygrad_llm.analysis.profile import HOST, Kernel, Profile, Row, _Step
from tinygrad_llm.analysis.profile_table import Printer
from tinygrad_llm.analysis.roles import order
from tinygrad_llm.bench import Runner, Test, random_tokens
from tinygrad_llm.device.bandwidth import ReadBandwidth
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.runtime.timed_replay import Launch, timed_replays

ROOT = pathlib.Path(__file__).parents[2]
Test.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a class of tests
on_cpu = pytest.mark.skipif(Device.DEFAULT != "CPU" or not is_on("dispatch"), reason="no batches of the CPU")

@pytest.fixture(autouse=True)
def small_bandwidth(monkeypatch):
  """Measures the peak bandwidth with a small buffer: here only its unit matters."""
  monkeypatch.setattr("tinygrad_llm.analysis.profile.ReadBandwidth", lambda threads: ReadBandwidth(threads, 1 << 20))

@pytest.fixture(scope="module")
def model(model_file): return str(model_file(types="Q8_0", vocab=381, context=96))

@pytest.fixture(scope="module")
def runner(model): return Runner(tinygrad_llm.load(model, max_context=64, chunk=16), random_tokens(384, 64))

ATTENTION = ["attention: KV cache", "attention"]  # of a decode step
OF_PROMPTS = ["attention: KV cache", "attention"]

def kernels_of(linear) -> int:
  return sum(len(call.src[0].src[0].src) if call.src[0].op is Ops.CUSTOM_FUNCTION else 1 for call in linear.src)

@on_cpu
def test_rows_of_a_decode_step(runner):
  profile = runner.profile(Test(0, 3, 4), 2)
  names = [row.name for row in profile.rows]
  assert profile.in_step and names[0] == "embedding" and names[-2:] == ["head", HOST]  # a small head also samples
  assert [name for name in names if name in ATTENTION] == ATTENTION and any("ffn_down" in name for name in names)
  count = kernels_of(runner.llm.engine.steps.linear)
  assert sum(len(row.kernels) for row in profile.rows) == len(profile.kernels) == count
  assert all(len(row.kernels) == runner.llm.config.n_layers for row in profile.rows if row.name in ATTENTION)
  assert len(profile.samples) == 2 and profile.total == sum(row.us for row in profile.rows)
  assert all(kernel.role == "kv" for row in profile.rows if row.name == "attention" for kernel in row.kernels)
  # the timeline is one step without gaps: each kernel once, in order, and the host before, between and after them
  moments = profile.timeline
  assert [m.kernel for m in moments if m.kernel is not None] == [*range(len(profile.kernels))]
  assert (moments[0].kernel, moments[-1].kernel) == (None, None) and moments[0].start == 0
  for a, b in zip(moments, moments[1:]): assert b.start == pytest.approx(a.start + a.us, abs=0.01)

@on_cpu
def test_gap_between_steps(runner):
  """The gap is a part of the host's time; for a step that is one launch, it is nearly all of it."""
  profile = runner.profile(Test(0, 3, 4), 3)
  assert 0 < profile.gap <= profile.rows[-1].us * (1 + 1e-9)
  ends = profile.timeline[0].us + profile.timeline[-1].us  # in the one step that is drawn
  assert 0.1 * ends < profile.gap < 10 * ends
  launches = [Launch(None, 130, 20), Launch(None, 200, 50)]  # type: ignore[arg-type]
  assert _Step(100, 275, [SimpleNamespace(launches=launches)]).gap == 30 + 25  # type: ignore[list-item]

@on_cpu
def test_prefill_rows_cover_all_chunks(runner):
  one, three = (runner.profile(Test(n, 0), 1) for n in (16, 40))  # chunks of 16
  of_one, of_three = ({row.name: len(row.kernels) for row in p.rows} for p in (one, three))
  assert list(of_one) == list(of_three) and "sampling" not in of_one and list(of_one)[0] == "embedding"
  assert all(of_three[name] == 3 * of_one[name] for name in (*OF_PROMPTS, "embedding"))
  assert of_one["head"] <= of_three["head"] < 3 * of_one["head"]  # only the last token has logits
  assert three.rows[0].bytes > one.rows[0].bytes

@extended
@on_cpu
def test_rows_add_up_to_step_time(model_file):
  """
  The rows add up to the step's time within 5% if nothing else runs. Each step runs with and without timed kernels;
  other programs may disturb some of the steps.
  """
  path = str(model_file(types="Q8_0", vocab=4096, dim=256, layers=4, context=96))
  runner = Runner(tinygrad_llm.load(path, max_context=64, chunk=16), random_tokens(384, 64))
  for test in (Test(0, 32), Test(32, 0)):
    off = []
    for _ in range(6):
      profile = runner.profile(test, 60 if test.n_prompt else 10)
      off.append(abs(profile.total / profile.measured - 1))
      if off[-1] < 0.05: break
    assert min(off) < (0.05 if os.getloadavg()[0] < 1 else 0.25), off
    assert sum(row.us for row in profile.rows[:-1]) > 0.1 * profile.total  # kernels take a part of it
    assert ("sampling" in [row.name for row in profile.rows]) == (test.n_gen > 0)
    assert runner.time(test) > 0  # timing still works afterwards

@on_cpu
def test_timed_replay_computes_the_same(runner):
  plain = runner.step(0)
  with timed_replays() as replays:
    start = time.monotonic_ns()
    timed = runner.step(0)
    end = time.monotonic_ns()
  np.testing.assert_array_equal(plain, timed)
  launches = [launch for replay in replays for launch in replay.launches]
  assert start <= launches[0].start and launches[-1].start + launches[-1].ns <= end  # the same clock
  assert all(a.start + a.ns <= b.start for a, b in zip(launches, launches[1:]))
  before = len(replays)
  runner.step(0)
  assert len(replays) == before

@on_cpu
def test_larger_kernel_takes_longer():
  from tinygrad import Tensor, TinyJit
  @TinyJit
  def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return (x + 1).contiguous().realize(), (y.exp().log().exp() + 1).contiguous().realize()
  x, y = Tensor.ones(64).contiguous().realize(), Tensor.ones(1 << 21).contiguous().realize()
  for _ in range(3): step(x, y)
  with timed_replays() as replays: step(x, y)
  little, much = (launch.ns for launch in replays[0].launches)
  assert much > 100_000 > little

def groups_of(path: str) -> tuple[list[str], int]:
  """The groups of a decode step's kernels, and the number of layers, without running any kernel."""
  from tinygrad_llm.analysis.programs import compiled
  from tinygrad_llm.analysis.roles import groups
  from tinygrad_llm.kernels import decode_step
  step = decode_step(path, 64)
  calls = [call for call in compiled(step.linear).src if call.src[0].op is Ops.PROGRAM]
  found = groups(calls, step.weights, kv := {cache.uop.base for cache in step.caches})
  assert found == groups([call for call in step.linear.src if call.src[0].op is Ops.SINK], step.weights, kv)
  return found, len(step.caches)

@extended
@pytest.mark.parametrize(("arch", "wanted"), [
  ("qwen3moe", {"routing", "ffn_down_exps", "input of attn_output"}),
  ("deepseek2", {"attn_k_b", "attn_v_b", "routing", "ffn_down_shexp"}),
  ("gpt-oss", {"routing", "attn_output", "post_attention_norm"})])
def test_groups_of_other_architectures(model_file, arch, wanted):
  """Kernel chaining is off, because in such small models most kernels would be chained."""
  path = str(model_file(arch=arch, types="F16", vocab=381, context=96))
  found, layers = child.call(groups_of, path, NO_KERNEL_CHAINS="1").value
  count = Counter(found)
  assert wanted | {"attn_norm", "attention: KV cache"} <= set(count) and "other" not in count
  assert count["attention"] == layers
  assert not any("sinks" in name for name in count)
  names = order(found)
  assert names[0] == "embedding" and names[-2:] == ["head", "sampling"] and sorted(names) == sorted(count)

def test_group_order():
  """Groups are ordered where layers differ, and where a kernel runs before the layers."""
  rope, one, other = "attention: rope, mask", ["norm", "q+k+v", "input of down", "down"], ["norm", "q+k", "v", "down"]
  assert order([rope, "embedding", *one, *other, rope, *one, "head", "sampling", "head"]) == [
    "embedding", "norm", "q+k", "v", "q+k+v", "input of down", "down", rope, "head", "sampling"]
  assert order([rope, "embedding", "norm", "head"]) == ["embedding", rope, "norm", "head"] and order([]) == []

def made_up() -> Profile:
  class Call:
    def __init__(self, name: str): self.src = [type("Program", (), {"arg": type("Info", (), {"name": name}), "src": [
      type("Sink", (), {"arg": type("Kernel", (), {"applied_opts": ()})}), None, type("Source", (), {"arg": "code"})]})]
  kernels = [Kernel("head", "output", 30.0, 600_000, [2, 1, 1], None, Call("r_2"))] * 2  # type: ignore[arg-type]
  return Profile(True, [Row("head", kernels, 60.0), Row(HOST, [], 40.0)], kernels, 98.0, 40.0, [], [98000],
                 25.0)

def test_bandwidth_figures(capsys):
  """The profile shows 20 GB/s in 60 of 100 us, with a peak of 40 GB/s."""
  for kind in ("md", "json", "jsonl", "csv"):
    printer = Printer(kind)
    printer.add("title", "token", {"n_gen": 1, "samples_ns": [1]}, made_up())
    printer.end("the last line")
  text, rest = capsys.readouterr().out.split("the last line\n")
  cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
  assert cells[0] == ["part", "kernels", "us / token", "share", "MB", "GB/s", "of peak"]
  assert cells[2:] == [["head", "2", "60.0", "60.0%", "1.20", "20.00", "50%"],
                       ["host", "", "40.0", "40.0%", "", "", ""],
                       ["sum", "2", "100.0", "100.0%", "1.20", "12.00", "30%"],
                       ["step as measured", "", "98.0", "98.0%", "", "", ""],
                       ["gap between steps", "", "25.0", "25.0%", "", "", ""]]
  assert len({len(line) for line in text.splitlines() if line.startswith("|")}) == 1
  one, end = json.JSONDecoder().raw_decode(rest)
  (profile,) = one["profiles"]
  line, head, *rows = rest[end:].strip().splitlines()
  assert json.loads(line) == profile and profile["n_gen"] == 1 and profile["sum_us"] == 100.0
  assert profile["gap_us"] == 25.0
  assert profile["rows"][0]["launches"] == [{"name": "r_2", "role": "output", "count": 2, "us": 60.0,
                                             "bytes": 1_200_000, "global_size": [2, 1, 1], "local_size": None,
                                             "opts": []}]
  assert profile["rows"][1]["gbs"] is None and profile["rows"][1]["launches"] == []
  assert head == "n_gen,name,kernels,us,share,bytes,gbs,peak_share"
  first, _ = csv.reader(io.StringIO("\n".join(rows)))
  assert first == ["1", "head", "2", "60.0", "0.6", "1200000", "20.0", "0.5"]

@on_cpu
@pytest.mark.parametrize(("test", "unknown"), [(Test(0, 1, 3), 0), (Test(16, 0, 2), 0), (Test(40, 0), 2)])
def test_schedule_is_matched_to_its_kernel(runner, test, unknown):
  """
  A kernel and its schedule are matched by their arguments. In a prompt of three chunks, the first two have no schedule
  of their own; they share the code.
  """
  calls = [kernel.call for kernel in runner.profile(test, 1).kernels]
  found = _scheduled(runner.llm, calls, test.unit, test.n_depth)
  def arguments(call): return [(u.max_numel(), u.dtype) for u in get_call_arg_uops(call)]
  pairs = [(a, b) for a, b in zip(calls, found) if b is not None]
  assert pairs and all(arguments(a) == arguments(b) and b.src[0].op is Ops.SINK for a, b in pairs)
  assert {a.src[0] for a, _ in pairs} == {call.src[0] for call in calls}
  assert bool(unknown) == (len(pairs) < len(calls)) and (len(calls) - len(pairs)) % (unknown or 1) == 0

# *** the command

def bench(*args: str, **env: str) -> subprocess.CompletedProcess:
  return subprocess.run([sys.executable, "-m", "tinygrad_llm.bench", *args], capture_output=True, text=True, cwd=ROOT,
                        timeout=300, env={**os.environ, "DEV": "CPU", **env})

@on_cpu
@extended
def test_one_table_and_page_section_per_test(model, tmp_path):
  tests = ["-p", "0", "-n", "2", "-d", "0,4", "-r", "1"]
  done = bench("-m", model, "--profile", *tests, "--html", str(tmp_path / "x.html"))
  assert done.returncode == 0, done.stderr
  assert re.findall(r"^.*: (.*), read bandwidth", done.stdout, re.M) == ["tg2", "tg2 @ d4"]
  assert done.stdout.count("| sum ") == done.stdout.count("| step as measured ") == 2
  page = data_of((tmp_path / "x.html").read_text())
  assert [t["title"] for t in page["timelines"]] == ["tg2", "tg2 @ d4"]
  assert all(t["measured"] for t in page["timelines"]) and page["heading"].endswith("CPU, 2 threads")
  bars = [bar for t in page["timelines"] for bar in t["bars"]]
  codes = [page["codes"][bar["code"]] for bar in bars if bar["code"] is not None]
  assert all(bar["code"] is not None for bar in bars if bar["lane"] == "device")
  assert 2 * len(page["codes"]) < len(codes)  # layers, and tests, share code
  assert all("void" in code["source"] and "the kernel as the scheduler made it" in code["way"] for code in codes)

@on_cpu
def test_json_is_one_object(model):
  done = bench("-m", model, "--profile", "-p", "0", "-n", "2", "-r", "2", "-o", "json")
  (profile,) = json.loads(done.stdout)["profiles"]
  assert profile["n_gen"] == 2 and len(profile["samples_ns"]) == 2 and profile["timed"] == "in the step"
  assert sum(row["us"] for row in profile["rows"]) == pytest.approx(profile["sum_us"])
  assert sum(row["share"] for row in profile["rows"]) == pytest.approx(1)
  assert all(sum(x["count"] for x in row["launches"]) == row["kernels"] for row in profile["rows"])

@pytest.mark.parametrize(("args", "env", "words"), some([
  (["--html", "x.html"], {}, "--html x.html: a page is made of a profile"),
  (["--profile", "--html", "/none/x.html"], {}, "--html /none/x.html"), (["--profile"], {"JIT": "0"}, "JIT=0"),
  (["--profile"], {"HCQ2": "1"}, "HCQ2=1"), (["--profile"], {"DEV": "NULL"}, "DEV=NULL")], 1))
def test_bad_input_is_one_line(model, args, env, words):
  done = bench("-m", model, *args, **env)
  assert (done.returncode, done.stdout) == (2, "")
  assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and words in done.stderr
