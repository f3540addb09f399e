"""Every metadata key of llama.cpp's loader that changes a number is read, or refused by name (loader_keys.py)."""
import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
from tests.support.loader_keys import BEYOND, KEYS
from tests.support.synthetic_layers import MoE
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import GGUF, open_gguf
from tinygrad_llm.nn.config import ARCHS, ModelConfig

YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
GROUPS = {"expert_group_count": 4, "expert_group_used_count": 2}
# other values than the file's: one of them must change something. Then other keys that go with them; None: absent.
VALUES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
  "attention.causal": ((False,), {}),
  "attention.head_count": ((2, 8), {}),
  "attention.head_count_kv": ((1, 3), {}),
  "attention.key_length": ((48,), {"attention.key_length_mla": None, "attention.value_length_mla": None}),
  "attention.key_length_mla": ((40,), {}),
  "attention.key_length_swa": ((16,), {}),
  "attention.layer_norm_rms_epsilon": ((1e-3,), {}),
  "attention.scale": ((0.5,), {}),
  "attention.sliding_window": ((8,), {}),
  "attention.sliding_window_pattern": ((3, np.array([False, True])), {}),
  "attention.temperature_scale": ((0.1,), {"attention.temperature_length": 64}),
  "attention.value_length": ((16,), {"attention.key_length_mla": None, "attention.value_length_mla": None}),
  "attention.value_length_mla": ((16,), {}),
  "attention.value_length_swa": ((16,), {}),
  "block_count": ((1, 3), {}),
  "classifier.output_labels": ((["yes", "no"],), {}),
  "context_length": ((1024,), YARN),
  "deepstack_mapping": ((np.array([-1, 1], np.int32),), {}),
  "expert_count": ((4,), {}),
  "expert_gating_func": ((1, 2), {}),
  "expert_group_count": ((4,), GROUPS | {"expert_group_count": None}),
  "expert_group_used_count": ((1, 3), GROUPS),
  "expert_used_count": ((1, 4), {}),
  "expert_weights_norm": ((True, False), {}),
  "expert_weights_scale": ((2.5,), {}),
  "leading_dense_block_count": ((0, 2), {}),
  "nextn_predict_layers": ((1,), {}),
  "pooling_type": ((3,), {}),
  "rope.dimension_count": ((8,), {}),
  "rope.dimension_count_swa": ((8,), {}),
  "rope.freq_base": ((5000.0,), {}),
  "rope.freq_base_swa": ((5000.0,), {}),
  "rope.scale_linear": ((4.0,), {}),
  "rope.scaling.alpha": ((1000.0,), {}),
  "rope.scaling.attn_factor": ((1.5,), {}),
  "rope.scaling.factor": ((4.0,), {}),
  "rope.scaling.finetuned": ((False,), {}),
  "rope.scaling.original_context_length": ((1024,), YARN),
  "rope.scaling.type": (("yarn",), {"rope.scaling.factor": 4.0}),
  "rope.scaling.yarn_log_multiplier": ((0.1,), YARN),
}
DEFAULT: tuple[tuple[Any, ...], dict[str, Any]] = (7, 7.5), {}

@pytest.fixture(scope="module")
def header(tmp_path_factory, model_file):
  """header(arch) -> the header of a small model; with experts where the architecture may have some."""
  return functools.cache(lambda arch: open_gguf(model_file(
    arch=arch, header=True, moe=MoE() if KEYS[arch]["expert_count"] == "read" and arch != "deepseek2" else None)))

def changed(file: GGUF, keys: dict[str, Any]) -> GGUF:
  """The file with other metadata under its architecture's prefix; None removes a key."""
  prefix = file.kv["general.architecture"]
  kv = file.kv | {f"{prefix}.{key}": value for key, value in keys.items()}
  return dataclasses.replace(file, kv={key: value for key, value in kv.items() if value is not None})

def outcome(file: GGUF) -> ModelConfig | str:
  try: return ModelConfig.from_gguf(file)
  except InputError as e: return str(e)

def fate(arch: str, key: str) -> str: return KEYS[arch][key].partition(":")[0]

CASES = [(arch, key) for arch in sorted(ARCHS) for key in KEYS.get(arch, ())]

def test_all_architectures_have_a_table():
  assert ARCHS.keys() <= KEYS.keys()
  assert {fate(arch, key) for arch in KEYS for key in KEYS[arch]} == {"read", "refused", "no number"}

@pytest.mark.parametrize(("arch", "key"), CASES)
def test_fate(header, arch, key):
  """
  A key that is read changes the configuration, or is found bad. A key that is refused is named. Any other key changes
  nothing.
  """
  values, others = VALUES.get(key, DEFAULT)
  file = changed(header(arch), others)
  before, after = outcome(file), [outcome(changed(file, {key: value})) for value in values]
  if fate(arch, key) == "read": assert any(x != before for x in after)
  elif fate(arch, key) == "no number": assert after == [before] * len(after)
  else:
    assert isinstance(before, ModelConfig)
    assert all(isinstance(x, str) and f"{arch}.{key}: " in x for x in after)

class Asked(dict):
  """A file's metadata; it notes the keys that somebody looks up."""
  def __init__(self, kv: dict[str, Any]):
    super().__init__(kv)
    self.keys_asked: set[str] = set()
  def get(self, key, default=None):
    self.keys_asked.add(key)
    return super().get(key, default)
  def __contains__(self, key) -> bool:
    self.keys_asked.add(key)
    return super().__contains__(key)
  def __getitem__(self, key):
    self.keys_asked.add(key)
    return super().__getitem__(key)

@pytest.mark.parametrize("arch", sorted(ARCHS))
def test_no_key_has_a_wrong_name(header, arch):
  """The reader asks only for keys that llama.cpp's loader knows, too, and for a few that converters write."""
  file = changed(header(arch), YARN)
  kv = Asked(file.kv)
  ModelConfig.from_gguf(dataclasses.replace(file, kv=kv))
  asked = {key.removeprefix(f"{arch}.") for key in kv.keys_asked if key.startswith(f"{arch}.")}
  assert asked <= KEYS[arch].keys() | BEYOND.keys()
