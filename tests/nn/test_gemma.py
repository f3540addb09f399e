"""Gemma: what its files leave out, wrong metadata of Gemma 4, and layers that share a KV cache."""
import dataclasses
import re
from typing import Any

import numpy as np
import pytest
import tinygrad_llm
from tests.support.model_cases import MODELS, VOCAB
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import GGUF, open_gguf
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.layers import AttentionConfig
from tinygrad_llm.nn.reader import read_config

def attentions(config: ModelConfig) -> list[AttentionConfig]:
  return [mixer for layer in config.layers if (mixer := layer.attention) is not None]

def changed(file: GGUF, keys: dict[str, Any]) -> GGUF:
  """The file with other metadata; None removes a key."""
  kv = file.kv | {f"gemma4.{key}": value for key, value in keys.items()}
  return dataclasses.replace(file, kv={key: value for key, value in kv.items() if value is not None})

@pytest.mark.parametrize(("arch", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_largest_models_scale_scores_by_the_width_of_the_model(model_file, arch, layers):
  """Gemma 2 27B and Gemma 3 27B, known by their layers, have heads wider than dim / heads."""
  for n, wanted in ((layers, (128 // 4) ** -0.5), (layers - 1, 64 ** -0.5)):
    config = read_config(open_gguf(model_file(arch=arch, layers=n, dim=128, heads=4, head_dim=64, header=True)))
    assert {mixer.scale for mixer in attentions(config)} == {wanted}

def test_defaults_of_gemma2(model_file):
  config = read_config(open_gguf(model_file(arch="gemma2", layers=4, header=True)))
  assert config.logit_softcap == 30
  assert [(mixer.window, mixer.softcap) for mixer in attentions(config)] == [(4096, 50.0), (0, 50.0)] * 2

def test_parts_of_gemma4(model_file):
  """An E model: head sizes and rotations by kind, and the last layers read the last keys and values of their kind."""
  config = read_config(open_gguf(model_file(vocab=VOCAB, header=True, **MODELS["gemma4-e"])))
  assert [(mixer.window, mixer.head_dim, mixer.kv_from) for mixer in attentions(config)] == [
    (24, 32, None), (24, 32, None), (0, 64, None), (24, 32, 1), (24, 32, 1), (0, 64, 2)]
  assert [config.ropes[mixer.rope].theta for mixer in attentions(config)[:3]] == [1e4, 1e4, 1e6]
  assert {mixer.scale for mixer in attentions(config)} == {1.0}
  assert len(set(config.layers)) == 4  # of either kind: with keys of its own and a narrow ffn, or neither

@pytest.mark.parametrize(("keys", "words"), [
  ({"attention.sliding_window_pattern": None}, "attention.sliding_window_pattern: not a list of layers"),
  ({"attention.sliding_window_pattern": 6}, "attention.sliding_window_pattern: not a list of layers"),
  ({"attention.sliding_window": None}, "attention.sliding_window: missing"),
  ({"attention.sliding_window": 0}, "attention.sliding_window: 0 is not in 1.."),
  ({"attention.shared_kv_layers": 6}, "attention.shared_kv_layers: 6 is not in 0..5"),
  ({"attention.shared_kv_layers": 4}, "attention.shared_kv_layers: 4 of 6 layers leave none that has keys for layer 2"),
  ({"attention.head_count_kv": np.array([1, 1, 1, 2, 1, 1])},
   "attention.head_count_kv: 2 in layer 3, which reads the keys of layer 1"),
  ({"attention.value_length_swa": 16}, "attention.value_length_swa: 16 differs from key_length 32"),
  ({"rope.dimension_count_swa": 33}, "rope.dimension_count_swa: 33 is not an even number up to 32")])
def test_wrong_metadata_of_gemma4(model_file, keys, words):
  file = open_gguf(model_file(vocab=VOCAB, header=True, **MODELS["gemma4-e"]))
  with pytest.raises(InputError, match=re.escape(f"gemma4.{words}")): read_config(changed(file, keys))

def test_shared_caches_exist_once(model_file):
  """Half of the layers read another one's cache: three caches are allocated, saved and restored."""
  model = tinygrad_llm.load(str(model_file(vocab=VOCAB, **MODELS["gemma4-e"])), max_context=64).model
  of_layer = [block.mixers[0].cache for block in model.blocks]
  assert of_layer == [*model.caches, model.caches[1], model.caches[1], model.caches[2]]
  assert [cache.pool.kv.shape[-1] for cache in model.caches] == [32, 32, 64]
