"""Metal kernels executed on the CPU (tests/support/msl), against float64."""
import re
from collections.abc import Callable

from tests.support import attention
from tests.support import child
from tests.gpu import gpu_metal
from tests.gpu import gpu_numbers
import pytest
from tests.support.extended import extended, some
from tests.gpu.gpu_matmuls import Case
from tests.gpu.gpu_metal import ENVIRONMENT, Errors, Planted
from tests.gpu.gpu_schedules import TYPES
from tests.tools.kernel_cases import CASES
from tests.tools.kernel_golden import golden
from tests.support.model_cases import MODELS
from tinygrad.helpers import to_function_name

HALVES, FLOATS = 0.03, 2e-3  # error limits of logits in standard deviations: with products of halves, and without
# error limits as fractions of the results: of products, of gates or attention with halves, of attention with floats
PRODUCT, MORE, ATTENTION = 2e-3, 6e-3, 1e-5
PROMPT, AFTER = 40, 3  # tokens of a prompt, and decode steps
CHOICES = {"sampling", "routing"}  # parts whose kernel names depend only on the numbers of tokens and of experts
# *** whole models: every kernel role of decode and of prefill

def has_widths(row: dict) -> bool:
  """Whether a kernel's name depends neither on the vocabulary size nor on the number of experts."""
  return row["part"] not in CHOICES | {"head", "embedding"} and not re.search("exp|gate_inp", row["role"] + row["part"])

def has_widths_beside_experts(row: dict) -> bool:
  """has_widths for a model with experts: the kernel that sums their results belongs to the next part, attn_norm."""
  return has_widths(row) and (row["role"], row["part"]) != ("act", "attn_norm")

def not_launched(case: str, found: Errors, wanted: Callable[[dict], bool]) -> dict[str, str]:
  """
  {name: role} of the suite's wanted kernels that were not executed.

  The stage count is ignored in the name of a kernel chain: with other widths a chain may have other stages.
  """
  def known(name: str) -> str: return re.sub(r"^s\d+_", "s_", to_function_name(name))
  return {row["name"]: row["role"] for kind, launched in zip(("prompt", "decode"), found.launched)
          for row in next(iter(golden(case, kind)["METAL:Apple9"].values()))["roles"]
          if wanted(row) and known(row["name"]) not in {*map(known, launched)}}

@extended
@pytest.mark.parametrize("case", CASES)
def test_kernel_suite_models(case):
  """The kernel suite's models with full widths: they run the suite's own kernels, and the logits are right."""
  found = Errors(*child.call(gpu_metal.of_case, case, PROMPT, AFTER, **ENVIRONMENT).value)
  assert max(found.prompt, *found.steps) < HALVES
  wanted = has_widths_beside_experts if "moe" in CASES[case] else has_widths
  assert not_launched(case, found, wanted) == {}

@extended
@pytest.mark.parametrize("case", ["llama-1b-Q8_0", *(case for case in CASES if "moe" in CASES[case])])
def test_sampling_and_routing(case):
  """Sampling and routing with the full vocabulary and all experts; the widths are small."""
  found = Errors(*child.call(gpu_metal.of_case, case, PROMPT, AFTER, False, **ENVIRONMENT).value)
  assert max(found.prompt, *found.steps) < HALVES
  assert not_launched(case, found, lambda row: row["part"] in CHOICES) == {}

@extended
@pytest.mark.parametrize("name", MODELS)
def test_every_architecture(name):
  """All architectures with float32 weights: only the cache is rounded to halves."""
  found = Errors(*child.call(gpu_metal.of_architecture, name, **ENVIRONMENT).value)
  assert max(found.prompt, *found.steps) < FLOATS

@extended
def test_sampled_answers_match_cpu():
  """The bundled model's answers, sampled on the device a step ahead, equal the CPU's without int8 activations."""
  cpu = child.call(gpu_metal.answers, 20, 24, NO_Q8_ACTIVATIONS="1").value
  assert child.call(gpu_metal.answers, 20, 24, **ENVIRONMENT).value == cpu

# *** single kernels

SHAPES = {"Q4_0": (24, 576), "Q4_K": (12, 768), "Q6_K": (16, 512), "F16": (20, 96)}
FEW_TYPES = ("Q4_K", "F16")

@pytest.mark.parametrize("types", [FEW_TYPES, pytest.param(tuple(TYPES), marks=extended)], ids=["few", "all"])
def test_decode_matvecs(types):
  """Decode matvecs: repacked weights, and x in threadgroup memory."""
  shapes = [(name, *shape) for name in types for shape in
            ([SHAPES[name]] if types is FEW_TYPES else [SHAPES.get(name, (16, 1024)), *gpu_numbers.SHAPES])]
  found = child.call(gpu_metal.products, shapes, **ENVIRONMENT).value
  assert {shape: error for shape, error in zip(shapes, found) if not error < PRODUCT} == {}

@extended
def test_expert_matvecs():
  cases = [[name, *role] for name in ("Q4_K", "Q8_0", "MXFP4") for role in gpu_numbers.MOE]
  found = child.call(gpu_metal.products_of_experts, cases, NO_Q8_ACTIVATIONS="1", **ENVIRONMENT).value
  assert [(case, error) for case, error in zip(cases, found) if not error < PRODUCT] == []

# prefill GEMMs: with epilogues, with many tokens and rows, with padding
FEW_PROMPTS = [Case("Q4_K", 40, 40, 512, 60)]
MADE = ("half", "large", "gate", "bias residual", "heads", "several half")
PROMPTS = [*(Case(name, 33 + 5 * i, 50 + 7 * i, 512, 120) for i, name in enumerate(TYPES)),
           *(Case("Q8_0", 40, 36, 96, 60, options) for options in MADE), Case("Q6_K", 70, 130, 1280, 0),
           Case("MXFP4", 200, 96, 480, 256, "several joined half"), Case("F32", 40, 40, 96, 60)]

@pytest.mark.parametrize("cases", [FEW_PROMPTS, pytest.param(PROMPTS, marks=extended)], ids=["few", "all"])
def test_prefill_gemms(cases):
  """Prefill GEMMs: simdgroup matrices, with fragments in threadgroup memory."""
  found = child.call(gpu_metal.of_prompts, cases, **ENVIRONMENT).value
  assert [(case, error) for case, error in zip(cases, found)
          if not error < (MORE if "gate" in case.options else PRODUCT)] == []

DECODE = [attention.Case(2, 4, 64, 90), attention.Case(2, 8, 64, 130, sink=True, window=64),
          attention.Case(4, 2, 256, 70, window=50, softcap=50), attention.Case(1, 16, 576, 40, W=512, latent=True),
          attention.Case(3, 3, 64, 65), attention.Case(2, 4, 64, 200, packed=8), attention.Case(1, 71, 64, 70)]
OF_PROMPTS = [attention.Case(2, 4, 64, 80, T=21, prompt=32), attention.Case(2, 8, 64, 150, T=17, prompt=32, sink=True,
                                                                         window=64),
              attention.Case(4, 2, 256, 130, T=40, prompt=64, window=100, softcap=50),
              attention.Case(1, 16, 576, 60, W=512, T=33, prompt=64, latent=True),
              attention.Case(2, 4, 32, 129, T=1, prompt=80), attention.Case(3, 3, 64, 100, T=20, prompt=32)]

@pytest.mark.parametrize(("cases", "most"), some([
  (DECODE[:1], ATTENTION), (DECODE[1:], ATTENTION), (OF_PROMPTS[:1], MORE), (OF_PROMPTS[1:], MORE)], 0),
                         ids=["decode", "more", "prompts", "more prompts"])
def test_attention(cases, most):
  found = child.call(gpu_metal.attentions, [case.__dict__ for case in cases], **ENVIRONMENT).value
  assert [(case, error) for case, error in zip(cases, found) if not error < most] == []

# *** faults planted in a GEMM kernel: pattern, index of the match, replacement, and the faults to be reported

BARRIER = r"threadgroup_barrier\(mem_flags::mem_threadgroup\);"
STORE = r"\*\(\(threadgroup __attribute__\(\(aligned\(16\)\)\) half4\*\)\(\((buf\d)\+(alu\d+)\)\)\) = "
FAULTS = {
  "no barrier before tiles are read": (BARRIER, 0, "", {"race", "uninitialised"}),
  "no barriers before tiles are written again": (rf"{BARRIER}(\s*\}}\s*){BARRIER}", 0, r"\1", {"race"}),
  "a barrier for some threads": (BARRIER, 0, r"if ((lidx0<96)) { \g<0> }",
                                 {"divergent barrier", "race", "uninitialised"}),
  "a part of a tile that nobody writes": (STORE, 0, r"if ((lidx0!=77)) \g<0>", {"uninitialised"}),
  "a tile in another's place": (STORE, -1, r"*((threadgroup half4*)((\1+(\2^8)))) = ", None),
  "an array that is too small": (r"half (buf2)\[(\d+)\d\]", 0, r"half \1[\2]", {"out of bounds"}),
  "a load of fragments at an odd place": (r"(half4 val\d+ = .*\(buf1\+\(alu\d+\+)4\)", 0, r"\g<1>3)", {"misaligned"}),
  "a product among some of a simdgroup": ("simdgroup_multiply_accumulate", 0, r"if ((a[0]>0)) \g<0>",
                                          {"divergent simdgroup"}),
  "rows beyond the last one": (r"if \(\(alu\d+&alu\d+\)\)", 0, "if (true)", {"race", "out of bounds"}),
  "a row of results after the last": (r"float2\*\)\(\((data0_\d+)\+", 0, r"float2*)((\1+4000+", {"out of bounds"}),
  "the elements of a fragment": (r"= b\[0\]", 0, "= b[1]", None),
  "another fragment": (r"__WMMA_8_8_8_half_float\(cast(\d+), cast(\d+)", 5,
                       r"__WMMA_8_8_8_half_float(cast\2, cast\1", None),
  "the first threadgroup's tokens for all": (r"gid\.x", 0, "0", None),
}

@extended
def test_planted_faults_are_found():
  """All planted faults are found: reported by the executor, or visible in the results."""
  changes = [(pattern, place, text) for pattern, place, text, _ in FAULTS.values()]
  right, *found = (Planted(*row) for row in child.call(gpu_metal.planted, FEW_PROMPTS[0], changes, **ENVIRONMENT).value)
  assert right.fault == "" and right.error < PRODUCT
  for (name, (*_, wanted)), (fault, error) in zip(FAULTS.items(), found):
    assert fault in wanted if wanted else fault or not error < 10 * PRODUCT, (name, fault, error)
