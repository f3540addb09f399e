"""isa/dot_bf16: prefill GEMMs with BF16 weights; one instruction multiplies pairs, for any number of tokens."""
import platform
import re

from tests.isa.words import number
from tests.support import child
import numpy as np
import pytest
from tests.support.extended import some
from tests.support import symbolic
from tests.support.vectors import LANE, added, vectorizer
from tinygrad import Device, Tensor, Variable, dtypes
from tinygrad.codegen import to_program
from tinygrad.engine import realize
from tinygrad.runtime.support import compiler_cpu
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.isa import dot_bf16
from tinygrad_llm.quants.table import QUANT_TYPES
from tinygrad_llm.weights import numerics
from tinygrad_llm.weights.decode import dequantize
from tinygrad_llm.weights.linear import Linear
from tinygrad_llm.weights.weight import Weight

MOST = 1e-5  # error, as a fraction of the root mean square
LOOP = 64    # elements of a sum in a loop iteration; a sum of only so many has no loop
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="for x86")
WITHOUT, WITH = "CPU:CLANG:x86_64,x86-64-v3", "CPU:CLANG:x86_64,x86-64-v4,avx512bf16"
SIZES = [(96, 256, 5, 300), (33, 64, 32, 64), (512, 320, 64, 64), (7, 16, 3, 3), (40, 48, 2, 2), (1, 2064, 17, 40)]

# *** in the child

def bf16_weight(rows: int, n: int, seed: int = 0) -> tuple[Weight, np.ndarray]:
  """A BF16 matrix as a file has it, and in float64."""
  bits = np.random.default_rng([rows, n, seed]).standard_normal((rows, n)).astype(np.float32).view(np.uint32) >> 16
  qt = next(qt for qt in QUANT_TYPES.values() if qt.name == "BF16")
  stored = Tensor(bits.astype(np.uint16).view(np.uint32).reshape(rows, -1)).realize()
  return Weight(qt, stored, (rows, n)), (bits << 16).view(np.float32).astype(np.float64)

def source(lazy: Tensor) -> str:
  return to_program(*realize._get_call_to_compile(lazy.linear_with_vars()[0].src[-1])).src[2].arg

def prompt(rows: int, n: int, tokens: int, most: int) -> tuple[Tensor, np.ndarray]:
  """The lazy x @ w.T for `tokens` of at most `most` tokens, x in bfloat16, and the expected result."""
  weight, w = bf16_weight(rows, n)
  x = Tensor(np.random.default_rng(n).standard_normal((most, n)).astype(np.float32)).cast(dtypes.bfloat16).realize()
  lazy = x[:Variable("tokens", 1, most).bind(tokens)].float() @ dequantize(weight.qtype, weight.packed, n, None).T
  return lazy, x.float().numpy()[:tokens].astype(np.float64) @ w.T

def computed(sizes: list[tuple[int, int, int, int]]) -> list[dict]:
  out = []
  for size in sizes:
    lazy, wanted = prompt(*size)
    values = symbolic.values(prompt(*size)[0], wanted.shape)
    error = np.abs(values - wanted).max() / np.sqrt((wanted ** 2).mean())
    out.append({"size": size, "source": source(lazy), "error": float(error)})
  return out

def of_linear(tokens: int) -> dict:
  """A layer's Linear of two matrices with one input: whether x is stored as bf16, and the largest error."""
  made = [bf16_weight(48, 96, seed) for seed in range(2)]
  linear = Linear([weight for weight, _ in made], [(48,), (48,)], [None] * 2, [None] * 2)
  x = np.random.default_rng(9).standard_normal((1, tokens, 96)).astype(np.float32)
  lazy = Tensor(x).realize()
  ys = [y.numpy()[0] for y in linear(lazy)]
  of = Tensor(x).cast(dtypes.bfloat16).float().numpy()[0] if linear.bf16 and tokens > 1 else x[0]
  return {"stores": bool(linear.stores(lazy)), "available": numerics.multiplies_bf16(96),
          "error": max(float(np.abs(y - of.astype(np.float64) @ w.T).max()) for y, (_, w) in zip(ys, made))}

def chosen(arch: str) -> bool:
  from dataclasses import replace
  ren = Device["CPU"].renderer
  return dot_bf16.available(type(ren)(replace(ren.target, arch=arch)))

CALLED = dot_bf16.FUNCTIONS + """
void f(bf16_sums* r, bf16_pairs* a, bf16_pairs* b) { *r = add_bf16_dots(*r, *a, *b); }
"""

def object_code(cpu: str) -> str: return compiler_cpu.ClangCompiler(["x86_64", cpu]).compile(CALLED).hex()

# *** here

@pytest.mark.parametrize("target", some(["CPU", *([WITHOUT] if platform.machine() == "x86_64" else [])], 0))
def test_results_match_reference(target):
  rng = np.random.default_rng(len(target))
  drawn = [(int(rng.integers(1, 80)), 16 * int(rng.integers(1, 40)), int(rng.integers(1, 90)), 90) for _ in range(5)]
  found = child.call(computed, [*SIZES, *drawn], DEV=target, NO_AMX_TILES="1").value
  assert {row["size"]: row["error"] for row in found if row["error"] > MOST} == {}
  long = [row for row in found if row["size"][1] > LOOP and row["size"][1] % dot_bf16.AT_ONCE == 0]
  assert len(long) > 2 and [row["size"] for row in long if "add_bf16_dots(" not in row["source"]] == []

def test_disabled_by_switch():
  found = child.call(computed, SIZES[:2], NO_DOT_BF16="1").value
  assert all("add_bf16_dots" not in row["source"] and row["error"] < MOST for row in found)

@pytest.mark.parametrize("tokens", some([1, 5], 0))
def test_prefill_x_is_stored_as_bf16(tokens):
  found, off = child.call(of_linear, tokens).value, child.call(of_linear, tokens, NO_DOT_BF16="1").value
  assert found["stores"] == (found["available"] and tokens > 1) and not off["stores"] and not off["available"]
  assert max(found["error"], off["error"]) < 1e-4

@X86
def test_chosen_by_cpu_features():
  archs = {"x86_64,x86-64-v3": False, "x86_64,x86-64-v4": False, "x86_64,x86-64-v4,avx512bf16": True}
  assert {arch: child.call(chosen, arch).value for arch in archs} == archs
  assert not child.call(chosen, "x86_64,x86-64-v4,avx512bf16", NO_LANES="1").value

@X86
def test_emits_vdpbf16ps():
  """CPUs that have it use vdpbf16ps of 512 bits."""
  code = {cpu: child.call(object_code, cpu).value for cpu in ("sapphirerapids", "znver4", "x86-64-v4")}
  assert {cpu: bool(re.search("62f2.[6e]4852", text)) for cpu, text in code.items()} == \
    {"sapphirerapids": True, "znver4": True, "x86-64-v4": False}

# *** vectors

A, B = (UOp.param(slot, dtypes.uint32, (256,)) for slot in (0, 1))

def halves(of: UOp, first: int, by: int = dot_bf16.BITS) -> UOp:
  """16 consecutive bfloat16 (two a word) as floats, one a lane."""
  at = LANE + first
  place, half = at.alu(Ops.SHR, UOp.const(1)), at.alu(Ops.AND, UOp.const(1)).alu(Ops.MUL, UOp.const(16))
  word = of.index(place).load().alu(Ops.SHR, half.cast(dtypes.uint32)).alu(Ops.AND, number(0xffff))
  return word.alu(Ops.SHL, number(by)).bitcast(dtypes.float)

def dots(*firsts: tuple[int, int], by: int = dot_bf16.BITS) -> UOp | None:
  value = added(*[halves(A, a, by).alu(Ops.MUL, halves(B, b)) for a, b in firsts])
  return dot_bf16.dots(vectorizer(value), value)

def test_pair_of_vectors_becomes_bf16_dot():
  """sum of a[i] * b[i] over 16 lanes, and a[i + 16] * b[i + 16] --> add_bf16_dots(0, a[0..32], b[0..32])"""
  made = dots((32, 64), (48, 80))
  assert made.arg.startswith(f"{dot_bf16.NAME}(") and [u.op for u in made.src[1:]] == [Ops.LOAD] * 2
  assert [int(u.src[0].src[1].vmax) for u in made.src[1:]] == [16, 32] and made.src[1].max_numel() == 16
  four = dots((0, 0), (16, 16), (32, 32), (48, 48))
  assert four.src[0].arg == four.arg == made.arg  # the second instruction adds to the first

@pytest.mark.parametrize("firsts", [((32, 64),), ((32, 64), (64, 80)), ((32, 64), (48, 96)), ((33, 64), (49, 80))])
def test_rejects_other_pairs(firsts):
  """No pair: a single vector; vectors adjacent in only one factor; a vector that begins within a word."""
  assert dots(*firsts) is None and dots((32, 64), (48, 80), by=8) is None
