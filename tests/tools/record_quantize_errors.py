"""
Records llama.cpp's quantisation errors on the tensors below, and its types for the matrices of the models below.

tests/commands/test_quantize.py compares with the record, tests/data/quantize_errors.json. Development only: it needs
llama-cpp-python.

  python tests/tools/record_quantize_errors.py
"""
import argparse
import ctypes
import json
import pathlib
import sys
import tempfile
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import gguf
import numpy as np

from tests.support import synthetic

RECORD = pathlib.Path(__file__).parents[1] / "data" / "quantize_errors.json"
SHAPE = (32, 1024)
TYPES = ("Q4_K", "Q5_K", "Q6_K", "MXFP4", "Q8_0", "Q4_0", "Q5_0", "Q5_1")
FILE_TYPES = {"Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "Q8_0": 7}
SMALL = {"dim": 64, "ffn": 96, "heads": 2, "kv_heads": 1, "vocab": 300, "types": "F16"}    # all types are fallbacks
WIDE = {"dim": 256, "ffn": 256, "heads": 2, "kv_heads": 1, "vocab": 300, "types": "F16"}
MODELS: dict[str, dict[str, Any]] = {
  "wide": {**WIDE, "arch": "llama", "layers": 9},
  "untied": {**SMALL, "arch": "qwen2", "layers": 32, "tied": False},
  "70b": {**SMALL, "arch": "llama", "layers": 80},
  "experts": {**WIDE, "arch": "llama", "layers": 8, "kv": {"llama.expert_count": 8, "llama.expert_used_count": 2}},
  "odd": {**SMALL, "arch": "qwen3", "layers": 8, "ffn": 72, "heads": 3, "kv_heads": 3, "head_dim": 64},
}

def tensors() -> dict[str, np.ndarray]:
  """Weights of many distributions, float32 of SHAPE, the same on every machine."""
  rng = np.random.default_rng(1)
  size = SHAPE[0] * SHAPE[1]
  z, *others = (synthetic.gaussian(rng, size, 1) for _ in range(4))
  u = rng.integers(0, 2**24, size).astype(np.float32) / 2**24
  rare = rng.integers(0, 256, size)
  ret = {
    "gaussian": z / 50, "student_t": z / np.sqrt(sum(x * x for x in others) / 3) / 50, "uniform": 2 * u - 1,
    "positive": u + 1, "negative": -10 - u, "sparse": np.where(rare < 8, z, 0),
    "outliers": np.where(rare < 1, 50 * z, z / 50), "constant": np.repeat(z[:size // 256], 256), "zero": 0 * z,
    "tiny": z * 2**-23, "subnormal": z * 1e-40, "large": z * 1e4,
  }
  return {name: x.astype(np.float32).reshape(SHAPE) for name, x in ret.items()}

def rms_error(x: np.ndarray, data: np.ndarray, type_name: str) -> float:
  back = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[type_name]).astype(np.float64)
  return float(np.sqrt(np.mean((back - x) ** 2)))

def by_role(types: dict[str, str]) -> dict[str, Any]:
  """The matrices' types: {name without the layer: type, or {type: layers} if there are several}."""
  ret: dict[str, dict[str, list[int]]] = {}
  for name, type_name in types.items():
    layer, role = name[4:].split(".", 1) if name.startswith("blk.") else ("0", name)
    if not role.endswith(("norm.weight", "bias")): ret.setdefault(role, {}).setdefault(type_name, []).append(int(layer))
  return {role: next(iter(found)) if len(found) == 1 else found for role, found in sorted(ret.items())}

def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.parse_args()
  import llama_cpp
  quantize = ctypes.CDLL(str(pathlib.Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so")).ggml_quantize_chunk
  quantize.restype = ctypes.c_size_t
  quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p]

  def error(x: np.ndarray, type_name: str) -> float:
    qtype = gguf.GGMLQuantizationType[type_name]
    data = np.empty(gguf.quant_shape_to_byte_shape(x.shape, qtype), np.uint8)
    quantize(qtype, x.ctypes.data, data.ctypes.data, 0, *x.shape, None)
    return float(f"{rms_error(x, data, type_name):.6g}")

  def mixture(source: pathlib.Path, file_type: int) -> dict[str, Any]:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = file_type
    target = source.with_suffix(".out")
    if llama_cpp.llama_model_quantize(bytes(source), bytes(target), params): raise RuntimeError(f"fails on {source}")
    return by_role({t.name: t.tensor_type.name for t in gguf.GGUFReader(target).tensors})

  errors = {type_name: {name: error(x, type_name) for name, x in tensors().items()} for type_name in TYPES}
  mixtures = {}
  with tempfile.TemporaryDirectory() as folder:
    for name, shape in MODELS.items():
      source = synthetic.write_model(pathlib.Path(folder) / f"{name}.gguf", **shape)
      for file_type, number in FILE_TYPES.items(): mixtures[f"{name} {file_type}"] = mixture(source, number)

  def section(name: str, rows: dict[str, Any]) -> str:
    return f'"{name}": {{\n' + ",\n".join(f'  "{key}": {json.dumps(row)}' for key, row in rows.items()) + "\n}"
  version = f'"llama-cpp-python": "{llama_cpp.__version__}"'
  text = ",\n".join([version, section("rms_errors", errors), section("mixtures", mixtures)])
  RECORD.write_text(f"{{\n{text}\n}}\n")

if __name__ == "__main__": main()
