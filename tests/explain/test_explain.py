"""
The transcript of a kernel's lowering, and the listed order of the passes. Both are derived from the installed passes;
the tests compare them with a real lowering.
"""
import functools
import math
import re
import subprocess
import sys
from types import SimpleNamespace

from tests.explain import rewrite_cases
from tests.support import child
import pytest
from tests.support.extended import extended
from tests.tools.kernel_cases import has_cuda_wheels
from tinygrad import Device, Tensor, dtypes
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.dtype import Invalid
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm import kernels, patches
from tinygrad_llm.analysis import programs
from tinygrad_llm.device import captured
from tinygrad_llm.device.device import open_target
from tinygrad_llm.patches import places
from tinygrad_llm.patches.explain import pipeline, pseudocode, recording, transcript
from tinygrad_llm.patches.ir.actions import ScheduleOps

ROLE = "blk.*.ffn_down"
ALL_ON = all(map(patches.is_on, patches.PATCHES))
cuda = pytest.mark.skipif(not has_cuda_wheels(), reason="NVIDIA makes no NVRTC wheel for this machine")

# *** in the child

def matvec(rows: int = 256, n: int = 512) -> tuple[UOp, dict[str, int], Tensor]:
  """A matvec with a repacked Q4_K matrix, on the CPU with int8 activations; and the matrix."""
  w, x = rewrite_cases.weights("Q4_K", rows, n), rewrite_cases.in_bytes(n)
  assert w.layout is not None
  if Device.DEFAULT != "CPU": x = Tensor.empty(1, n)
  return *captured.scheduled(lambda: w.matmul(x)), w.stored

def explained(target: str) -> dict:
  """The recording of a kernel's lowering, compared with the same lowering without recording."""
  open_target(target)
  def placed() -> list[tuple]:
    return [(p.name, p.value, () if p.seat is None else tuple(p.seat.links)) for p in pipeline.all_places()]
  before = placed()
  with recording.recording() as found:
    linear, variables, stored = matvec()
    [call], weights = linear.src, {stored.uop.base: programs.Rows("Q4_K", ("blk.0.ffn_down.weight",))}
    recorded = programs.lowered(call)
  plain = programs.programs(programs.compiled(linear), variables, weights, [])
  order = {p.name: (pipeline.STAGES.index(p.stage), p.order) for p in pipeline.all_places()}
  return {"steps": [(s.stage, s.patch) for s in found.steps if s.patch], "text": transcript.text(found),
          "same": recorded.src[0].src[2].arg.strip() == kernels._sources(plain, ROLE),
          "reached": [(name, order[name]) for name in found.reached],
          "left": [n for (n, a, x), (m, b, y) in zip(before, placed(), strict=True)
                   if n != m or a is not b and a != b or x != y],
          "graphs": [s.before is not s.after for s in found.steps if s.kind is recording.PASS]}

def explain_prompt(path: str, target: str) -> str:
  open_target(target)
  return kernels.explain(path, ROLE, 96, 0, 64)

@functools.cache
def run(target: str, *off: str) -> dict:
  return child.call(explained, target, **{f"NO_{name.upper()}": "1" for name in off}).value

def changed(found: dict) -> set[str]: return {patch for _, patch in found["steps"]}

# *** a kernel

ON_CPU = {"normal_form", "gemv", "hooks", "hoist_sums", "lanes", "factor_sums", "dot_int8_cpu", "vectorizer"}
ON_CUDA = {"gemv", "hooks", "merge_fields", "factor_sums", "int_to_float", "fields_in_place",
           "shuffle_reduce", "launch_bounds"}
BOTH = [("CPU:x86-64-v3", ON_CPU), pytest.param("CUDA:sm_90", ON_CUDA, marks=cuda)]

@pytest.mark.parametrize(("target", "wanted"), BOTH)
def test_steps_are_passes_that_changed_the_kernel(target, wanted):
  """Exactly the passes that changed the kernel are recorded, at their listed places; recording changes nothing."""
  found = run(target)
  assert changed(found) == wanted
  listed = {stage: [name for name, _ in met] for stage, met in pipeline.order().items()}
  assert not ALL_ON or all(patch in listed[stage] for stage, patch in found["steps"])
  assert all(found["graphs"])
  assert found["same"]
  assert found["left"] == []

@pytest.mark.parametrize(("target", "wanted"), BOTH)
def test_listed_order_matches_lowering(target, wanted):
  """A lowering reaches the passes' places in the listed order."""
  found = run(target)
  order = [tuple(position) for _, position in found["reached"]]
  assert order == sorted(order), found["reached"]
  assert len(order) >= 8

def test_disabled_patch_is_no_step():
  on, off = run("CPU:x86-64-v3"), run("CPU:x86-64-v3", "factor_sums")
  assert "factor_sums" in changed(on)
  assert "factor_sums" not in changed(off)
  assert "loops.factor_sums" not in off["text"]
  assert off["same"]

def test_transcript():
  """The transcript has the passes' sentences, opts with and without a pass, and figures and sums before and after."""
  text = run("CPU:x86-64-v3")["text"]
  for name in ON_CPU: assert transcript.sentence(name)[:60] in text
  assert "without the patch: UNROLL" in text
  assert "   + " in text
  assert "sum1 = sum" in text
  assert "operations on floats: " in text
  assert max(map(len, text.splitlines())) <= 130

@pytest.fixture(scope="module")
def path(model_file) -> str:
  return str(model_file(types="F32", dim=256, ffn=256, heads=2, layers=1, context=96, header=True))

@pytest.mark.skipif(Device.DEFAULT != "CPU", reason="it is of the CPU")
def test_explain_role_of_model(path):
  text = kernels.explain(path, ROLE)
  assert text.startswith(f"{ROLE}: 1 of ")
  assert "blk.0.ffn_down.weight F32" in text
  assert "the kernel as the scheduler made it" in text
  assert "data0" in text
  assert text.endswith(f"--source '{ROLE}'")

@pytest.mark.parametrize("op", [*OptOps, *ScheduleOps], ids=lambda op: op.name)
def test_every_schedule_action_is_explained(op):
  """The transcript explains each schedule action, tinygrad's own and the passes'."""
  amount = (32, 64, 32, 16, 32) if op is ScheduleOps.BLOCK else 2
  axis = 0 if isinstance(op, OptOps) else None
  step = recording.Step(recording.PASS, pipeline.OPTS, "", "gemv", "", None, None, opts=(Opt(op, axis, amount),))
  line = transcript._chosen(step)[0]
  assert line.startswith(f"   {op.name}:{axis}:{amount}  ")
  assert len(line.split("  ")[-1]) > 3
  if isinstance(op, ScheduleOps): assert (child.ROOT / "patches" / re.findall(r"\((\w+/\w+\.py)", op.value)[0]).exists()

TILED = [("METAL:Apple9", "BLOCK"), ("CPU:sapphirerapids", "AMX"), ("CPU:x86-64-v4", "TILES")]

@extended
@pytest.mark.parametrize(("target", "action"), TILED)
def test_kernel_with_own_schedule_action(model_file, target, action):
  """A kernel scheduled by our own action, whose loops appear only in the middle of the lowering."""
  path = str(model_file(types="Q8_0", vocab=384, dim=256, ffn=256, heads=4, layers=1, context=96, header=True))
  text = child.call(explain_prompt, path, target).value
  assert f" {action}:None:" in text
  assert "the source code: " in text

def test_constants_are_printed():
  """Constants of graphs are printed, tinygrad's Invalid and non-finite numbers included."""
  found = [pseudocode._number(x) for x in (True, 2, 2.0, 0.25, math.inf, -math.inf, math.nan, Invalid)]
  assert found == ["1", "2", "2", "0.25", "inf", "-inf", "nan", "nothing"]

def test_command_line(path):
  """The command `tinygrad_llm.patches --explain`: an unknown role gives a one-line error and exit code 2."""
  command = [sys.executable, "-m", "tinygrad_llm.patches", "-m", path, "--explain", "blk.*.nothing"]
  done = subprocess.run(command, env=child.environment(), capture_output=True, text=True, cwd=child.ROOT)
  assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
  assert done.stderr.startswith("error: --explain 'blk.*.nothing': no kernel has that role; it has ")
  assert ROLE in done.stderr

def calls(*roles: tuple[str, str]) -> list:
  return [(None, programs.Reads({0: programs.Rows(kind, (f"{name}.weight",))}, set())) for name, kind in roles]

def test_role_patterns():
  known = calls(("blk.0.ffn_down", "Q4_K"), ("blk.1.ffn_down", "Q6_K"), ("blk.0.ffn_up", "Q4_K"))
  for asked, types in ((ROLE, ["Q4_K", "Q6_K"]), ("*down", ["Q4_K", "Q6_K"]), ("*_down:Q6_K", ["Q6_K"])):
    assert [reads.types for _, reads in kernels._of_role(known, asked)] == [(t,) for t in types]
  for asked, words in (("x", "it has blk.*.ffn_down, blk.*.ffn_up"), ("*ffn*", "one of blk.*.ffn_down, blk.*.ffn_up"),
                       (f"{ROLE}:Q8_0", "its types are Q4_K, Q6_K")):
    with pytest.raises(kernels.InputError, match=r"--explain ") as e: kernels._of_role(known, asked)
    assert words in str(e.value)

@pytest.mark.skipif(not patches.is_on("gathers"), reason="it is of gathers")
def test_scheduler_step():
  """A gather of rows stays in one kernel: tinygrad alone would split its reduction. Ordinary sums are still split."""
  for make, patch in ((lambda: Tensor.empty(40000, 8)[Tensor.empty(2, dtype=dtypes.int)], {"gathers"}),
                      (lambda: Tensor.empty(40000, 8).sum(0), set())):
    with recording.recording() as found: captured.scheduled(make)
    assert {step.patch for step in found.steps if step.stage == pipeline.SCHEDULER} == patch
    assert patch or not transcript.scheduler(found)
    assert not patch or transcript.scheduler(found).startswith("graph.gathers: ")

# *** the listing

@pytest.mark.skipif(not ALL_ON, reason="it is of all patches")
def test_every_patch_is_listed():
  assert {name for met in pipeline.order().values() for name, _ in met} == set(patches.PATCHES)

@pytest.mark.skipif(not ALL_ON, reason="it is of all patches")
def test_hook_lists_show_their_passes():
  """The listing has the passes of both hook lists, in the order in which they were appended."""
  listed = {place.name.split(":")[1]: place for place in pipeline.all_places()}
  for name in ("after_opts", "before_linearize"):
    functions = getattr(patches.hooks, name)
    assert len(functions) > 1
    assert listed[name].patches == tuple(dict.fromkeys(map(pipeline.owner, functions)))

def test_recorded_links_start_with_tinygrad():
  """The recorded links of a replaced or wrapped function begin with tinygrad's own; the called one is last."""
  seats = [seat for seat in places.seats.values() if seat.links]
  assert len(seats) > 30
  for seat in seats:
    assert seat.links[0].__module__.startswith("tinygrad.") and all(map(pipeline.owner, seat.links[1:])), seat.name

def test_nested_wrappers():
  """Wrappers of one function nest, and its place then belongs to two passes."""
  holder = SimpleNamespace(f=lambda x: x + 1)
  with places.of("gemv"): below = places.wrap(holder, "f", lambda x: 10 * below(x))
  with places.of("lanes"): places.wrapped(holder, "f", lambda f: lambda x: f(x) - 1)
  try:
    assert holder.f(1) == 19
    with pytest.raises(AssertionError): places.replace(holder, "f", max)
    assert [*places.seats[id(holder), "f"].passes] == ["gemv", "lanes"]
  finally: del places.seats[id(holder), "f"]

# *** pseudocode

def test_operation_counts():
  """4 rows of 8: 4 * 8 products, 4 * 8 additions of the reduction, and an addition a row."""
  linear, _ = captured.scheduled(lambda a, b: (a * b).sum(1) + 1.5, Tensor.empty(4, 8), Tensor.empty(8))
  sink = next(c.src[0] for c in linear.src if c.src[0].op is Ops.SINK)
  found = pseudocode.figures(sink)
  assert (found["sums"], found["loads"]) == ("1", "2")
  assert found["operations on floats"] == str(4 * 8 + 4 * 8 + 4)
  assert found["loops"] == "4, REDUCE 8"
  assert pseudocode.lines(sink, pseudocode.Names()) == [
    "for a in 4:", "  p0[a] = sum1 + 1.5", "  sum1 = sum b in 8: p1[a b] * p2[b]"]

def test_loop_names():
  lane, plain = UOp.range(16, 3, pseudocode.LANES, AxisType.WEAK), UOp.range(16, 3, AxisType.UNROLL)
  assert [pseudocode.kind(r) for r in (lane, plain)] == ["lanes", "UNROLL"]
  names = pseudocode.Names()
  assert [names.loop(r) for r in (lane, plain, lane)] == ["a", "b", "a"]
