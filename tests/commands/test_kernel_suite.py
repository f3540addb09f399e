"""The kernel regression suite: a sample that spans all cases, steps and targets, and its files and tables."""
import json
import os
import random
import subprocess
import sys

from tests.tools import kernel_golden
from tests.tools import kernel_suite
import pytest
from tests.support.extended import extended, sample
from tests.tools.kernel_cases import CASES, OF_ROWS, STEPS, TARGETS, UNITS, missing, targets_of, write
from tests.tools.kernel_golden import (FOLDER, PINNED, STACK, golden, moved, moved_rows, PROMPT_STACK, out_of_bounds,
  path, pinned, stock, table, text)
from tests.tools.kernel_suite import measure
from tinygrad_llm.files import gguf

MOST_NODES = {"decode": 4400, "prompt": 4700, "rows": 4400}  # for a matrix: an unrolled block of Q6_K
OF_A_SOFTCAP = {("gemma-4-e4b-Q4_K_M", "token_embd"): 100}  # more for a head whose logits are capped
OF_EXPERTS = 4800  # for an expert's matrix, in a sum over several experts
OF_ANOTHER = 1000  # more for a matrix that shares a kernel with one of another type (horizontal_fusion)

# {target: {kind of step: its cases}}; `make kernel-suite` runs all cases
SPANNING = {
  "CPU:x86-64-v3": {"decode": ("llama-1b-Q4_K_M", "deepseek-v2-lite-Q4_K_M", "granite-4-h-3b-Q4_K_M"),
                    "prompt": ("smollm-135m-Q8_0",)},
  "CPU:x86-64-v4": {"decode": ("llama-1b-BF16",), "prompt": ("llama-1b-BF16", "qwen35-4b-Q4_K_M")},
  "CPU:sapphirerapids": {"decode": ("olmoe-1b-7b-Q4_K_M",), "prompt": ("llama-1b-Q4_K_M",)},
  "CPU:arm64": {"decode": ("llama-1b-Q8_0",), "prompt": ("llama-1b-F16",)},
  "CUDA:sm_80": {"decode": ("gemma-3-4b-Q4_0",), "prompt": ("llama-1b-Q6_K",)},
  "CUDA:sm_87": {"decode": ("olmoe-1b-7b-Q4_K_M",), "prompt": ("granite-4-h-3b-Q4_K_M",)},
  "CUDA:sm_89": {"decode": ("qwen35-4b-Q4_K_M",), "prompt": ("llama-1b-Q8_0",)},
  "CUDA:sm_90": {"decode": ("llama-1b-Q4_K_M", "gpt-oss-20b-MXFP4_MOE"), "prompt": ("llama-1b-Q4_K_M",)},
  "CUDA:sm_100": {"decode": ("llama-1b-F16",), "prompt": ("lfm2-1.2b-Q4_K_M",)},
  "CUDA:sm_120": {"decode": ("kimi-linear-48b-Q4_K_M",), "prompt": ("llama-1b-BF16",)},
  "NV:sm_90": {"decode": ("llama-1b-Q6_K",), "prompt": ("smollm-135m-Q8_0",)},
  "NV:PTX:sm_90": {"decode": ("llama-1b-F16",), "prompt": ("llama-1b-F16",)},
  "METAL:Apple7": {"decode": ("smollm-135m-Q8_0",), "prompt": ("gemma-4-e4b-Q4_K_M",)},
  "METAL:Apple8": {"decode": ("lfm2-1.2b-Q4_K_M",), "prompt": ("llama-1b-F16",)},
  "METAL:Apple9": {"decode": ("qwen3-30b-a3b-Q4_K_M",), "prompt": ("gpt-oss-20b-MXFP4_MOE",)},
}
for target in targets_of("rows"): SPANNING[target]["rows"] = OF_ROWS[:1] if target != "CUDA:sm_90" else OF_ROWS
CHOSEN = [(case, kind, target) for target, kinds in SPANNING.items() for kind, cases in kinds.items() for case in cases]
# the sample of `make test`: a processor, PTX and a GPU's C, steps and a prompt, of the models that lower fastest.
# One decode step is of the types that most files have
FEW = (("llama-1b-Q4_K_M", "decode", "CPU:x86-64-v3"), ("smollm-135m-Q8_0", "prompt", "CPU:x86-64-v3"),
       ("llama-1b-F16", "decode", "NV:PTX:sm_90"), ("smollm-135m-Q8_0", "decode", "METAL:Apple7"))

def measured(case: str, kind: str, target: str) -> dict:
  if why := missing(target): pytest.skip(why)
  among = FEW if (case, kind, target) in FEW else CHOSEN
  units = tuple((c, k) for c, k, t in among if t == target)
  return measure(target, units, os.cpu_count() or 1)[case, kind]

# *** the suite

@pytest.mark.parametrize(("case", "kind", "target"), sample(CHOSEN, FEW))
def test_kernels_match_golden_files(case, kind, target):
  """
  The figures equal the accepted ones exactly. Better or worse, `make accept` changes them, and the commit says why.
  """
  found = {step: pinned(report) for step, report in measured(case, kind, target).items()}
  assert not (lines := table(case, kind, {target: (golden(case, kind).get(target, {}), found)})), \
    f"\n{lines}\nto accept it: make accept ARGS='{case} {kind} {target}'"

@pytest.mark.parametrize(("case", "kind", "target"), sample(
  *([unit for unit in units if unit[-1].startswith(("CUDA", "NV"))] for units in (CHOSEN, FEW))))
def test_nothing_spills(case, kind, target):
  for report in measured(case, kind, target).values(): assert out_of_bounds(case, target, report, kind) == []

def test_sample_covers_all_cases_steps_and_targets():
  """The sample has every case, step and target, and every step on every kind of target."""
  assert set(CASES) == {case for case, _, _ in CHOSEN}
  assert set(TARGETS) == {target for _, _, target in CHOSEN}
  kinds = {target.rpartition(":")[0] for target in TARGETS}
  assert {(kind, target.rpartition(":")[0]) for _, kind, target in CHOSEN} == {
    (k, t) for k in STEPS for t in kinds if any(target.startswith(t) for target in targets_of(k))}

# *** the accepted figures

def test_golden_files_match_cases():
  assert {*FOLDER.glob("*.json")} == {path(*unit) for unit in UNITS}
  for case, kind in UNITS:
    found = golden(case, kind)
    assert {*found} == {*targets_of(kind)}
    assert all(report.keys() == {"kernels", "bytes", "ops", "stock", "roles"} and row.keys() == {*PINNED}
               for steps in found.values() for report in steps.values() for row in report["roles"])
    assert path(case, kind).read_text() == text(found)
  assert sum(file.stat().st_size for file in FOLDER.glob("*.json")) < 3e6

@pytest.mark.parametrize(("case", "kind"), UNITS)
def test_graph_size_is_bounded(case, kind):
  """Passes run over expanded graphs, so their size is bounded. The largest has a block of 256 weights in 16 rows."""
  for target, steps in golden(case, kind).items():
    for report in steps.values():
      for row in report["roles"]:
        chosen, expanded, _ = row["nodes"]
        most = OF_EXPERTS if "_exps" in row["role"] else MOST_NODES[kind]
        if len({*row["types"]} - {"F32"}) > 1: most += OF_ANOTHER
        most += OF_A_SOFTCAP.get((case, row["role"]), 0)
        assert expanded <= min(most, 32 * chosen), (target, row["role"])

@pytest.mark.parametrize("case", [name for name, case in CASES.items() if "moe" in case])
def test_only_selected_experts_are_read(case, tmp_path):
  """
  Kernels read the chosen experts' bytes of the file, and at most 5% padding. On GPUs, threads share loads:
  test_gpu_schedules.py.
  """
  file = gguf.open_gguf(write(case, tmp_path / "model.gguf"))
  moe = CASES[case]["moe"]
  chosen = sum(info.nbytes for info in file.tensors.values() if "_exps.weight" in info.name) * moe.used / moe.experts
  for target in ("CPU:x86-64-v3", "CPU:x86-64-v4", "CPU:sapphirerapids", "CPU:arm64"):
    for report in golden(case, "decode")[target].values():
      read = sum(row["bytes"] for row in report["roles"] if "_exps" in row["role"])
      assert chosen <= read <= 1.05 * chosen

@pytest.mark.parametrize("case", CASES)
def test_every_quantised_matmul_has_our_schedule(case):
  """Every quantised matmul of a decode step and of a prompt has one of our schedules."""
  for kind in STEPS:
    for target, steps in golden(case, kind).items():
      for report in steps.values():
        assert report["stock"] == stock(report) == [], (kind, target)

# *** figures do not depend on the process

@extended
def test_kernels_do_not_depend_on_hash_seed():
  unit = ("llama-1b-F16", "decode")
  one, two = (measure("CPU:x86-64-v3", (unit,), PYTHONHASHSEED=seed)[unit] for seed in ("1", "2"))
  assert one == two

# *** files and tables

def row(**changed) -> dict:
  return dict.fromkeys(PINNED) | {
    "role": "act", "count": 1, "bytes": 8, "ops": 1, "name": "E_4", "types": [], "schedule": "stock", "opts": [],
    "global_size": [1], "registers": 9, "stack": 0, "nodes": [9, 20, 12], "live": 64} | changed

def report(*rows: dict, **totals) -> dict:
  return {"target": "CPU", "kernels": 2, "bytes": 8, "ops": 1, "roles": list(rows or (row(),))} | totals

def test_moved_reports_better_and_worse():
  old = pinned(report())
  assert moved(old, pinned(report())) == []
  assert moved(old, pinned(report(row(registers=200)))) == []  # registers are up to the compiler
  split = report(row(registers=7), row(registers=9, nodes=[7, 30, 8], live=128))
  assert [[r[key] for key in ("count", "bytes", "nodes", "live")] for r in pinned(split)["roles"]] == [
    [2, 16, [9, 30, 12], 128]]
  assert len(pinned(report(row(), row(bytes=9)))["roles"]) == 2
  for key in set(PINNED) - {"count", "bytes", "ops"}:
    found = pinned(report(row(**{key: "x" if key != "nodes" else [1, 2, 3]})))
    if key in ("role", "types"): assert [(bool(a), bool(b)) for a, b in moved_rows(old, found)] == [(1, 0), (0, 1)]
    else: assert len(moved_rows(old, found)) == 1
    assert moved(old, found)
  for key in ("count", "bytes", "ops"):
    for n in (7, 9): assert len(moved_rows(old, pinned(report(row(**{key: n}))))) == 1

def test_comparison_table():
  """A table has totals with their change, then a row that changed, one that is gone, and one that is new."""
  old = pinned(report(row(role="blk.*.ffn_up", types=["Q8_0"], name="r_4", schedule="gemv_gpu"), row(), kernels=4))
  new = pinned(report(row(role="blk.*.ffn_up", types=["Q8_0"], name="r_4", opts=["UPCAST:0:4"], count=2),
                      row(role="kv"), kernels=3))
  assert "\n".join(moved(old, new)).splitlines() == [
    "  kernels   4 -> 3 (-25.0%)",
    "  stock     - -> blk.*.ffn_up",
    "~   2 x blk.*.ffn_up (Q8_0) r_4",
    "        count         1 -> 2",
    "        schedule      gemv_gpu -> stock",
    "        opts          - -> UPCAST:0:4",
    "-   1 x act E_4",
    "        schedule      stock",
    "        opts          -",
    "+   1 x kv E_4",
    "        schedule      stock",
    "        opts          -"]
  case, (target, other) = next(iter(CASES)), ("CUDA:sm_80", "CUDA:sm_90")
  steps = list(STEPS["prompt"])
  told = table(case, "prompt", {t: (dict.fromkeys(steps, old), dict.fromkeys(steps, new)) for t in (target, other)})
  assert told.startswith(f"=== {case}, prompt: {target} {other}\nprompt:\n  kernels")
  assert told.count("kernels   4 -> 3") == 1
  assert f"-m {case}.gguf --target {target} --max-context 8192 -p 512\n  .. --source 'blk.*.ffn_up'" in told
  assert max(map(len, told.splitlines())) <= 120
  assert table(case, "prompt", {target: (dict.fromkeys(steps, old),) * 2}) == ""

def test_long_fields_are_wrapped():
  old, new = (pinned(report(row(opts=[f"UNROLL:{i}:{n}" for i in range(20)]))) for n in (4, 8))
  lines = "\n".join(moved(old, new)).splitlines()
  assert max(map(len, lines)) <= 120
  assert sum("->" in line for line in lines) == 1
  assert len(lines) > 3

def test_golden_file_format():
  """Targets with the same figures share an entry; figures that differ between depths are kept apart."""
  steps = list(STEPS["decode"])
  of_cpu = dict(zip(steps, (pinned(report()), pinned(report(row(bytes=80), bytes=80)))))
  of_gpu = dict(zip(steps, (pinned(report(row(local_size=[32]))), pinned(report(row(local_size=[32]))))))
  found = {"CPU:arm64": of_cpu, "CUDA:sm_80": of_gpu, "CUDA:sm_90": of_gpu}
  made = json.loads(text(found))
  assert list(made) == ["CPU:arm64", "CUDA:sm_80 CUDA:sm_90"]
  assert made["CPU:arm64"]["roles"][0]["bytes"] == dict(zip(steps, (8, 80)))
  assert made["CUDA:sm_80 CUDA:sm_90"]["roles"] == [pinned(report(row(local_size=[32])))["roles"][0]]
  with pytest.raises(AssertionError, match="depend on the depth"):
    text({"CPU:arm64": dict(zip(steps, (pinned(report()), pinned(report(row(name="E_5"))))))})

def test_rows_of_depths_are_split_alike(tmp_path, monkeypatch):
  """
  A depth's accepted report is the one that was measured, whatever the other depths' rows are.

  Kernels of several layers are one row where they read as many bytes, as a window's and a full layer's do at depth 0.
  """
  monkeypatch.setattr(kernel_golden, "FOLDER", tmp_path)
  steps, rng = list(STEPS["decode"]), random.Random(7)
  for _ in range(200):
    calls = [(rng.choice("ab"), rng.choice(("r_1", "r_2"))) for _ in range(rng.randrange(1, 9))]
    found = {step: pinned(report(*(row(role=role, name=name, bytes=rng.choice((8, 8, 80))) for role, name in calls)))
             for step in steps}
    path("llama-1b-F16", "decode").write_text(text({"CPU:arm64": found}))
    for step, back in golden("llama-1b-F16", "decode")["CPU:arm64"].items(): assert moved(back, found[step]) == []

def test_accept_writes_only_measured_targets(tmp_path, monkeypatch, capsys):
  """Accepting writes only measured targets. Comparing writes nothing. A kernel that spills is never accepted."""
  unit, cpu, gpu = ("llama-1b-F16", "decode"), "CPU:arm64", "CUDA:sm_90"
  def measuring(target: str, *rows: dict) -> None:
    found = {step: report(*rows) for step in STEPS["decode"]}
    monkeypatch.setattr(kernel_suite, "measure_all", lambda units, targets: {unit: {target: found}})
  monkeypatch.setattr(kernel_golden, "FOLDER", tmp_path)
  for target in (cpu, gpu):
    measuring(target, row())
    assert not kernel_suite.compare([unit], [target], accept=True)
  assert [*golden(*unit)] == [cpu, gpu]
  assert kernel_suite.compare([unit], [gpu], accept=False)
  assert "new: kernels 2" in capsys.readouterr().out
  measuring(gpu, row(name="E_5"))
  for accept in (False, True): assert not kernel_suite.compare([unit], [gpu], accept)
  assert capsys.readouterr().out.count("        name          E_4 -> E_5") == 2
  assert kernel_suite.compare([unit], [gpu], accept=False)
  assert golden(*unit)[cpu]["decode"] == pinned(report())
  measuring(gpu, row(name="E_5", stack=8))
  assert not kernel_suite.compare([unit], [gpu], accept=False)
  assert f"!!! llama-1b-F16, decode, {gpu}: act: 8 bytes of stack, 9 registers" in capsys.readouterr().out

def test_stock_kernel_detection():
  """
  Stock kernels are sums over weight matrices with tinygrad's schedule, also in chains; not look-ups, norms, biases.
  """
  for changed, found in (({}, 1), ({"name": "E_4"}, 0), ({"name": "s2_r_4"}, 1), ({"schedule": "gemv_gpu"}, 0),
                         ({"schedule": "gemv_cpu+none"}, 1), ({"schedule": None}, 1), ({"role": "kv"}, 0),
                         ({"role": "output_norm"}, 0), ({"role": "blk.*.attn_norm+attn_q.bias"}, 0),
                         ({"role": "output_norm+output"}, 1)):
    given = row(**({"role": "blk.*.attn_norm+attn_q", "name": "r_4"} | changed))
    assert len(stock(report(given))) == found, changed

def test_resource_bounds():
  for given, bad in ({"registers": 128}, 0), ({"registers": 0}, 1), ({"registers": 129}, 1), ({"stack": 8}, 1):
    assert len(out_of_bounds("llama-1b-F16", "CUDA:sm_90", report(row(**given)))) == bad
  for registers, bad in ((255, 0), (256, 1)):
    assert len(out_of_bounds("llama-1b-F16", "NV:PTX:sm_90", report(row(registers=registers)))) == bad
  assert out_of_bounds("llama-1b-F16", "METAL:Apple9", report(row(registers=None, stack=None))) == []
  (case, kind, role), ((known, targets),) = next((key, bounds.items()) for key, bounds in STACK.items())
  for other, stack, bad in ((case, known, 0), (case, known + 8, 1), ("llama-1b-F16", known, 1)):
    for target in targets.split():
      assert len(out_of_bounds(other, target, report(row(role=role, stack=stack)), kind)) == bad
  assert len(out_of_bounds(case, "CUDA:sm_80", report(row(role=role, stack=known)), kind)) == 1
  for schedule, most in PROMPT_STACK.items():
    for kind, stack, bad in (("prompt", most, 0), ("prompt", most + 8, 1), ("decode", most, 1)):
      given = report(row(schedule=schedule, stack=stack))
      assert len(out_of_bounds("llama-1b-F16", "CUDA:sm_90", given, kind)) == bad

@pytest.mark.parametrize(("tool", "args"), [
  ("kernel_suite", ["llama-1b"]), ("kernel_suite", ["CUDA:sm_91"]), ("kernel_cases", ["--write", "llama-1b", "x.gguf"]),
  ("kernel_cases", [])])
def test_rejects_unknown_names(tool, args):
  command = [sys.executable, str(FOLDER.parent / "tools" / f"{tool}.py"), *args]
  done = subprocess.run(command, capture_output=True, text=True)
  assert (done.returncode, done.stdout) == (2, "")
  assert "error: " in done.stderr.splitlines()[-1]
