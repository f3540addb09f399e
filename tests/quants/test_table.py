"""
Every quantised type gives gguf-py's weights bit for bit, fuses into one kernel, and takes few bytes more than a file.
"""
import gguf
import numpy as np
import pytest
from tinygrad import Tensor, TinyJit, UOp, Variable, dtypes
from tinygrad.codegen import to_program
from tinygrad.device import Device
from tinygrad.llm.gguf import ggml_data_to_tensor
from tinygrad.uop.ops import Ops
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import GGML_TYPES, TensorInfo
from tinygrad_llm.quants import grids
from tinygrad_llm.quants.grids import look_up
from tinygrad_llm.quants.table import QUANT_TYPES, QuantType, pack, quant_type, reference
from tinygrad_llm.weights.decode import dequantize, select

NUMPY = {dtypes.float32: np.float32, dtypes.float16: np.float16, dtypes.uint32: np.uint32,
         dtypes.int8: np.int8, dtypes.int16: np.int16, dtypes.int32: np.int32}
# {type: byte offsets of the half-precision numbers in a block}
HALVES = {"F16": (0,), "Q1_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
          "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,),
          "IQ4_XS": (0,), "TQ1_0": (52,), "TQ2_0": (64,), "IQ1_S": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,),
          "IQ3_XXS": (0,), "IQ3_S": (0,)}
GRIDS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
# zeros, subnormal, largest, one, infinite, NaN
SPECIAL = np.array([0, 0x8000, 1, 0x8001, 0x3FF, 0x83FF, 0x7BFF, 0xFBFF, 0x3C00, 0x7C00, 0xFC00, 0x7E00], np.uint16)
# doubles whose float32 is zero, subnormal, rounded to even, the largest, infinite or NaN
DOUBLES = np.array([-0.0, 5e-324, -1e-50, 1e-40, -1.4e-45, 2**-149.0, 1 + 2**-24, 1 + 3 * 2**-24, 3.4028235e38, -1e39,
                    np.inf, np.nan])
INTEGERS = np.array([0, -1, 2**24 + 1, -2**24 - 3, 2**31, 2**62 + 2**38, 2**63 - 1, -2**63])

def every(*names: str) -> pytest.MarkDecorator:
  types = [qt for qt in QUANT_TYPES.values() if not names or qt.name in names]
  return pytest.mark.parametrize("qt", types, ids=lambda qt: qt.name)

def named(name: str) -> QuantType: return next(qt for qt in QUANT_TYPES.values() if qt.name == name)

def halves(rng: np.random.Generator, count: int, special: bool) -> np.ndarray:
  """The bits of half-precision scales: special ones, then random bits; without `special`, numbers of a usual size."""
  if not special: return rng.standard_normal(count).astype(np.float16).view(np.uint16)
  scale = rng.integers(0, 65536, count, np.uint16)
  scale[:len(SPECIAL)] = rng.permutation(SPECIAL)[:count]
  return scale

def random_rows(qt: QuantType, rows: int, n: int, special: bool = True) -> np.ndarray:
  """File bytes (rows * blocks, qt.nbytes): random bits; scales of all kinds if `special`, else of a usual size."""
  rng = np.random.default_rng(qt.id)
  raw = rng.integers(0, 256, (rows * n // qt.block, qt.nbytes), np.uint8)
  for at in HALVES.get(qt.name, ()):
    raw[:, at:at + 2] = halves(rng, len(raw), special).view(np.uint8).reshape(-1, 2)
  if qt.name == "IQ1_M":  # d is one nibble in each of the last four halves
    tail, d = raw[:, 48:].copy().view(np.uint16), halves(rng, len(raw), special)
    for i in range(4): tail[:, i] = tail[:, i] & 0xFFF | (d >> 4 * i) << 12
    raw[:, 48:] = tail.view(np.uint8)
  if qt.name == "F64":
    values = rng.standard_normal(len(raw))
    if special: values[:len(DOUBLES)] = DOUBLES
    raw[:] = values.view(np.uint8).reshape(-1, 8)
  if qt.name == "I64" and special: raw[:len(INTEGERS)] = INTEGERS.view(np.uint8).reshape(-1, 8)
  if not special and qt.name in ("F32", "BF16"): raw[:, -1] = 0x3F | raw[:, -1] & 0x80
  if not special and qt.name == "MXFP4": raw[:, 0] = 120 + raw[:, 0] % 16
  return raw

def packed(qt: QuantType, raw: np.ndarray, n: int, *lead: int) -> Tensor:
  out = np.full((*lead, qt.row_items(n)), 7, NUMPY[qt.dtype])
  pack(qt, raw, n, out)
  return Tensor(out).realize()

def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
  nan = np.isnan(want)
  assert got.dtype == want.dtype == np.float32 and np.array_equal(np.isnan(got), nan)
  assert np.array_equal(got.view(np.uint32)[~nan], want.view(np.uint32)[~nan])

def kernels(x: Tensor) -> list[UOp]: return [call for call in x.linear_with_vars()[0].src if call.src[0].op is Ops.SINK]

def few(qt: QuantType) -> int: return 3 * qt.block if qt.block > 1 else 333  # odd, so that rows may end within a word

def test_table_matches_gguf_py():
  for qt in QUANT_TYPES.values():
    theirs = gguf.GGMLQuantizationType(qt.id)
    assert (qt.name, qt.block, qt.nbytes) == GGML_TYPES[qt.id] == (theirs.name, *gguf.GGML_QUANT_SIZES[theirs])
    assert qt.grid == (qt.name in GRIDS)
  missing = {known[0] for id, known in GGML_TYPES.items() if id not in QUANT_TYPES}
  assert missing == {"Q8_1", "Q8_K"}  # they occur in no file

@every()
@pytest.mark.parametrize("n", (256, 2048, 4096 + 256))
def test_memory_is_close_to_file_size(qt, n):
  held, file = qt.row_items(n) * np.dtype(NUMPY[qt.dtype]).itemsize, qt.row_nbytes(n)
  assert held == file // 2 if qt.name in ("F64", "I64") else file <= held <= file * 1.05
  assert qt.verbatim(n) == (held == file)

@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@every()
def test_weights_equal_gguf_py_bit_for_bit(qt):
  """
  At most one operation per weight rounds, so neither order nor fused multiply-adds change a bit, whatever the scale.
  """
  raw = random_rows(qt, 9, n := few(qt))
  assert_same_bits(dequantize(qt, packed(qt, raw, n, 9), n).numpy(), reference(qt, raw, n))

@every("Q1_0", "Q8_0", "Q4_K")
def test_reference_matches_tinygrad_decoding(qt):
  """tinygrad checks our reference for Q1_0, which gguf-py cannot decode; other types show that the comparison works."""
  raw = random_rows(qt, 3, n := few(qt), special=False)
  theirs = ggml_data_to_tensor(Tensor(raw.reshape(-1)).realize(), 3 * n, qt.id)
  np.testing.assert_array_equal(theirs.cast(dtypes.float32).numpy().reshape(3, n), reference(qt, raw, n))

@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name, values", (("F16", 65536), ("Q8_0", 65536), ("MXFP4", 256), ("NVFP4", 256)))
def test_every_possible_scale(name, values):
  qt, n, rng = named(name), 1024, np.random.default_rng(0)
  raw = rng.integers(0, 256, (values, qt.nbytes), np.uint8)
  scales = np.arange(values, dtype=np.uint8 if values == 256 else np.uint16).view(np.uint8).reshape(values, -1)
  if name == "NVFP4": scales = rng.permuted(np.tile(scales, 4), axis=0)  # a block has four scales
  raw[:, :scales.shape[1]] = scales
  rows = values * qt.block // n
  assert_same_bits(dequantize(qt, packed(qt, raw, n, rows), n).numpy(), reference(qt, raw, n))

@every()
def test_matvec_is_one_kernel_without_selects(qt):
  raw = random_rows(qt, 8, n := 2 * few(qt), special=False)
  x = np.random.default_rng(1).standard_normal(n, np.float32)
  w, xt = packed(qt, raw, n, 8), Tensor(x).realize()
  y = (xt * dequantize(qt, w, n)).sum(-1)
  want = reference(qt, raw, n).astype(np.float64) @ x
  assert np.allclose(y.numpy(), want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
  calls = kernels((xt * dequantize(qt, w, n)).sum(-1))
  assert len(calls) == 1
  program = to_program(calls[0].src[0], Device[Device.DEFAULT].renderer)
  source = next(u.arg for u in program.src if u.op is Ops.SOURCE)
  assert " restrict" in source and "?" not in source, source

@every(*GRIDS)
def test_matmul_dequantises_grid_weights_once(qt):
  raw = random_rows(qt, 8, n := few(qt), special=False)
  w, x = packed(qt, raw, n, 8), Tensor(np.random.default_rng(1).standard_normal((5, n), np.float32)).realize()
  assert len(kernels(x @ dequantize(qt, w, n).T)) <= 2
  want = x.numpy().astype(np.float64) @ reference(qt, raw, n).T
  assert np.allclose((x @ dequantize(qt, w, n).T).numpy(), want, rtol=1e-4, atol=1e-4 * np.abs(want).max())

@pytest.mark.parametrize("name", GRIDS)
def test_every_grid_code(name):
  getattr(gguf.quants, name).init_grid()
  want = getattr(gguf.quants, name).grid[0, 0]
  code = np.random.default_rng(0).permutation(len(want)).astype(np.uint32)
  got = look_up(name, Tensor(code) & len(want) - 1)
  assert np.array_equal(got.numpy(), want[code] - min(want.min(), 0))

@every("IQ2_S")
def test_grid_first_used_during_capture(qt):
  raw = random_rows(qt, 4, n := few(qt), special=False)
  w, want, x = packed(qt, raw, n, 4), reference(qt, raw, n), Tensor.ones(n).contiguous().realize()
  turn = 0
  @TinyJit
  def step(x: Tensor) -> Tensor: return (x * dequantize(qt, w, n)).sum(-1).realize() if turn else (x + 1).realize()
  for turn in range(4):
    if turn == 1: grids._table.cache_clear()
    got = step(x).numpy()
  assert np.allclose(got, want.sum(-1), rtol=1e-3, atol=1e-3)
  assert step.captured is not None and len(step.captured.linear.src) == 1  # a replay does not copy the table again

@every()
def test_selected_rows_are_one_kernel(qt):
  raw = random_rows(qt, 6, n := few(qt), special=False)
  w, ids, want = packed(qt, raw, n, 6), Tensor([4, 0, 4], dtype=dtypes.int32).realize(), reference(qt, raw, n)
  calls = kernels(select(qt, w, n, ids))
  assert len(calls) == 1
  assert_same_bits(select(qt, w, n, ids).numpy(), want[[4, 0, 4]])

@every("F16", "Q8_0", "Q4_K", "MXFP4", "TQ2_0", "IQ2_XS", "IQ1_M")
def test_selected_experts_are_one_kernel(qt):
  raw = random_rows(qt, 15, n := few(qt), special=False)
  w, ids = packed(qt, raw, n, 5, 3), Tensor([2, 0], dtype=dtypes.int32).realize()
  x = Tensor(np.random.default_rng(1).standard_normal((2, 1, n), np.float32)).realize()
  assert_same_bits(dequantize(qt, w, n).numpy(), (want := reference(qt, raw, n).reshape(5, 3, n)))
  assert len(kernels((x * select(qt, w, n, ids)).sum(-1))) == 1
  y, total = (x * select(qt, w, n, ids)).sum(-1).numpy(), (want[[2, 0]] * x.numpy()).sum(-1, dtype=np.float64)
  assert np.allclose(y, total, rtol=1e-4, atol=1e-5 * np.abs(want * x.numpy()[:1]).sum(-1).max())

@every("Q4_K", "IQ2_XS")
def test_selection_along_other_axis_with_repeats(qt):
  """Like choosing experts from two matrices in one tensor, each expert many times."""
  raw = random_rows(qt, 12, n := few(qt), special=False)
  w, want = packed(qt, raw, n, 2, 3, 2), reference(qt, raw, n).reshape(2, 3, 2, n)
  for ids in ([[2, 0]], [[0, 1, 2, 1]] * 50):
    index = slice(None), Tensor(ids, dtype=dtypes.int32).realize()
    assert len(kernels(select(qt, w, n, index))) == 1
    assert_same_bits(select(qt, w, n, index).numpy(), want[:, ids])

@every("Q8_0", "Q6_K", "BF16", "IQ3_S", "TQ1_0")
def test_symbolic_number_of_rows(qt):
  raw = random_rows(qt, 6, n := few(qt), special=False)
  w, ids = packed(qt, raw, n, 6), Tensor([5, 1, 2, 3], dtype=dtypes.int32).realize()
  count, want = Variable("count", 1, 4).bind(3), reference(qt, raw, n)
  rows = select(qt, w, n, ids[:count]).contiguous().realize()
  assert_same_bits(rows.pad_to(4, None)[:3].numpy(), want[[5, 1, 2]])

@every()
def test_padding_is_zero_and_sizes_are_checked(qt):
  raw = random_rows(qt, 3, n := few(qt))
  out = np.full((3, qt.row_items(n)), 7, NUMPY[qt.dtype])
  pack(qt, raw.tobytes(), n, out)
  blocks = out.view(np.uint8).reshape(3, -1)
  if qt.held > qt.nbytes: blocks = blocks.reshape(-1, qt.held)
  if qt.held < qt.nbytes: assert_same_bits(out, reference(qt, raw, n))
  else:
    used = slice(qt.front, qt.front + raw.size // len(blocks))
    assert np.array_equal(blocks[:, used].ravel(), raw.ravel()) and not np.delete(blocks, used, axis=1).any()
  for wrong in (out[:2], out.T, np.zeros(out.shape)):
    with pytest.raises(ValueError): pack(qt, raw, n, wrong)
  if qt.block > 1:
    with pytest.raises(ValueError): qt.row_items(n + 1)

def test_unsupported_type_is_refused(tmp_path):
  assert quant_type(TensorInfo("x", (256,), 12, tmp_path, 0, 144)).name == "Q4_K"
  with pytest.raises(InputError, match="tensor 'x': type Q8_K is not supported; convert .* F32, .* IQ3_S"):
    quant_type(TensorInfo("x", (256,), 15, tmp_path, 0, 292))
