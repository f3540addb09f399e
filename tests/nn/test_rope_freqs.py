"""The factors of RoPE's frequencies are read from any float type, and refused if damaged."""
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.weights.loader import Loader

VALUES = np.array([1, 1.5, 8, 32], np.float32)

def loaded(path, values, kind=None):
  w = GGUFWriter(str(path), "llama")
  w.add_tensor("rope_freqs.weight", values, raw_shape=None if kind is None else values.shape, raw_dtype=kind)
  w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()
  with Loader(open_gguf(path), progress=False) as loader: return loader.array("rope_freqs.weight", 4)

@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, "BF16"])
def test_float_types(tmp_path, kind):
  if kind == "BF16":
    found = loaded(tmp_path / "m", (VALUES.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8),
                   GGMLQuantizationType.BF16)
  else: found = loaded(tmp_path / "m", VALUES.astype(kind))
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, VALUES)

@pytest.mark.parametrize("values", [[1, 0, 1, 1], [1, np.nan, 1, 1]])
def test_rejects_damaged_values(tmp_path, values):
  with pytest.raises(InputError, match="rope_freqs.weight"): loaded(tmp_path / "m", np.array(values, np.float16))

def test_rejects_integers(tmp_path):
  with pytest.raises(InputError, match="should be F32"): loaded(tmp_path / "m", np.array([1, 2, 3, 4], np.int32))
