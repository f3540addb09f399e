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
from tinygrad_llm.nn.archs import ARCHS
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.reader import read_config

YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
WINDOW = {"attention.sliding_window": 16}
GROUPS = {"expert_group_count": 4, "expert_group_used_count": 2}
# other values than the file's: one of them must change something. Then other keys that go with them; None: absent.
VALUES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
  "attention.causal": ((False,), {}),
  "attention.head_count": ((2, 8), {}),
  "attention.head_count_kv": ((1, 3), {}),
  "attention.key_length": ((48,), {"attention.key_length_mla": None, "attention.value_length_mla": None}),
  "attention.key_length_mla": ((40,), {}),
  "attention.key_length_swa": ((16,), WINDOW),
  "attention.layer_norm_rms_epsilon": ((1e-3,), {}),
  "attention.scale": ((0.5,), {}),
  "attention.sliding_window": ((8, 0), {}),
  "attention.sliding_window_pattern": ((3, np.array([False, True])), WINDOW),
  "attention.temperature_scale": ((0.1,), {"attention.temperature_length": 64}),
  "attention.value_length": ((16,), {"attention.key_length_mla": None, "attention.value_length_mla": None}),
  "attention.value_length_mla": ((16,), {}),
  "attention.value_length_swa": ((16,), WINDOW),
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
  "expert_weights_scale": ((2.5, 1.5), {}),
  "feed_forward_length": ((96,), {"expert_shared_feed_forward_length": None}),
  "leading_dense_block_count": ((0, 2), {}),
  "nextn_predict_layers": ((1,), {}),
  "pooling_type": ((3,), {}),
  "rope.dimension_count": ((8, 4), {}),
  "rope.dimension_count_swa": ((8,), WINDOW),
  "rope.freq_base": ((5000.0,), {}),
  "rope.freq_base_swa": ((5000.0,), WINDOW),
  "rope.scale_linear": ((4.0,), {}),
  "rope.scaling.alpha": ((1000.0,), {}),
  "rope.scaling.attn_factor": ((1.5,), {}),
  "rope.scaling.factor": ((4.0,), {}),
  "rope.scaling.finetuned": ((False,), {}),
  "rope.scaling.original_context_length": ((1024,), YARN),
  "rope.scaling.type": (("yarn",), {"rope.scaling.factor": 4.0}),
  "rope.scaling.yarn_beta_fast": ((4.0,), YARN),
  "rope.scaling.yarn_beta_slow": ((2.0,), YARN),
  "rope.scaling.yarn_log_multiplier": ((0.1,), YARN),
}
DEFAULT: tuple[tuple[Any, ...], dict[str, Any]] = (7, 7.5), {}

# arguments of write_model for the models of an architecture; elsewhere its defaults are enough
KINDS: dict[str, list[dict[str, Any]]] = {
  "llama": [{}, {"moe": MoE()}], "deepseek2": [{}, {"dense": True}], "mistral3": [{}, {"moe": MoE()}],
  "granitehybrid": [{}, {"moe": MoE(shared=1, shared_ffn=96)},
                    {"kv": {"granitehybrid.rope.scaling.finetuned": True}}],
  "nemotron_h": [{"layers": 4}],
  "nemotron_h_moe": [{"layers": 4}, {"layers": 4, "moe": MoE(shared=1, shared_ffn=96, bias=True, latent=48)}],
  "gemma4": [{}, {"moe": MoE()}], "exaone4": [{"layers": 64}], "olmo2": [{"layers": 4, "window": 24}],
}

@pytest.fixture(scope="module")
def headers(model_file):
  """headers(arch) -> the headers of small models."""
  return functools.cache(lambda arch: [open_gguf(model_file(arch=arch, header=True, **kind))
                                       for kind in KINDS.get(arch, [{}])])

def changed(file: GGUF, keys: dict[str, Any]) -> GGUF:
  """The file with other metadata under its architecture's prefix; None removes a key."""
  prefix = file.kv["general.architecture"]
  kv = file.kv | {f"{prefix}.{key}": value for key, value in keys.items()}
  return dataclasses.replace(file, kv={key: value for key, value in kv.items() if value is not None})

def outcome(file: GGUF) -> ModelConfig | str:
  try: return dataclasses.replace(read_config(file), context_length=0)  # it bounds the context
  except InputError as e: return str(e)

def fate(arch: str, key: str) -> str: return KEYS[arch][key].partition(":")[0]

CASES = [(arch, key) for arch in sorted(ARCHS) for key in KEYS.get(arch, ())]

def test_all_architectures_have_a_table():
  assert ARCHS.keys() <= KEYS.keys()
  assert {fate(arch, key) for arch in KEYS for key in KEYS[arch]} == {"read", "refused", "no number"}

@pytest.mark.parametrize(("arch", "key"), CASES)
def test_fate(headers, arch, key):
  """
  A key that is read changes the configuration, or is found bad. A key that is refused is named. Any other key changes
  nothing.
  """
  values, others = VALUES.get(key, DEFAULT)
  files = [changed(file, others) for file in headers(arch)]
  pairs = [(outcome(file), outcome(changed(file, {key: value}))) for file in files for value in values]
  if fate(arch, key) == "read": assert any(before != after for before, after in pairs)
  elif fate(arch, key) == "no number": assert all(before == after for before, after in pairs)
  else:
    assert all(isinstance(before, ModelConfig) for before, _ in pairs)
    assert all(isinstance(after, str) and f"{arch}.{key}: " in after for _, after in pairs)

@pytest.mark.parametrize("kind", ["none", "linear"])
def test_magnitude_without_yarn(headers, kind):
  file = changed(headers("llama")[0], {"rope.scaling.type": kind, "rope.scaling.attn_factor": 1.5})
  assert [rope.magnitude for rope in read_config(file).ropes] == [1.5]

@pytest.mark.parametrize(("arch", "theta", "scale"), [("gemma3", 10000.0, 1.0), ("gpt-oss", 5000.0, 0.25)])
def test_rotation_of_layers_with_a_window(headers, arch, theta, scale):
  """In gemma3 it has a base of its own and is not scaled; in gpt-oss it may have a base of its own, and is scaled."""
  keys = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 1.5}
  if arch == "gpt-oss": keys["rope.freq_base_swa"] = 5000.0
  config = read_config(changed(headers(arch)[0], keys))
  full, local = config.ropes
  assert full.scale == 0.25
  assert (local.theta, local.scale, full.magnitude, local.magnitude) == (theta, scale, 1.5, 1.5)
  assert all(mixer.rope == (mixer.window > 0) for layer in config.layers for mixer in layer.mixers)

@pytest.mark.parametrize("keys", [{"rope.scaling.attn_factor": 1.2}, {"rope.scaling.factor": 4.0}])
def test_latent_attention_has_yarn_or_no_scaling(headers, keys):
  """llama.cpp scales the scores by a rule that is YaRN's, whatever the file's scaling is."""
  with pytest.raises(InputError, match=r"deepseek2\.rope\.scaling\.type: "):
    read_config(changed(headers("deepseek2")[0], keys))

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
def test_no_key_has_a_wrong_name(headers, arch):
  """The reader asks only for keys that llama.cpp's loader knows, too, and for a few that converters write."""
  file = changed(headers(arch)[0], YARN)
  kv = Asked(file.kv)
  read_config(dataclasses.replace(file, kv=kv))
  asked = {key.removeprefix(f"{arch}.") for key in kv.keys_asked if key.startswith(f"{arch}.")}
  assert asked <= KEYS[arch].keys() | BEYOND.keys()
