"""Layouts of packed rows: the same weights bit for bit, little more memory, rows that can be selected."""
import itertools
import types

import numpy as np
import pytest
from tests.support.extended import sample
from tests.support.synthetic import random_blocks
from tinygrad import Device, Tensor, dtypes
from tinygrad_llm.quants.table import QUANT_TYPES, pack, reference
from tinygrad_llm.weights.decode import dequantize, layout, select
from tinygrad_llm.weights.layout import Blocks, Layout, Units, store

STREAM, PLANES = Device["CPU"].renderer, types.SimpleNamespace(has_local=True)
PLACES = {"stream": STREAM, "planes": PLANES}
LAID_OUT = [qt for qt in QUANT_TYPES.values() if qt.fields]

def blocks_of(qt, rows, n):
  if qt.name == "TQ2_0":
    raw = np.random.default_rng(0).integers(0, 256, (rows * n // qt.block, qt.nbytes), np.uint8)
    raw[:, -1] = 0x2c  # gives the scale, a half, a usual size
  else: raw = random_blocks(np.random.default_rng(0), qt.name, rows * n // qt.block, 0.02)
  return np.ascontiguousarray(raw, np.uint8).reshape(rows, -1)

def stored(qt, found, raw, n):
  """The memory of rows, laid out in two parts."""
  rows = len(raw)
  if qt.unit == 4: pack(qt, raw, n, units := np.zeros((rows, qt.row_items(n)), np.uint32))
  else: units = raw.view(f"u{qt.unit}")
  units, half = units.reshape(rows, n // qt.block, -1), rows // found.tile // 2
  memory = Tensor.full((rows // found.tile, found.row_words(n // qt.block), found.tile), 7, dtype=dtypes.uint32)
  memory = memory.contiguous().realize()
  for first, part in ((0, units[:half * found.tile]), (half, units[half * found.tile:])):
    store(found, memory, Tensor(np.ascontiguousarray(part)).realize(), first)
  return memory

@pytest.mark.parametrize(("name", "on"), sample(
  itertools.product([qt.name for qt in LAID_OUT], PLACES),
  itertools.product(("Q4_K", "Q6_K", "MXFP4"), PLACES)))
def test_repacked_weights_match_reference(name, on):
  qt, ren = next(qt for qt in LAID_OUT if qt.name == name), PLACES[on]
  n = 6 * qt.block
  found, raw = layout(qt, ren, 48, n), blocks_of(qt, 48, n)
  memory, wanted = stored(qt, found, raw, n), reference(qt, raw, n)
  got = dequantize(qt, found.rows(memory), n, found)
  np.testing.assert_array_equal(got.numpy().view(np.uint32), wanted.view(np.uint32))
  some = select(qt, found.rows(memory), n, Tensor([47, 0, 17], dtype=dtypes.int32), found)
  np.testing.assert_array_equal(some.numpy(), wanted[[47, 0, 17]])
  assert 0.999 * raw.nbytes <= memory.nbytes() <= 1.09 * raw.nbytes  # few blocks need more padding, see test_bytes_held

@pytest.mark.parametrize("qt", LAID_OUT, ids=lambda qt: qt.name)
def test_bytes_held(qt):
  """Rows of real models' lengths take at most 5% more bytes, on CPUs and on GPUs."""
  for n in (2048, 2560, 2816, 2880, 3584, 4096, 8192, 11008, 14336):
    for ren in (STREAM, PLANES):
      if n % qt.block: continue
      found = layout(qt, ren, 4096, n)
      assert found is not None and 4 * found.row_words(n // qt.block) <= 1.05 * qt.row_nbytes(n), (n, ren)

def test_unsupported_sizes_keep_the_file_layout():
  named = {qt.name: qt for qt in LAID_OUT}
  assert layout(named["Q4_K"], STREAM, 40, 2048) is None  # 40 rows are not a multiple of the row tile
  assert layout(named["MXFP4"], STREAM, 64, 5 * 32) is not None and layout(named["MXFP4"], STREAM, 64, 32) is None
  assert all(layout(qt, STREAM, 64, 4096) is None for qt in QUANT_TYPES.values() if not qt.fields)

@pytest.mark.parametrize("off", ["lanes", "hooks", "vectorizer", "gemv", "patches"])
def test_rows_interleaved_only_if_vectorised(off, monkeypatch):
  """Rows are interleaved only with the patches that vectorise them; else 16 rows would take 16 times the operations."""
  wanted = [qt for qt in LAID_OUT if qt.name in ("Q4_K", "Q8_0")]
  assert all(layout(qt, STREAM, 64, 2048).tile == 16 for qt in wanted)
  monkeypatch.setenv(f"NO_{off.upper()}", "1")
  assert [layout(qt, STREAM, 64, 2048) for qt in wanted] == [None] * 2
  assert all(layout(qt, PLANES, 64, 2048) is not None for qt in wanted)

def test_stream_order():
  """A stream may reorder the file's fields and cut them into parts that lie together; each word has one place."""
  blocks = Blocks(4, (4, 10, 11), ((1, 2), (2, 1, 0)))
  found = Layout(blocks, 1, 1)
  assert [list(range(11))[part] for place in found.places() for part in place.slices()] == [
    [0], [1, 2, 3], [6, 7, 8], [4, 5], [9, 10]]
  units = Units(found, Tensor(np.arange(22, dtype=np.uint32).reshape(1, 22)), 2)
  assert units[..., 0:4].tolist() == [[[4, 5, 9, 10], [15, 16, 20, 21]]]
  assert units[..., 4:10].tolist() == [[[1, 2, 3, 6, 7, 8], [12, 13, 14, 17, 18, 19]]]
  assert units[..., 10].tolist() == [[0, 11]]

@pytest.mark.parametrize("qt", [qt for qt in LAID_OUT if qt.stream], ids=lambda qt: qt.name)
def test_scales_come_before_weights(qt):
  """Scales come before weights, and high bits before low bits, so that a sequential read can use weights early."""
  words = qt.held // 4
  found = layout(qt, STREAM, 64, 2 * qt.block)
  order = [place.first for place in found.places()]
  taken = sorted(i for place in found.places() for part in place.slices() for i in range(words)[part])
  assert taken == list(range(words)) and order != sorted(order)
  assert not layout(qt, PLANES, 64, 2 * qt.block).blocks.order

def test_field_slices():
  """A slice may be part of one field, but not of two."""
  units = Units(Layout(Blocks(4, (1, 5)), 1, 1), Tensor(np.arange(20, dtype=np.uint32).reshape(2, 10)), 2)
  assert units[..., 2:4].tolist() == [[[2, 3], [7, 8]], [[12, 13], [17, 18]]]
  assert units[..., 0].tolist() == [[0, 5], [10, 15]]
  with pytest.raises(IndexError): units[..., 0:2]
