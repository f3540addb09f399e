"""The models of the golden files: record_golden.py writes the files, test_golden.py reads them."""
import hashlib
import pathlib
from typing import Any

import numpy as np
from synthetic import write_model

GOLDEN = pathlib.Path(__file__).parent / "golden"
DEFAULT_MODEL = pathlib.Path(__file__).parent.parent / "tinygrad_llm" / "models" / "stories.gguf"
TOKENS = 80

# seeds with which llama.cpp finds at least 97% of the best tokens of the exact model
SHAPES: dict[str, dict[str, Any]] = {
  "llama": {"arch": "llama", "heads": 8, "kv_heads": 2, "rope_freqs": True, "seed": 0},
  "qwen2": {"arch": "qwen2", "heads": 4, "kv_heads": 2, "seed": 7},
  "qwen3": {"arch": "qwen3", "heads": 4, "kv_heads": 2, "head_dim": 128, "tied": False, "seed": 7},
}
COMMON = {"dim": 256, "ffn": 512, "layers": 2, "vocab": 512, "blocks": True}
CASES: dict[str, dict[str, Any]] = {
  f"{arch}-{types}": {**COMMON, **shape, "types": types}
  for arch, shape in SHAPES.items() for types in ("F16", "Q4_K_M", "Q6_K", "Q8_0")
}

def write_case(name: str, path: pathlib.Path) -> str:
  """Writes the model of a synthetic case and returns its sha256."""
  write_model(path, **CASES[name])
  return hashlib.sha256(path.read_bytes()).hexdigest()

def case_ids(name: str) -> np.ndarray:
  return np.random.default_rng(CASES[name]["seed"]).integers(0, CASES[name]["vocab"], TOKENS).astype(np.int32)

