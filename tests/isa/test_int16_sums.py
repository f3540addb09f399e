"""isa/int16_sums: AVX2 adds byte products of small weights as int16; no sum overflows, whatever weights and x are."""
import ctypes
import os
import subprocess

from tests.isa.words import number
from tests.support import child, symbolic
import numpy as np
import pytest
from tests.patches import test_codegen
from tests.support.extended import extended, sample
from tests.support.synthetic import LAYOUTS, random_blocks
from tests.support.vectors import LANE, added
from tests.tiles import test_pack_operands
from tests.tiles.test_pack_operands import AVX2, MOST, OF_7_BITS, WITH_AVX2, cpu_features, few
from tinygrad import Tensor, dtypes
from tinygrad.dtype import AddrSpace
from tinygrad.helpers import Target
from tinygrad.renderer.cstyle import ClangRenderer
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.ir import targets
from tinygrad_llm.patches.isa import dot_int8_cpu, int16_sums
from tinygrad_llm.patches.isa.int16_sums import Word, runs
from tinygrad_llm.patches.vector.vectorizer import Vectorizer

INT16 = np.iinfo(np.int16)
RNG = np.random.default_rng(7)

def words(most: list[int], kind: str = "7_bits") -> list[Word]:
  x = UOp.const(0)
  return [Word(kind, n, x, x) for n in most]

def drawn(count: int) -> list[int]:
  """The largest weights of words, most of them 2**bits - 1."""
  return [int(n) for n in np.where(RNG.random(count) < 0.8, (1 << RNG.integers(0, 8, count)) - 1,
                                   RNG.integers(0, 128, count))]

# *** the bounds

@pytest.mark.parametrize("bits, count", [(1, 128), (2, 42), (3, 18), (4, 8), (5, 4), (6, 2), (7, 1)])
def test_as_many_words_as_fit(bits, count):
  """A run's products fit int16 for any x; one more word might overflow."""
  most = (1 << bits) - 1
  found = runs(words([most] * 130))
  assert [len(run) for run in found] == [count] * (130 // count) + [130 % count] * (130 % count > 0)
  assert count * 2 * most * 127 <= INT16.max and count * 2 * most * -128 >= INT16.min
  assert (count + 1) * 2 * most * 127 > INT16.max or (count + 1) * 2 * most * -128 < INT16.min

def test_random_runs():
  for _ in range(200):
    given = words(drawn(int(RNG.integers(1, 40))))
    found = runs(given)
    assert [word for run in found for word in run] == given
    sums = [sum(word.most for word in run) for run in found]
    assert all(2 * total * 127 <= INT16.max and 2 * total * -128 >= INT16.min for total in sums)
    assert all(2 * (total + after[0].most) * -128 < INT16.min for total, after in zip(sums, found[1:]))

def test_larger_weights_stay_alone():
  given = [*words([15, 15]), *words([3], "signed"), *words([15]), *words([255, 3], "bytes"), *words([15, 15])]
  assert [len(run) for run in runs(given)] == [2, 1, 1, 1, 1, 2]

# *** the functions in C

def compiled(folder, arch: str):
  """int32 sums of words' dot products, r + f(w, x), in a run of int16 sums."""
  text = dot_int8_cpu.FUNCTIONS + int16_sums.FUNCTIONS + """
    void f(int* r, unsigned* w, unsigned* x, int n) {
      dots p = 0;
      for (int i = 0; i < n; i++) p = add_pairs(p, *(dot_words*)(w + 16 * i), x[i]);
      *(dots*)r = add_dots_of_pairs(*(dots*)r, p);
    }"""
  command = [os.environ["CC"], "-O2", "-shared", "-fPIC", f"-march={arch}", "-x", "c", "-", "-o", folder / f"{arch}.so"]
  subprocess.run(command, input=text.encode(), check=True)
  return ctypes.CDLL(str(folder / f"{arch}.so")).f

@pytest.mark.parametrize("arch, needs", [("x86-64-v3", {"avx2"}), ("x86-64", {"sse2"}),
                                         ("sapphirerapids", {"avx512_vnni", "avx512_bf16"})])
def test_extreme_runs_in_c(tmp_path, arch, needs):
  """Runs with all weights at their bounds, by x of -128, of 127, and of both: no int16 overflows."""
  if not needs <= set(cpu_features()): pytest.skip("the processor lacks instructions")
  f = compiled(tmp_path, arch)
  for most in [[n] * 130 for n in (1, 3, 7, 15, 24, 31, 42, 63, 127)] + [drawn(30) for _ in range(20)]:
    for run in runs(words(most)):
      bound = np.array([word.most for word in run])[:, None, None]
      weights = np.broadcast_to(bound, (len(run), 16, 4)).copy()
      weights[:, 8:] = RNG.integers(0, bound + 1, (len(run), 8, 4))
      for x in (np.full((len(run), 4), -128), np.full((len(run), 4), 127), RNG.choice([-128, 127], (len(run), 4))):
        r = RNG.integers(-2**20, 2**20, 16).astype(np.int32)
        wanted = r + (weights * x[:, None]).sum((0, 2))
        given = [np.ascontiguousarray(a) for a in (r, weights.astype(np.uint8), x.astype(np.int8))]
        f(*[a.ctypes.data_as(ctypes.c_void_p) for a in given], len(run))
        assert np.array_equal(given[0], wanted), most

# *** the rule

X, W = (UOp.param(slot, dtypes.uint32, (1024,)) for slot in (2, 3))

def product(word: int, mask: int) -> list[UOp]:
  """Four bytes of a word of each lane, by the bytes of a word of x."""
  def byte(of: UOp, i: int, mask: int) -> UOp: return of.alu(Ops.SHR, number(8 * i)).alu(Ops.AND, number(mask))
  x, w = X.index(UOp.const(word)).load(), W.index(LANE + 16 * word).load()
  return [byte(w, i, mask).cast(dtypes.int).alu(
    Ops.MUL, byte(x, i, 255).cast(dtypes.uint8).bitcast(dtypes.int8).cast(dtypes.int)) for i in range(4)]

def calls(arch: str, masks: list[int]) -> list[str]:
  """The functions that sums of words with some masks call, the outermost first."""
  value = added(*[term for word, mask in enumerate(masks) for term in product(word, mask)])
  array = UOp.placeholder((16,), value.dtype, 5, AddrSpace.REG)
  sink = UOp.sink(array.index(LANE).store(value).end(LANE))
  made = dot_int8_cpu.dot(Vectorizer(sink, LANE, ClangRenderer(Target("CPU", "CLANG", arch))), value)
  found = list[str]()
  while made is not None and made.op is Ops.CUSTOMI:
    found.append(made.arg.split("(")[0])
    made = made.src[1] if made.arg.startswith("add_dots_of_pairs") else made.src[0]
  return found

def test_words_of_4_bits_are_added_as_int16():
  """add_dots(add_dots(0, v, y), w, x) --> add_dots_of_pairs(0, add_pairs(add_pairs(0, v, y), w, x))"""
  assert calls("x86_64,x86-64-v3", [15] * 8) == ["add_dots_of_pairs", *["add_pairs"] * 8]
  assert calls("x86_64,x86-64-v3", [15] * 9)[0] == "add_dots_of_7_bits"
  assert calls("x86_64,x86-64-v4", [63] * 2) == ["add_dots_of_pairs", *["add_pairs"] * 2]

@pytest.mark.parametrize("mask, name", [(127, "7_bits"), (255, "bytes")])
def test_larger_weights_keep_int32_sums(mask, name):
  assert calls("x86_64,x86-64-v3", [mask] * 3) == [f"add_dots_of_{name}"] * 3

@pytest.mark.parametrize("arch", ["x86_64,sapphirerapids", "x86_64,x86-64-v4,avx512vnni", "arm64,apple-m1"])
def test_other_targets_keep_int32_sums(arch):
  assert not targets.adds_pairs(ClangRenderer(Target("CPU", "CLANG", arch)))
  assert calls(arch, [15] * 4) == ["add_dots_of_7_bits"] * 4

def test_bounds_of_values():
  w = W.index(LANE).load()
  of_6_bits = w.alu(Ops.AND, number(15)).alu(Ops.ADD, w.alu(Ops.AND, number(48)))
  assert int16_sums.largest([w.alu(Ops.AND, number(15)), number(9)], 7) == 15
  assert int16_sums.largest([of_6_bits], 7) == 63
  assert int16_sums.largest([w, number(3)], 5) == 31 and int16_sums.largest([w.cast(dtypes.int)], 4) == 15

# *** whole kernels

LARGEST = {"MXFP4": 0x77, "NVFP4": 0x77}  # a byte of the largest weights, if it is not 0xff
SCALES = {"MXFP4": range(1), "NVFP4": range(4)}  # bytes of a block that are not overwritten

def extreme(name: str, mixed: bool, sign: int, tokens: int, prompt: bool) -> dict:
  """
  A GEMM of the largest weights, or also the smallest (mixed), and x that are all 127 or all -127, or both at random
  (0).
  """
  def blocks(rng: np.random.Generator, name: str, n: int, std: float) -> np.ndarray:
    found, layout = random_blocks(rng, name, n, std), LAYOUTS.get(name)
    kept = SCALES[name] if layout is None else [at + i for at in (layout.d, layout.dmin) if at >= 0 for i in range(2)]
    new = [i for i in range(found.shape[1]) if i not in kept]
    chosen = rng.integers(0, 2, (len(found), len(new)), np.uint8) if mixed else np.uint8(1)
    found[:, new] = np.uint8(LARGEST.get(name, 0xff)) * chosen
    return found
  def values(*shape: int, seed: int = 1) -> np.ndarray:
    signs = np.random.default_rng(seed).choice([-1, 1], shape) if sign == 0 else np.full(shape, sign)
    return signs.astype(np.float32)
  test_codegen.random_blocks, test_pack_operands.vector = blocks, values
  def made(): return test_pack_operands.prompt(name, 32, 512, tokens, 16) if prompt else few(name, 32, 512, tokens)
  text, (lazy, wanted) = test_pack_operands.source(made()[0])[0], made()
  value = Tensor(symbolic.values(lazy, wanted.shape)) if prompt else lazy
  return {"error": test_codegen.error(value, wanted),
          **{name: test_pack_operands.kernel(text).count(f"{name}(") for name in ("add_pairs", "add_dots_of_pairs")}}

def same(name: str, *case) -> bool:
  """Whether an extreme case is right, and by int16 sums where weights have at most 6 bits."""
  row = child.call(extreme, name, *case, DEV=AVX2).value
  return row["error"] < MOST and (name not in OF_7_BITS or row["add_pairs"] >= 2 * row["add_dots_of_pairs"] > 0)

@WITH_AVX2
@pytest.mark.parametrize("name, prompt", sample([(name, p) for name in test_codegen.STREAMS for p in (False, True)],
                                                [("Q4_K", True), ("Q6_K", False)]))
def test_extreme_weights_and_activations(name, prompt):
  assert same(name, False, int(RNG.choice([-1, 1])), 3, prompt)
  assert same(name, True, int(RNG.integers(-1, 2)), 5, prompt)

@WITH_AVX2
@extended
@pytest.mark.parametrize("sign", [-1, 0, 1])
@pytest.mark.parametrize("name", OF_7_BITS)
def test_extreme_signs(name, sign):
  assert all(same(name, mixed, sign, tokens, False) for mixed, tokens in ((False, 1), (True, 2), (False, 8)))
