"""The command that lists the kernels of a step. test_kernel_suite.py checks the kernels themselves."""
import itertools
import json
import os
import subprocess
import sys

from tests.support import html_page
import pytest
from tests.support.extended import extended, some
import tinygrad_llm
from tests.tools.kernel_cases import has_cuda_wheels
from tinygrad.uop.ops import Ops
from tinygrad_llm import InputError, kernels
from tinygrad_llm.analysis import programs
from tinygrad_llm.device.cuda import find_cuda, resources
from tinygrad_llm.device.device import open_target
from tinygrad_llm.files import gguf

cuda = pytest.mark.skipif(not has_cuda_wheels(), reason="NVIDIA makes no NVRTC wheel for this machine")

def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
  code = "import os, sys; os.environ |= eval(sys.argv.pop(1)); from tinygrad_llm.kernels import main; main()"
  return subprocess.run([sys.executable, "-c", code, repr(env), *args], capture_output=True, text=True)

def programs_of(linear) -> list[tuple[str, str]]:
  """(name, source) of the kernels of a captured schedule, in order, also inside graphs."""
  found = []
  for call in linear.src:
    if (function := call.src[0]).op is Ops.PROGRAM: found.append((function.arg.name, function.src[2].arg))
    elif function.op is Ops.CUSTOM_FUNCTION and function.arg == "graph": found += programs_of(function.src[0])
  return found

@pytest.fixture(scope="module")
def path(model_file) -> str: return str(model_file(types="Q4_K_M", dim=256, ffn=512, heads=4, context=96))

@extended
def test_listed_kernels_are_those_that_run(path):
  """The listed kernels are the ones that run, and their cost equals run --json's."""
  llm = tinygrad_llm.load(path)
  for position in range(3): llm.step(position + 1, position)
  step = kernels.decode_programs(path, depth=3)
  assert [(p.info.name, p.source) for p in step] == programs_of(llm.engine.steps.linear)
  found = kernels.report("CPU", step)
  assert (found["kernels"], found["bytes"]) == llm.decode_cost()
  assert found["kernels"] == sum(row["count"] for row in found["roles"])

def test_only_the_header_is_read(small, monkeypatch):
  def read(*_): pytest.fail("a weight was read")
  monkeypatch.setattr(gguf.GGUF, "read_into", read)
  assert kernels.decode_programs(small)

def test_sparse_8_gb_file_is_listed(model_file):
  """A model of 8 GB, in a file of which only the header takes room on the disk."""
  big = model_file(dim=4096, ffn=14336, heads=32, kv_heads=8, layers=20, types="F16", header=True)
  assert big.stat().st_size > 8e9
  code = """import resource, sys
from tinygrad_llm.device.buffers import without_memory
from tinygrad_llm.engine.llm import LLM
with without_memory(): LLM(sys.argv[1], max_context=1 << 20, chunk=1, dequantize=False, progress=False)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"""
  done = subprocess.run([sys.executable, "-c", code, str(big)], capture_output=True, text=True, check=True)
  assert int(done.stdout) * (1 if sys.platform == "darwin" else 1024) < 1e9

@cuda
@extended
def test_multi_head_attention_without_gqa(model_file):
  """With as many key heads as query heads, scores have no axis of constant length."""
  done = run("-m", str(model_file(kv_heads=4, layers=1, header=True)), "--target", "CUDA:sm_90", "-d", "5", "--json")
  assert done.returncode == 0, done.stderr
  assert "kv" in {row["role"] for row in json.loads(done.stdout)["roles"]}

@extended
def test_depth_adds_kv_cache_bytes(small):
  """
  Each position adds keys and values: 2 x 2 heads x 32 elements of 2 bytes. They are read in blocks of 64, and the
  cache has 96 positions.
  """
  cost = {depth: kernels.report("", kernels.decode_programs(small, depth=depth)) for depth in (0, 64)}
  assert cost[0]["kernels"] == cost[64]["kernels"]
  assert cost[64]["bytes"] - cost[0]["bytes"] >= (96 - 64) * (2 * 2 * 32 * 2)

def test_kernel_roles(small):
  roles = kernels.report("", kernels.decode_programs(small))["roles"]
  named = {name for row in roles for name in row["role"].replace("blk.*.", "").split("+")}
  wanted = "token_embd attn_norm attn_q attn_k attn_v attn_output ffn_norm ffn_gate ffn_up ffn_down output_norm kv act"
  assert named == set(wanted.split())
  head = max((row for row in roles if "token_embd" in row["role"]), key=lambda row: row["bytes"])
  assert head["count"] == 1
  assert "Q8_0" in head["types"]

@pytest.mark.parametrize(("names", "role"), [
  (["blk.3.attn_q.weight", "blk.3.attn_k.weight"], "blk.*.attn_q+attn_k"),
  (["blk.11.attn_q.bias"], "blk.*.attn_q.bias"), (["blk.1.ffn_up.weight", "blk.2.ffn_up.weight"], "blk.*.ffn_up"),
  (["blk.1.ffn_down.weight", "blk.2.attn_norm.weight", "output_norm.weight"], "output_norm+blk.*.ffn_down+attn_norm"),
  ([], "")])
def test_role_from_tensor_names(names, role): assert programs.role(names) == role

def test_load_width():
  """The width of the matrix's loads, not the vector's: stock tinygrad loads 4 numbers at once, but single bytes."""
  code = """
from tinygrad import Tensor, dtypes
from tinygrad_llm.analysis import programs
for dtype in (dtypes.uint32, dtypes.half, dtypes.uint8):
  m, x = Tensor.empty(64, 256, dtype=dtype), Tensor.empty(256)
  linear, _ = programs.capture(lambda m, x: (m.cast(dtypes.float) * x).sum(1), m, x)
  uops = linear.src[0].src[0].src[1].src
  print(programs.load_width(uops, {1}), programs.load_width(uops, {2}), programs.load_width(uops, {9}))"""
  env = os.environ | {"NO_PATCHES": "1"}
  done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
  assert done.stdout.splitlines() == ["16 16 None", "8 16 None", "1 16 None"]

@pytest.fixture(scope="module")
def small(model_file) -> str: return str(model_file(types="Q8_0", layers=1, context=96))

@pytest.fixture(scope="module")
def as_json(small) -> str: return run("-m", small, "--json").stdout

def test_json_and_table(as_json):
  found = json.loads(as_json)
  assert as_json.count("\n") == 1
  assert {"target", "kernels", "bytes", "roles"} <= found.keys()
  keys = {"role", "part", "count", "bytes", "schedule", "opts", "global_size", "local_size", "serial", "registers",
          "stack", "load_bytes", "lines", "nodes", "live", "estimate_us", "bound"}
  assert all(keys <= row.keys() for row in found["roles"])
  assert found["estimate_us"] == pytest.approx(sum(row["estimate_us"] for row in found["roles"]), abs=0.1)
  assert {row["registers"] for row in found["roles"]} == {None}
  check_table(kernels._table(found, 0, kernels.card_of(None)), found)

def check_table(text: str, found: dict) -> None:
  lines = text.splitlines()
  head = "n MB est us bound role part types opts global local serial regs stack load lines"
  assert lines[0].split() == head.split()
  assert len(lines) == len(found["roles"]) + 3
  assert f"{found['kernels']} kernels" in lines[-2]
  assert lines[-1].startswith(f"estimate, not measured, for {found['card']['name']}: ")

@extended
def test_printed_table(small, as_json): check_table(run("-m", small).stdout, json.loads(as_json))

@extended
def test_html_page_of_estimates(small, tmp_path):
  """The page shows each kernel once, end to end, with the table's time; nothing is called measured."""
  done = run("-m", small, "--target", "CPU:x86-64-v3", "--html", str(tmp_path / "step.html"))
  assert done.stdout == f"written: {tmp_path}/step.html\n", done.stderr
  data = html_page.data_of((tmp_path / "step.html").read_text())
  (timeline,), bars = data["timelines"], data["timelines"][0]["bars"]
  assert not timeline["measured"]
  assert len(bars) == len(kernels.decode_programs(small))
  assert all(b["start"] == pytest.approx(a["start"] + a["us"]) for a, b in itertools.pairwise(bars))
  assert all(data["codes"][bar["code"]]["name"] == bar["name"] for bar in bars)
  done = run("-m", small, "--html", str(tmp_path / "none" / "step.html"))
  assert (done.returncode, done.stderr.count("\n")) == (2, 1)
  assert "it cannot be written" in done.stderr

@extended
def test_card_option(small):
  done = run("-m", small, "--target", "CPU:arm64", "--card", "m1 p-cores", "--json")
  assert json.loads(done.stdout)["card"]["name"] == "M1 P-cores"
  assert "RTX 4090" in run("--card", "list").stdout
  assert "--card 'RTX 1': not known; use one of A100" in run("-m", small, "--card", "RTX 1").stderr
  assert "--card 'A100': it is a card, the kernels are for a processor" in run("-m", small, "--card", "A100").stderr

@extended
def test_source_option(small, as_json):
  row = json.loads(as_json)["roles"][-1]
  source = run("-m", small, "--source", row["role"]).stdout
  assert "data0" in source
  assert "{" in source
  assert "no kernel has that role; it has token_embd, " in run("-m", small, "--source", "attention").stderr

@pytest.mark.parametrize(("args", "words"), some([
  (["--target", "NOPE"], "--target NOPE: no such device"), (["--target", "a:b:c:d"], "--target a:b:c:d: "),
  (["--target", "CUDA"], "CUDA:sm_90 compiles without a card"), (["--depth", "96"], "--depth 96: give 0 to 95"),
  (["--depth", "-1"], "--depth -1"),
  (["-p", "90", "-d", "7"], "--prompt 90: give 0 to 89"), (["-p", "-1"], "--prompt -1"),
  *(pytest.param(["--target", name], "METAL:Apple9 needs no Mac",
                 marks=pytest.mark.skipif(sys.platform == "darwin", reason="it is one"))
    for name in ("METAL", "METAL:Apple", "METAL:Apple11")),
  pytest.param(["--target", "NV:PTX:sm_100"], "--target NV:PTX:sm_100: its compiler fails (ptxas", marks=cuda),
  (["--max-context", "0"], "--max-context 0"), (["-m", "no.gguf"], "no.gguf"),
  pytest.param(["--target", "CUDA:sm_52"], "no architecture 'sm_52'; use one of sm_75", marks=cuda),
  pytest.param(["--target", "CUDA:sm_x"], "no architecture 'sm_x'", marks=cuda)], 0, 3, -1))
def test_rejects_bad_arguments(path, args, words):
  done = run("-m", path, *args)
  assert done.returncode == 2
  assert done.stdout == ""
  assert words in done.stderr
  assert done.stderr.startswith("error: ")
  assert done.stderr.count("\n") == 1

@pytest.mark.parametrize("target", ["METAL:apple9", pytest.param("NV:PTX:sm_90", marks=(cuda, extended))])
def test_prefill_kernels_for_other_targets(small, target):
  """The kernels of a prompt for other targets, without a Mac or a card. test_kernel_suite.py has more targets."""
  done = run("-m", small, "--target", target, "--json", "-p", "7", "-d", "5")
  assert done.returncode == 0, done.stderr
  found = json.loads(done.stdout)
  assert found["target"] == target
  assert {"kv", "token_embd"} <= {name for row in found["roles"] for name in row["role"].split("+")}
  for row in found["roles"]: assert (row["stack"] == 0) == target.startswith("NV"), row["role"]

SCHEDULES = {"gemv_cpu", "online_softmax", "elementwise", "stock", "none"}

@extended
@pytest.mark.parametrize(("switch", "schedules"), [
  ("", SCHEDULES), ("NO_GEMV", SCHEDULES - {"gemv_cpu"}), ("NO_PATCHES", {None})])
def test_schedule_names(small, switch, schedules):
  """The names of the kernels' schedules, also for kernels lowered in another process, or without patches."""
  rows = json.loads(run("-m", small, "--json", **({switch: "1"} if switch else {}), PARALLEL="2").stdout)["roles"]
  found = {name for row in rows for name in (row["schedule"].split("+") if row["schedule"] else [None])}
  assert found == schedules - ({"none"} - found)

@extended
def test_listed_prefill_kernels_are_those_that_run(small):
  """A prompt's listed kernels are the ones that run, up to the logits after its last token."""
  llm = tinygrad_llm.load(small, chunk=6)
  for _ in range(3): llm.logits([1, 2, 3, 4, 5, 6])
  captured = programs_of(llm.engine.steps._piece.captured.linear)
  found = [(p.info.name, p.source) for p in kernels.decode_programs(small, prompt=6)]
  assert 0 < len(captured) < len(found) and found[:len(captured)] == captured

@cuda
def test_without_nvrtc(monkeypatch):
  find_cuda()  # must come first, or this process never finds NVRTC
  from tinygrad.runtime.autogen import nvrtc
  def missing(*_): raise AttributeError("failed to load library nvrtc")
  from tinygrad_llm.device import cuda
  monkeypatch.setattr(nvrtc, "nvrtcGetNumSupportedArchs", missing)
  with pytest.raises(InputError, match="NVRTC is not installed; run: pip install nvidia-cuda-nvrtc"):
    cuda.check_cuda("--target CUDA:sm_90", "sm_90")

@cuda
def test_spills_are_detected():
  """An array that is indexed with a runtime value lies on the stack."""
  code = """import sys; from tinygrad_llm.device.cuda import resources
from tinygrad_llm.device.device import open_target; open_target("CUDA:sm_90")
from tinygrad import Device
for body in ("int x[64]; for (int i = 0; i < n; i++) x[p[i] & 63] = i; p[0] = x[p[n] & 63];", "p[n] = 1;"):
  source = 'extern "C" __global__ void k(int* p, int n) {' + body + '}'
  print(*resources(Device.default.renderer.compiler.compile(source)))"""
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
  (_, spilled), (registers, stack) = (map(int, line.split()) for line in done.stdout.splitlines())
  assert spilled >= 256
  assert (stack, registers > 0) == (0, True)

def test_registers_are_read_from_cubin_only(): assert resources(b"\x7fELF" + bytes(60)) == (None, None)

def test_default_target_is_current_device(): assert open_target(None) == "CPU"
