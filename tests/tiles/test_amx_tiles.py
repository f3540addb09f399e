"""
tiles/amx_tiles: prefill GEMMs in AMX tile registers. Numerics are tested with plain C in place of the instructions, and
the instructions by compiling for a CPU that has them.
"""
import pathlib
import platform
import re

from tests.support import child
import numpy as np
import pytest
from tests.support import symbolic
from tests.isa import test_dot_bf16
from tests.weights import test_expert_blocks
from tests.tiles import test_pack_operands
import tinygrad_llm
from tests.support.extended import extended, sample, some
from tests.support.model_cases import IDS
from tests.support.reference import Reference, kl
from tests.support.synthetic import write_model
from tests.patches.test_codegen import STREAMS, error, vector, weight
from tests.weights.test_expert_blocks import products
from tinygrad import Device, Tensor, Variable, dtypes
from tinygrad_llm.patches.ir import targets
from tinygrad_llm.patches.search import known_schedules, space
from tinygrad_llm.patches.tiles import amx_tiles
from tinygrad_llm.weights import numerics

MOST = 1.2e-2  # error, as a fraction of the root mean square: bfloat16 weights and x have 8 bits
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="for x86")
TYPES = [*STREAMS, "BF16"]

# *** in the child

def use_tiles() -> None:
  """Pretends that this CPU has tile registers; its compiler calls plain C instead."""
  targets.multiplies_tiles = lambda ren: True

def prompt(name: str, rows: int, n: int, tokens: int, most: int) -> tuple[Tensor, np.ndarray]:
  """The lazy x @ w.T for `tokens` of at most `most` tokens, x in bfloat16, and its expected value."""
  if name == "BF16": return test_dot_bf16.prompt(rows, n, tokens, most)
  lazy_w, w = weight(name, rows, n, True)
  x = Tensor(vector(most, n)).cast(dtypes.bfloat16).realize()
  lazy = x[:Variable("tokens", 1, most).bind(tokens)].float() @ lazy_w().transpose(-1, -2)
  return lazy, x.float().numpy()[:tokens].astype(np.float64) @ w.T

def product(name: str, rows: int, n: int, tokens: int, most: int) -> dict:
  use_tiles()
  text, opts = test_pack_operands.source(prompt(name, rows, n, tokens, most)[0])
  lazy, wanted = prompt(name, rows, n, tokens, most)
  return {"error": error(Tensor(symbolic.values(lazy, wanted.shape)), wanted), "source": text, "opts": opts}

def drawn(name: str, count: int) -> list[dict]:
  """GEMMs of random sizes: any number of tokens, of tiles and of words a row."""
  rng, found = np.random.default_rng([count, len(name)]), list[dict]()
  block = test_pack_operands.block(name) if name != "BF16" else 32
  for i in range(count):
    most, deep, whole = int(rng.integers(32, 100)), i % 2, amx_tiles.DEEP // block
    blocks = int(rng.integers(whole + 1, 3 * whole + 1) if deep else rng.integers(1, 7))
    sizes = 16 * int(rng.integers(1, 8 if deep else 40)), blocks * block, int(rng.integers(1, most + 1)), most
    found.append({"sizes": sizes, **product(name, *sizes)})
  return found

def fixed(tokens: int) -> dict:
  """GEMMs with a fixed number of tokens, with a residual and with a gate: errors and sources."""
  use_tiles()
  found, rows, n = list[float](), 80, 512
  lazy_w, w = weight("Q4_K", 2 * rows, n, True)
  x, before = Tensor(vector(tokens, n)).cast(dtypes.bfloat16).realize(), vector(tokens, rows, seed=5)
  both = x.float().numpy().astype(np.float64) @ w.T
  up, gate = (x.float() @ lazy_w().transpose(-1, -2)).split(rows, dim=-1)
  kept, sources = Tensor(before).realize(), list[str]()
  gated = both[:, :rows] * np.maximum(both[:, rows:], 0)
  for lazy, wanted in ((lambda: kept + up, before + both[:, :rows]), (lambda: up * gate.relu(), gated)):
    sources.append(test_pack_operands.source(lazy())[0])
    found.append(error(lazy(), wanted))
  return {"errors": found, "sources": sources}

def experts(name: str, m: int, fused: bool, lengths: list[int]) -> dict:
  """Expert GEMMs of prompts of several lengths, in blocks of as many pairs as the registers hold."""
  use_tiles()
  test_expert_blocks.SLOTS = numerics.slots_of_blocks()
  return {"slots": test_expert_blocks.SLOTS, **products(name, m, fused, lengths, 0)}

def model(path: str, tiles: bool) -> list[float]:
  """[mean, maximum] over positions of the KL from the reference's logits to a prompt's."""
  if tiles: use_tiles()
  ids = IDS[:75]
  exact, logits = Reference(path).logits(ids), tinygrad_llm.load(path, max_context=128, chunk=64).logits(ids)
  each = [kl(a[None], b[None]) for a, b in zip(exact, logits)]
  return [float(np.mean(each)), max(each)]

def chosen(archs: list[str]) -> list[bool]:
  from dataclasses import replace
  ren = Device["CPU"].renderer
  return [amx_tiles.available(type(ren)(replace(ren.target, arch=arch))) for arch in archs]

def compiled(cpu: str) -> str:
  """The object code of a GEMM for another CPU, in hexadecimal."""
  from dataclasses import replace
  use_tiles()
  from tinygrad.codegen import to_program
  from tinygrad.engine import realize
  ast, ren = realize._get_call_to_compile(prompt("Q4_K", 64, 512, 40, 64)[0].linear_with_vars()[0].src[-1])
  ren = type(ren)(replace(ren.target, arch=f"x86_64,{cpu}"))
  return ren.compiler.compile(to_program(ast, ren).src[2].arg).hex()

def searched() -> dict:
  """The actions that a search offers for a GEMM, and the known schedules of other projects."""
  use_tiles()
  ren = Device["CPU"].renderer
  k = space.Loops(space.before_opts(prompt("Q4_K", 512, 512, 21, 64)[0].linear_with_vars()[0].src[-1].src[0], ren), ren)
  ours = {name: opts for name, opts in known_schedules.known(k.start()).items() if name in known_schedules.REGISTERS}
  offered = [step.amount for step in k.actions(k.start()) if step.op.name == "AMX"]
  steps = k.steps(next(iter(ours.values())))
  others = {step.op.name for more in k.neighbours(steps) if k.opts(more) is not None for step in more if len(more) > 1}
  return {"offered": offered, "known": {name: str(opts) for name, opts in ours.items()}, "others": sorted(others),
          "legal": [k.opts([space.Step(amx_tiles.ScheduleOps.AMX, None, n)]) is not None for n in (0, 1, 2, 3, 64, 66)]}

# *** here

@pytest.mark.parametrize("name", sample(TYPES, ("Q4_K",)))
def test_results_match_reference(name):
  for found in child.call(drawn, name, 2).value:
    assert found["error"] < MOST, found["sizes"]
    assert "amx_step(" in found["source"] and "ScheduleOps.AMX" in found["opts"], found["sizes"]

@pytest.mark.parametrize("sizes", some([[name, *sizes] for name, *sizes in (
  ("Q4_K", 16, 256, 1, 32), ("Q6_K", 4128, 256, 33, 40), ("Q8_0", 48, 8192, 64, 64))], 0))
def test_extreme_sizes(sizes):
  """Extreme sizes: one tile and one iteration; tiles that threads do not divide; long rows."""
  found = child.call(product, *sizes).value
  assert found["error"] < MOST and "amx_step(" in found["source"]

@pytest.mark.parametrize("tokens", some([32, 45], 1))
def test_residual_and_gate_epilogues(tokens):
  found = child.call(fixed, tokens).value
  assert found["errors"][0] < MOST and found["errors"][1] < 2 * MOST
  calls = [re.findall(r"amx_(\w+)\(\(", text) for text in found["sources"]]
  assert calls == [["configure", *["start", "step", "stop"] * n] for n in (1, 2)]  # one after the other

@extended
@pytest.mark.parametrize(("name", "m", "fused"), [("Q4_0", 2, False), ("Q4_0", 2, True), ("MXFP4", 1, False)])
def test_expert_gemm_results(name, m, fused):
  """Expert GEMMs are compared with products of 8-bit activations."""
  found = child.call(experts, name, m, fused, [7, 40, 1, 33]).value
  assert found["slots"] == amx_tiles.TOKENS and max(found["errors"]) < MOST and found["traced"] <= 2

@extended
@pytest.mark.parametrize("types", ["Q4_K_M", "Q8_0", "BF16"])
def test_model_logits(tmp_path, types):
  """A prompt's logits are nearer to the reference than with int8 activations."""
  path = str(write_model(tmp_path / "model.gguf", dim=256, layers=1, vocab=320, types=types))
  tiles, bytes_ = child.call(model, path, True).value, child.call(model, path, False, NO_AMX_TILES="1").value
  assert tiles[0] < 1e-4 and tiles[1] < 1e-3
  assert types == "BF16" or tiles[0] < bytes_[0] / 2

@pytest.mark.parametrize("sizes, env", some([
  (["Q4_K", 64, 256, 7, 31], {}), (["BF16", 33, 64, 40, 64], {}), (["Q4_K", 64, 256, 40, 64], {"NO_AMX_TILES": "1"})],
  2), ids=["few", "odd", "off"])
def test_conditions_without_amx(sizes, env):
  """Tiles are off for few tokens, for rows that are no multiple of 16, and by the switch."""
  found = child.call(product, *sizes, **env).value
  assert "amx_" not in found["source"] and found["error"] < MOST

@X86
def test_chosen_by_cpu_features():
  archs = {"x86_64,x86-64-v4": False, "x86_64,sapphirerapids": True, "x86_64,x86-64-v4,amx-tile,amx-bf16": True,
           "x86_64,native": "amx_bf16" in pathlib.Path("/proc/cpuinfo").read_text() and targets.may_use_tiles()}
  assert dict(zip(archs, child.call(chosen, [*archs]).value)) == archs
  for off in ("NO_LANES", "NO_AMX_TILES"):
    assert child.call(chosen, ["x86_64,sapphirerapids"], **{off: "1"}).value == [False]

@X86
def test_emitted_instructions():
  """Tiles are cleared and stored once; an iteration loads four and multiplies four times. Without AMX there is none."""
  counts = {"ldtilecfg": "c4..7849", "tilezero": "c4e27b49", "tileloadd": "c4..7b4b", "tdpbf16ps": "c4e2.[26ae]5c",
            "tilestored": "c4..7a4b"}
  def of(cpu: str) -> dict[str, int]:
    code = child.call(compiled, cpu).value
    return {name: len(re.findall(digits, code)) for name, digits in counts.items()}
  found = of("sapphirerapids")  # clang unrolls the loop
  assert found["tileloadd"] == found["tdpbf16ps"] > 0 and found["tileloadd"] % 4 == 0
  assert found["ldtilecfg"] == 1 and found["tilezero"] == found["tilestored"] == 4
  assert not any(of("x86-64-v4").values())

@extended
def test_search_space():
  """A search varies only the number of tiles and the prefetch distance of the packed weights."""
  found = child.call(searched).value
  assert found["offered"] == [2, 4, 8, 16, 32, 64] and found["legal"] == [False, False, True, False, True, False]
  assert list(found["known"]) == ["llama.cpp AMX"] and "ScheduleOps.AMX" in found["known"]["llama.cpp AMX"]
  assert found["others"] == ["AMX", "PREFETCH"]
