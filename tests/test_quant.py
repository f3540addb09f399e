"""Every quantised type: bit for bit the weights of gguf-py, one kernel with its use, few bytes more than the file."""
import gguf
import numpy as np
import pytest
from tinygrad import Tensor, UOp, Variable, dtypes
from tinygrad.codegen import to_program
from tinygrad.device import Device
from tinygrad.uop.ops import Ops
from tinygrad_llm.errors import InputError
from tinygrad_llm.gguf import GGML_TYPES, TensorInfo
from tinygrad_llm.quant import QUANT_TYPES, QuantType, dequantize, pack, quant_type, reference

NUMPY = {dtypes.float32: np.float32, dtypes.float16: np.float16, dtypes.uint32: np.uint32}
# bytes at which a block has half-precision numbers
HALVES = {"F16": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
          "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,)}
# zeros, subnormal, largest, one, infinite, NaN
SPECIAL = np.array([0, 0x8000, 1, 0x8001, 0x3FF, 0x83FF, 0x7BFF, 0xFBFF, 0x3C00, 0x7C00, 0xFC00, 0x7E00], np.uint16)

def every(*names: str) -> pytest.MarkDecorator:
  types = [qt for qt in QUANT_TYPES.values() if not names or qt.name in names]
  return pytest.mark.parametrize("qt", types, ids=lambda qt: qt.name)

def named(name: str) -> QuantType: return next(qt for qt in QUANT_TYPES.values() if qt.name == name)

def random_rows(qt: QuantType, rows: int, n: int, special: bool = True) -> np.ndarray:
  """File bytes (rows * blocks, qt.nbytes): random bits; scales of all kinds if `special`, else of a sensible size."""
  rng = np.random.default_rng(qt.id)
  raw = rng.integers(0, 256, (rows * n // qt.block, qt.nbytes), np.uint8)
  for at in HALVES.get(qt.name, ()):
    scale = raw[:, at:at + 2].copy().view(np.uint16)[:, 0]
    if special: scale[:len(SPECIAL)] = rng.permutation(SPECIAL)[:len(scale)]
    else: scale[:] = rng.standard_normal(len(scale)).astype(np.float16).view(np.uint16)
    raw[:, at:at + 2] = scale.view(np.uint8).reshape(-1, 2)
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

def few(qt: QuantType) -> int: return 3 * qt.block if qt.block > 1 else 333  # odd: rows may end within a word

def test_the_table_is_that_of_gguf_py():
  for qt in QUANT_TYPES.values():
    theirs = gguf.GGMLQuantizationType(qt.id)
    assert (qt.name, qt.block, qt.nbytes) == GGML_TYPES[qt.id] == (theirs.name, *gguf.GGML_QUANT_SIZES[theirs])

@every()
@pytest.mark.parametrize("n", (256, 2048, 4096 + 256))
def test_memory_is_close_to_the_file(qt, n):
  held = qt.row_items(n) * np.dtype(NUMPY[qt.dtype]).itemsize
  assert qt.row_nbytes(n) <= held <= qt.row_nbytes(n) * 1.05 and qt.verbatim(n) == (held == qt.row_nbytes(n))

@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@every()
def test_weights_equal_gguf_py_bit_for_bit(qt):
  """Whatever the scale: at most one operation of a weight rounds, so that neither order nor fusing shows."""
  raw = random_rows(qt, 9, n := few(qt))
  assert_same_bits(dequantize(qt, packed(qt, raw, n, 9), n).numpy(), reference(qt, raw, n))

@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name, values", (("F16", 65536), ("Q8_0", 65536), ("MXFP4", 256), ("NVFP4", 256)))
def test_every_scale_that_exists(name, values):
  qt, n, rng = named(name), 1024, np.random.default_rng(0)
  raw = rng.integers(0, 256, (values, qt.nbytes), np.uint8)
  scales = np.arange(values, dtype=np.uint8 if values == 256 else np.uint16).view(np.uint8).reshape(values, -1)
  if name == "NVFP4": scales = rng.permuted(np.tile(scales, 4), axis=0)  # it has four
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

@every()
def test_selected_rows_are_one_kernel(qt):
  raw = random_rows(qt, 6, n := few(qt), special=False)
  w, ids, want = packed(qt, raw, n, 6), Tensor([4, 0, 4], dtype=dtypes.int32).realize(), reference(qt, raw, n)
  assert len(kernels(dequantize(qt, w, n)[ids])) == 1
  assert_same_bits(dequantize(qt, w, n)[ids].numpy(), want[[4, 0, 4]])

@every("F16", "Q8_0", "Q4_K", "MXFP4")
def test_selected_experts_are_one_kernel(qt):
  raw = random_rows(qt, 15, n := few(qt), special=False)
  w, ids = packed(qt, raw, n, 5, 3), Tensor([2, 0], dtype=dtypes.int32).realize()
  x = Tensor(np.random.default_rng(1).standard_normal((2, 1, n), np.float32)).realize()
  assert_same_bits(dequantize(qt, w, n).numpy(), (want := reference(qt, raw, n).reshape(5, 3, n)))
  assert len(kernels((x * dequantize(qt, w, n)[ids]).sum(-1))) == 1
  y = (x * dequantize(qt, w, n)[ids]).sum(-1).numpy()
  assert np.allclose(y, (want[[2, 0]] * x.numpy()).sum(-1, dtype=np.float64), rtol=1e-4, atol=1e-3)

@every("Q8_0", "Q6_K", "BF16")
def test_a_symbolic_number_of_rows(qt):
  raw = random_rows(qt, 6, n := few(qt), special=False)
  w, ids = packed(qt, raw, n, 6), Tensor([5, 1, 2, 3], dtype=dtypes.int32).realize()
  count, want = Variable("count", 1, 4).bind(3), reference(qt, raw, n)
  rows = dequantize(qt, w, n)[ids[:count]].contiguous().realize()
  assert_same_bits(rows.pad_to(4, None)[:3].numpy(), want[[5, 1, 2]])

@every()
def test_padding_is_zero_and_sizes_are_checked(qt):
  raw = random_rows(qt, 3, n := few(qt))
  out = np.full((3, qt.row_items(n)), 7, NUMPY[qt.dtype])
  pack(qt, raw.tobytes(), n, out)
  blocks = out.view(np.uint8).reshape(3, -1)
  if qt.held > qt.nbytes: blocks = blocks.reshape(-1, qt.held)
  used = raw.size // len(blocks)
  assert np.array_equal(blocks[:, :used].ravel(), raw.ravel()) and not blocks[:, used:].any()
  for wrong in (out[:2], out.T, out.view(np.uint8)):
    with pytest.raises(ValueError): pack(qt, raw, n, wrong)
  if qt.block > 1:
    with pytest.raises(ValueError): qt.row_items(n + 1)

def test_a_type_without_a_row(tmp_path):
  assert quant_type(TensorInfo("x", (256,), 12, tmp_path, 0, 144)).name == "Q4_K"
  with pytest.raises(InputError, match="tensor 'x': type IQ2_XXS is not supported; convert"):
    quant_type(TensorInfo("x", (256,), 16, tmp_path, 0, 66))
