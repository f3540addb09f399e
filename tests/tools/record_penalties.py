"""
Records what llama.cpp's chain of samplers makes of rows of logits: tests/data/penalties.json.

tests/engine/choice/test_penalties.py compares with the record. Development only: it needs llama-cpp-python.

  python tests/tools/record_penalties.py
"""
import ctypes
import json
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
import numpy as np

RECORD = pathlib.Path(__file__).parents[1] / "data" / "penalties.json"
SIZE, CASES = 36, 24

def case(seed: int) -> dict:
  """Logits, a history and settings, as JSON values. Every setting is exact in float32."""
  rng = np.random.default_rng(seed)
  logits = np.round(rng.standard_normal(SIZE) * 32) / 8
  logits[seed % SIZE] = 0
  history = rng.integers(0, SIZE // 3, rng.choice([0, 3, 63, 64, 65, 150])).tolist()
  biased = rng.permutation(SIZE)[:rng.choice([0, 1, 5])].tolist()
  return {"logits": logits.tolist(), "history": history, "repeat": float(rng.choice([1, 1.25, 0.5])),
          "presence": float(rng.choice([0, 0.75, -1.5])), "frequency": float(rng.choice([0, 0.25, -0.125])),
          "bias": {str(i): float(rng.integers(-20, 20) / 4) for i in biased}}

def result(asked: dict) -> list[float]:
  """The logits of all tokens after llama.cpp's biases and penalties."""
  import llama_cpp.llama_cpp as lib
  chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
  bias = (lib.llama_logit_bias * max(1, len(asked["bias"])))(
    *[lib.llama_logit_bias(int(token), value) for token, value in asked["bias"].items()])
  lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_logit_bias(SIZE, len(asked["bias"]), bias))
  lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_penalties(
    *_size(lib), 64, asked["repeat"], asked["frequency"], asked["presence"]))
  for token in asked["history"]: lib.llama_sampler_accept(chain, token)
  rows = (lib.llama_token_data * SIZE)(*[lib.llama_token_data(i, x, 0) for i, x in enumerate(asked["logits"])])
  array = lib.llama_token_data_array(rows, SIZE, -1, False)
  lib.llama_sampler_apply(chain, ctypes.byref(array))
  found = sorted((array.data[i].id, array.data[i].logit) for i in range(array.size))
  lib.llama_sampler_free(chain)
  assert [i for i, _ in found] == [*range(SIZE)]
  return [float(f"{x:.9g}") for _, x in found]

def _size(lib: object) -> list[int]:
  """The vocabulary's size, which only newer versions of llama.cpp ask for."""
  return [SIZE] if len(lib.llama_sampler_init_penalties.__annotations__) == 6 else []  # type: ignore[attr-defined]

if __name__ == "__main__":
  cases = [case(seed) for seed in range(CASES)]
  RECORD.write_text(json.dumps([asked | {"result": result(asked)} for asked in cases]).replace("}, {", "},\n{") + "\n")
