"""The layers that the reader makes from keys that few architectures have."""
import dataclasses

import numpy as np
import pytest
import tinygrad_llm
from tests.support.synthetic_layers import Indexer
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import GGUF, open_gguf
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.layers import AttentionConfig, Temperature
from tinygrad_llm.nn.reader import read_config


def changed(file: GGUF, **keys) -> ModelConfig:
  """The configuration of a file with other metadata under its architecture's prefix."""
  kv = {f"{file.kv['general.architecture']}.{key.replace('__', '.')}": value for key, value in keys.items()}
  return read_config(dataclasses.replace(file, kv=file.kv | kv))

def attentions(config: ModelConfig) -> list[AttentionConfig]:
  found = [layer.attention for layer in config.layers]
  assert None not in found
  return [x for x in found if x]

def test_sections_change_the_pairs(model_file):
  """GLM 4 with images pairs dimensions as NeoX does; a fourth section is refused."""
  file = open_gguf(model_file(arch="glm4", header=True))
  assert attentions(read_config(file))[0].style == "norm"
  assert attentions(changed(file, rope__dimension_sections=np.array([4, 2, 2, 0])))[0].style == "neox"
  with pytest.raises(InputError, match=r"glm4\.rope\.dimension_sections: it has a fourth section"):
    changed(file, rope__dimension_sections=np.array([4, 2, 1, 1]))

def test_rotated_layers(model_file):
  """SmolLM3 leaves out each fourth layer; Cohere and the large EXAONE 4 rotate in layers with a window only."""
  def rotated(**kind) -> list[bool]:
    return [x.rope is not None for x in attentions(read_config(open_gguf(model_file(header=True, layers=64, **kind))))]
  fourth = [i % 4 != 3 for i in range(64)]
  assert rotated(arch="smollm3") == rotated(arch="cohere2") == rotated(arch="exaone4") == fourth
  small = attentions(read_config(open_gguf(model_file(arch="exaone4", header=True, layers=30))))
  assert {(x.rope, x.window) for x in small} == {(0, 0)}

def test_llama4_chunks(model_file):
  """A window is 8,192 positions, whatever the file says; none at all rotates all layers, at no temperature."""
  file = open_gguf(model_file(arch="llama4", header=True, layers=4))
  for config in (read_config(file), changed(file, attention__sliding_window=100)):
    assert [(x.window, x.chunked, x.rope, x.unit_norm, x.temperature) for x in attentions(config)] == [
      (8192, True, 0, True, False)] * 3 + [(0, False, None, False, True)]
    assert config.temperature == Temperature(0.1, 8192, 1)
  config = changed(file, attention__sliding_window=0)
  assert {(x.window, x.rope, x.temperature) for x in attentions(config)} == {(0, 0, False)}
  assert config.temperature is None

def test_hunyuan_base(model_file):
  file = open_gguf(model_file(arch="hunyuan-dense", header=True, head_dim=48))
  assert changed(file, rope__scaling__alpha=1000.0).ropes[0].theta == pytest.approx(10000 * 1000 ** (48 / 46))

def test_context_beyond_the_indexer(model_file):
  """Attention is dense up to the positions that an indexer chooses; the context ends there, and one line says so."""
  llm = tinygrad_llm.load(str(model_file(arch="glm-dsa", parts={"indexer": Indexer(top_k=64)})))
  assert llm.max_context == 64
  assert llm.logits([1] * 64).shape[0] == 64
  with pytest.raises(InputError, match=r"65 tokens do not fit the context of 64; beyond it, this model's sparse"):
    llm.logits([1] * 65)
