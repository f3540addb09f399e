"""No matmul in any architecture's decode step falls back to tinygrad's own schedule, on CPUs and GPUs."""
import re

from tests.support import child
import pytest
from tests.support.extended import sample
from tests.tools.kernel_cases import has_cuda_wheels
from tests.support.synthetic import FAMILIES, write_model
from tests.support.synthetic_layers import MLA, MoE
from tinygrad import Device, codegen
from tinygrad.uop.ops import Ops
from tinygrad_llm.device.device import open_target
from tinygrad_llm.kernels import decode_step
from tinygrad_llm.patches.schedule import choose

TARGETS = {"CPU": "CPU:CLANG:x86_64,x86-64-v3", "CUDA": "CUDA:sm_90"}

class Chosen(Exception):
  """The opts are chosen; the rest of the lowering is not needed."""

def stock(path: str, target: str) -> list[str]:
  """Weight matrices read by kernels that have a reduction and tinygrad's own schedule."""
  open_target(target)
  found: list[bool] = []
  stock, before = choose._stock, codegen.apply_opts
  def recorded(k):
    found.append(True)
    return stock(k)
  def stopped(*args, **kwargs):
    before(*args, **kwargs)
    raise Chosen
  choose._stock, codegen.apply_opts = recorded, stopped
  step, names = decode_step(path), set[str]()
  for call in step.linear.src:
    if call.op is not Ops.CALL or call.src[0].op is not Ops.SINK: continue
    read = {name for b in call.src[1:] if b.base in step.weights for name in step.weights[b.base].names}
    matrices = {name for name in read if not re.search(r"norm|sinks", name) and name.endswith(".weight")}
    if not matrices or not any(u.op is Ops.REDUCE for u in call.src[0].toposort()): continue
    found.clear()
    try: codegen.full_rewrite_to_sink(call.src[0], Device[Device.DEFAULT].renderer)
    except Chosen: pass
    if found: names |= matrices
  return sorted(names)

EACH = [(arch, target) for arch in tuple(FAMILIES)[:10] for target in TARGETS]

@pytest.mark.parametrize(("arch", "target"), sample(EACH, [("llama", "CUDA"), ("olmoe", "CUDA")]))
def test_no_matrix_has_the_stock_schedule(arch, target, tmp_path):
  if target == "CUDA" and not has_cuda_wheels(): pytest.skip("no CUDA compiler for this machine")
  moe = MoE(experts=32, used=4, ffn=512, shared=2 * (arch == "deepseek2"), dense=arch == "deepseek2")
  sizes = {"dim": 1024, "ffn": 512 if FAMILIES[arch].moe else 2048, "layers": 1 + moe.dense, "heads": 8, "vocab": 1600}
  experts = {"moe": moe} if FAMILIES[arch].moe else {}
  latent = {"mla": MLA(kv_lora=256, nope=64, rope=32, value=64)} if FAMILIES[arch].mla else {}
  path = write_model(tmp_path / "model.gguf", arch, **sizes, types="Q4_K_M", header=True, **experts, **latent)
  found = child.call(stock, str(path), TARGETS[target], PARALLEL="0").value
  assert found == []

def test_stock_schedule_is_detected(tmp_path):
  path = write_model(tmp_path / "model.gguf", "qwen3moe", dim=256, moe=MoE(ffn=256), types="Q4_K", header=True)
  assert child.call(stock, str(path), TARGETS["CPU"], PARALLEL="0", NO_CLAMPS="1").value
