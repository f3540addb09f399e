"""The header behind each alias: real sizes, keys whose fate is known, and a model that loads where it is supported."""
import numpy as np
import pytest
import tinygrad_llm
from tests.support.alias_headers import MODELS, header, least_layers, write
from tests.support.extended import sample
from tests.support.loader_keys import KEYS
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.files.hub import ALIASES
from tinygrad_llm.nn.archs import ARCHS
from tinygrad_llm.nn.reader import read_config

SUPPORTED = [alias for alias in ALIASES if header(alias, layers=1).arch in ARCHS]
# as the hub counts them; of Qwen 3.5 and Moonlight no number of the text model is published to the last digit
PARAMETERS = {"llama3.2:1b": 1235814400, "llama3.2:3b": 3212749824, "llama3.1:8b": 8030261248, "qwen3:0.6b": 596049920,
              "qwen3:1.7b": 1720574976, "qwen3:8b": 8190735360, "qwen3:30b-a3b": 30532122624, "olmoe": 6919161856,
              "deepseek-v2-lite": 15706484224}

def test_every_alias_has_a_header(): assert MODELS.keys() == ALIASES.keys()

@pytest.mark.parametrize("alias", PARAMETERS)
def test_number_of_parameters(alias):
  h = header(alias)
  h.shapes.pop("rope_freqs.weight", None)  # computed by the converter
  assert h.elements == PARAMETERS[alias]

@pytest.mark.parametrize("alias", ALIASES)
def test_every_key_has_a_fate(alias):
  h = header(alias, layers=1)
  assert {key.removeprefix(f"{h.arch}.") for key in h.metadata} - {"tokenizer.ggml.pre"} <= KEYS[h.arch].keys()
  assert h.sources.keys() == h.metadata.keys()
  assert set(h.sources.values()) <= {"seen", "converter", "assumed"}

@pytest.mark.parametrize("alias", SUPPORTED)
def test_is_read(tmp_path, alias):
  """The reader accepts the metadata of the whole model. Only the vocabulary is cut."""
  h = header(alias, vocab=512)
  config = read_config(open_gguf(write(tmp_path / "model.gguf", h, hole=True)))
  assert config.dim == h.metadata[f"{h.arch}.embedding_length"]
  assert config.n_layers == h.metadata[f"{h.arch}.block_count"] - h.metadata.get(f"{h.arch}.nextn_predict_layers", 0)

def small(folder, alias):
  """The alias's file with random weights and as few layers as have one of each kind, of real width."""
  h = header(alias, layers=least_layers(alias), vocab=512, experts=8)
  return tinygrad_llm.load(str(write(folder / "model.gguf", h, types="Q4_0")), max_context=32, chunk=32)

@pytest.mark.parametrize("alias", sample(SUPPORTED, ["qwen3:0.6b"]))
def test_loads(tmp_path, capfd, alias):
  small(tmp_path, alias).close()
  assert capfd.readouterr().err == ""  # no tensor is left over

@pytest.mark.extended
@pytest.mark.parametrize("alias", SUPPORTED)
def test_logits_are_numbers(tmp_path, alias):
  llm = small(tmp_path, alias)
  logits = llm.logits([1, 2, 3])
  assert np.isfinite(logits).all()
  assert 0.1 < logits.std() < 10
  llm.close()
