"""The Metal executor (tests/support/msl): its standard library against numpy, and planted faults."""
import functools

import numpy as np
import pytest
from tests.support.msl import build
from tests.support.msl.kernel import FAULTS, Fault, Kernel
from tests.support.msl.memory import View, view
from tests.support.msl.source import refused
from tests.gpu.msl_kernels import ELEMENTS, HEAD, K, N, POSITIONS, PRODUCT, ROWS, SUMS, kernel

loaded = functools.cache(Kernel)

def given(array: np.ndarray) -> View:
  """A buffer that holds an array."""
  made = view(array.nbytes)
  made.bytes()[:] = array.tobytes()
  return made

def held(buffer: View, dtype: type, *shape: int) -> np.ndarray:
  return np.frombuffer(buffer.bytes(), dtype).reshape(shape or -1)

# *** numbers

@pytest.mark.parametrize("seed", range(3))
def test_sum_kernel(seed):
  x, y = np.random.default_rng(seed).standard_normal((ROWS, N)).astype(np.float32), view(ROWS * 4)
  assert np.isnan(held(y, np.float32)).all()  # at first
  loaded(SUMS)([y, given(x)], (ROWS, 1, 1), (N // 4, 1, 1), seed)
  assert np.abs(held(y, np.float32, ROWS) - x.astype(np.float64).sum(-1)).max() < 1e-4

@pytest.mark.parametrize("seed", range(3))
def test_matrix_product_kernel(seed):
  rng, y = np.random.default_rng(seed), view(64 * 4)
  a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((8, K), (K, 8)))
  loaded(PRODUCT)([y, given(a), given(b), K // 8], (1, 1, 1), (32, 1, 1), seed)
  assert np.abs(held(y, np.float32, 8, 8) - a.astype(np.float64) @ b.astype(np.float64)).max() < 1e-5

def test_bfloat_matrix_product():
  """Products of bfloats are summed exactly."""
  source = PRODUCT.replace("half", "bfloat")
  rng, y = np.random.default_rng(1), view(64 * 4)
  a, b = (rng.integers(-99, 99, shape).astype(np.float32) for shape in ((8, K), (K, 8)))
  halves = [given((x.view(np.uint32) >> 16).astype(np.uint16)) for x in (a, b)]
  loaded(source)([y, *halves, K // 8], (1, 1, 1), (32, 1, 1))
  assert (held(y, np.float32, 8, 8) == a @ b).all()

def test_elementwise_operations():
  """Each operation on random numbers; halves are rounded after each operation."""
  x = np.random.default_rng(4).standard_normal((2, 64)).astype(np.float32)
  floats, halves, words, n = view(640 * 4), view(384 * 2), view(256 * 4), 3
  loaded(ELEMENTS)([floats, halves, words, given(x), n], (1, 1, 1), (64, 1, 1))
  (a, b), (g, h) = x, x.astype(np.float16)
  bits, lane = a.view(np.uint32), np.arange(64)
  rounded = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16 << 16).view(np.float32)
  cut = (bits >> 16 << 16).view(np.float32)
  wanted = [np.exp2(a), np.log2(np.abs(a)), np.sqrt(np.abs(a)), np.trunc(a * n), np.sin(a), 1 / b,
            h.astype(np.float32), cut, b * g.astype(np.float32), rounded]
  assert np.allclose(held(floats, np.float32, 10, 64), wanted, rtol=2e-6, atol=1e-6)
  found = held(halves, np.float16, 6, 64)
  assert np.allclose(found[:4], [g + h, g * h + g, np.exp2(g), np.sqrt(g * g)], rtol=1e-3, atol=0)
  assert (found[:2] == [g + h, g * h + g]).all() and (found[4:].reshape(64, 2) == x.astype(np.float16).T).all()
  others = lane // 32 * 32
  wanted = [(bits >> 24) + ((bits & 255) << 8), (a * np.float32(100)).astype(np.int32).view(np.uint32),
            bits[others + (lane * 5 + n) % 32], g.view(np.uint16)[lane ^ 7]]
  assert (held(words, np.uint32, 4, 64) == wanted).all()

def test_thread_positions():
  """Positions in three dimensions: each thread stores at its own index."""
  source = kernel("device int* data0_720", "*(data0_720+((gid.x+3*gid.y+6*gid.z)*60+lid.x+4*lid.y+20*lid.z)) = gid.z;")
  y = view(720 * 4)
  loaded(source)([y], (3, 2, 2), (4, 5, 3))
  assert (held(y, np.int32, 2, 360) == [[0], [1]]).all()

def test_subnormal_floats_are_flushed():
  """Subnormal floats are flushed to 0, as on Apple's GPUs, but halves are not; the host's mode is restored."""
  source = kernel("device float* data0_64, device half* data1_64, device float* data2_64",
                  "*(data0_64+lidx0) = ((*(data2_64+lidx0))*2.0f);",
                  "*(data1_64+lidx0) = ((half)(((float)(*(data1_64+lidx0)))*2.0f));")
  x = np.float32(2.0) ** -np.arange(100, 164).astype(np.float32)
  h = (2.0 ** -np.arange(64)).astype(np.float16)
  loaded(source)([y := view(256), z := given(h), given(x)], (1, 1, 1), (64, 1, 1))
  assert (held(y, np.float32) == np.where(np.arange(64) <= 26, x * 2, 0)).all()
  assert (held(z, np.float16) == h * 2).all() and np.float32(1e-40) * np.float32(0.5) > 0

def test_seed_sets_thread_order():
  """The seed sets the order of threads: racing threads end differently for other seeds, and alike for the same."""
  source, found = kernel("device int* data0_64", "*(data0_64+lidx0) = (*(data0_64+((lidx0+1)&63)));"), set()
  for seed in (1, 1, *range(2, 12)):
    with pytest.raises(Fault) as e: loaded(source)([given(np.arange(64, dtype=np.int32))], (1, 1, 1), (64, 1, 1), seed)
    found.add(str(e.value))
  assert 5 < len(found) <= 11

# *** planted faults: kernel, text, replacement, and the faults to be reported

BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"
PLANTED = {
  "no barrier before what others wrote is read": (SUMS, BARRIER, "", "uninitialised race"),
  "no barrier after a step's loads": (PRODUCT, f"mat_c);\n    {BARRIER}", "mat_c);", "race"),
  "no barrier before a step's loads": (PRODUCT, f"= val1;\n    {BARRIER}", "= val1;", "uninitialised race"),
  "a barrier for the wrong memory": (SUMS, "mem_flags::mem_threadgroup)", "mem_flags::mem_device)", "race"),
  "a barrier that half of the threads reach": (SUMS, BARRIER, f"if ((lidx0<32)) {{ {BARRIER} }}",
                                               "divergent barrier uninitialised"),
  "a barrier that the last thread does not reach": (SUMS, "= val1;", f"= val1;\n  if ((lidx0<63)) {{ {BARRIER} }}",
                                                    "divergent barrier"),
  "another barrier for each half of the threads": (
    SUMS, "= val1;", f"= val1;\n  if ((lidx0<32)) {{ {BARRIER} }} else {{\n {BARRIER} }}", "divergent barrier"),
  "an exchange among half of a simdgroup": (SUMS, "sum0 = (sum0+simd_shuffle_xor(sum0, 4));",
                                            "if (((lidx0&16)==0)) { sum0 = (sum0+simd_shuffle_xor(sum0, 4)); }",
                                            "divergent simdgroup"),
  "threads that ended before an exchange": (SUMS, "float sum0 =", "if ((lidx0>60)) return;\n  float sum0 =",
                                            "divergent simdgroup"),
  "a product among some of a simdgroup": (PRODUCT, "simdgroup_multiply_accumulate(mat_c, mat_a, mat_b, mat_c);",
                                          "if ((lidx0!=9)) simdgroup_multiply_accumulate(mat_c, mat_a, mat_b, mat_c);",
                                          "divergent simdgroup"),
  "an exchange with no thread": (SUMS, "simd_shuffle_xor(sum0, 16)", "simd_shuffle_xor(sum0, 32)",
                                 "no such thread in the simdgroup"),
  "memory of the threadgroup that nobody wrote": (SUMS, "(lidx0&31)==0", "lidx0==0", "uninitialised"),
  "a wrong place in an array of the threadgroup": (SUMS, "(buf0+(lidx0>>5))", "(buf0+(lidx0>>4))", "out of bounds"),
  "before an array of the threadgroup": (SUMS, "(*(buf0+0))", "(*(buf0+(-1)))", "out of bounds"),
  "beyond a buffer": (SUMS, "(lidx0<<2)", "(lidx0<<2)+4", "out of bounds"),
  "before a buffer": (SUMS, "(data1_3072+(", "(data1_3072-4+(", "out of bounds"),
  "a row too many is written": (SUMS, "(data0_12+gidx0)", "(data0_12+(gidx0+1))", "out of bounds"),
  "all rows are written to one place": (SUMS, "(data0_12+gidx0)", "(data0_12+(gidx0>>1))", "race"),
  "a row that another threadgroup writes is read": (SUMS, "= val1;", "= (val1+(*(data0_12+(gidx0^1))));", "race"),
  "threads write different numbers to one place": (SUMS, "= val1;", "= val0.x;", "race"),
  "a load of 16 bytes that begins at 4": (SUMS, "+(lidx0<<2)", "+(lidx0<<2)+((lidx0<63)?1:0)", "misaligned"),
  "more memory than a threadgroup has": (SUMS, "float buf0[2]", "float buf0[8200]", "too much threadgroup memory"),
}

def run(source: str) -> np.ndarray:
  rng = np.random.default_rng(5)
  if "data1_3072" in source:
    x = given(rng.standard_normal((ROWS, N)).astype(np.float32))
    loaded(source)([y := view(ROWS * 4), x], (ROWS, 1, 1), (N // 4, 1, 1))
  else:
    a, b = (given(rng.standard_normal(8 * K).astype(np.float16)) for _ in range(2))
    loaded(source)([y := view(64 * 4), a, b, K // 8], (1, 1, 1), (32, 1, 1))
  return held(y, np.float32)

@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found(name):
  right, old, new, kinds = PLANTED[name]
  run(right)
  assert old in right
  with pytest.raises(Fault) as e: run(right.replace(old, new))
  assert e.value.kind in kinds, e.value

WRONG = {
  "the elements of a fragment": ("column+1)", "column)"),
  "a fragment of the other operand": ("= (*(buf0+((row<<3)+column)));", "= (*(buf1+((row<<3)+column)));"),
  "a column as a row": ("int row = (((lidx0>>1)&3)+((lidx0>>4)<<2));", "int row = (((lidx0>>1)&3)+((lidx0>>3&1)<<2));"),
  "a step too few": ("step = 0", "step = 1"),
  "a matrix that is not cleared": ("mat_c.thread_elements()[1] = 0.0f;", "")}

@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_give_wrong_results(name):
  """A wrong kernel that breaks no rule shows in the results, or as a race."""
  right = run(PRODUCT).copy()
  old, new = WRONG[name]
  assert old in PRODUCT
  try: found = run(PRODUCT.replace(old, new))
  except Fault: return
  assert not np.abs(found - right).max() < 0.1

UNUSED = "float val1 = ((*(buf0+0))+(*(buf0+1)));"

def test_unused_uninitialised_reads_are_allowed():
  """Reading uninitialised memory is allowed (strict=False) if no stored result depends on it."""
  in_vain = SUMS.replace("buf0[2]", "buf0[4]").replace(UNUSED, f"{UNUSED}\n  float val2 = (*(buf0+2));").replace(
    "= val1;", "= ((lidx0<70)?val1:val2);")
  used = in_vain.replace("((lidx0<70)?val1:val2)", "((val1<val2)?val1:val2)")
  x, rows = np.random.default_rng(6).standard_normal((ROWS, N)).astype(np.float32), (ROWS, 1, 1)
  with pytest.raises(Fault) as e: run(used)
  assert e.value.kind == "uninitialised"
  kernel = Kernel(used, strict=False)
  with pytest.raises(Fault, match="depends on threadgroup memory"): kernel([view(ROWS * 4), given(x)], rows, (64, 1, 1))
  kernel = Kernel(in_vain, strict=False)
  for _ in range(2):
    kernel([y := view(ROWS * 4), given(x)], rows, (64, 1, 1))
    assert np.abs(held(y, np.float32) - x.sum(-1)).max() < 1e-4

def test_every_fault_kind_is_planted():
  assert {kind for *_, kinds in PLANTED.values() for kind in FAULTS if kind and kind in kinds} == {*FAULTS} - {""}

def test_fault_messages():
  with pytest.raises(Fault, match=r"^test: out of bounds: thread \d+ of threadgroup \(11, 0, 0\) reads 16 bytes at "
                                  r"12288 of data1_3072 \(12288 bytes\)$"):
    run(SUMS.replace("(lidx0<<2)", "(lidx0<<2)+4"))
  with pytest.raises(Fault, match=r"line \d+, is not where thread \d+ is$"):
    run(SUMS.replace("= val1;", f"= val1;\n  if ((lidx0<32)) {{ {BARRIER} }}"))
  with pytest.raises(Fault, match="of data0_12 .48 bytes., as does another thread, or several, meanwhile$"):
    run(SUMS.replace("(data0_12+gidx0)", "(data0_12+(gidx0>>1))"))

def test_rejects_bad_launches():
  y, x = view(48), view(ROWS * N * 4)
  for grid, block in (((0, 1, 1), (64, 1, 1)), ((1, 1, 1), (2048, 1, 1)), ((1, 1, 1), (32, 33, 1))):
    with pytest.raises(ValueError, match="grid"): loaded(SUMS)([y, x], grid, block)
  with pytest.raises(ValueError, match="1 arguments"): loaded(SUMS)([y], (1, 1, 1), (64, 1, 1))

# *** what Apple's compiler would refuse

REFUSED = {
  "a pointer without its address space": ("(device float4*)", "(float4*)"),
  "a pointer of another address space": ("(device float4*)", "(threadgroup float4*)"),
  "a double": ("float val1", "double val1"),
  "64 bits by their C name": ("float sum0 = (", "long long x = lidx0; float sum0 = ((float)x*0+"),
  "a static variable": ("float val1", "static float y; float val1"),
  "an unknown attribute": ("[[thread_position_in_threadgroup]]", "[[thread_position]]"),
  "a thread's number of another type": ("uint3 lid", "int3 lid"),
  "a plain pointer as an argument": ("device float* data0_12", "float* data0_12"),
  "an exchange of 64 bits": ("simd_shuffle_xor(sum0, 16)", "simd_shuffle_xor(((long)(sum0)), 16)"),
  "a vector made of too few": ("float val1 = (", "float4 v = float4(1,2,3); float val1 = v.x*0+("),
  "a vector as another": ("float val1 = (", "int4 v = val0; float val1 = v.x*0+("),
  "a function that is not Metal's": ("float val1 = (", "float val1 = expm1(sum0)*0+("),
  "an array of a helper's in threadgroup memory": ("kernel void", "void f() { threadgroup float x[2]; }\nkernel void"),
  "an array of the threadgroup in a block": (
    "if (((lidx0&31)==0)) {", "if (((lidx0&31)==0)) {\n    threadgroup __attribute__((aligned(16))) float z[2];"),
  "an array of another form": ("float buf0[2];", "float buf0[1+1];"),
  "as_type of another size": ("float val1 = (", "float val1 = as_type<ushort>(sum0)*0+("),
  "no namespace": ("using namespace metal;", ""),
}

@pytest.mark.parametrize("name", REFUSED)
def test_rejects_unsupported_source(name):
  old, new = REFUSED[name]
  assert old in SUMS
  with pytest.raises(build.Refused): build.kernel(SUMS.replace(old, new))

def test_rejects_bad_arguments():
  many = ", ".join(f"device float* data{i}" for i in range(32))
  assert refused(kernel(many)) == ["32 arguments: a kernel has at most 31"]
  assert refused(kernel(many.rpartition(",")[0])) == refused(SUMS) == refused(PRODUCT) == refused(ELEMENTS) == []
  assert refused(f"{HEAD}void test(device float* x, {POSITIONS}) {{}}") == ["0 kernels, not one"]
