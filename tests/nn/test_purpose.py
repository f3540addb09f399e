"""Files for other purposes than answers: layers of multi-token prediction, draft models, embeddings, reranking."""
import dataclasses
import os
import subprocess
import sys

import pytest
import tinygrad_llm
from tests.support import child
from tests.tools import fuzz
from tinygrad_llm import InputError
from tinygrad_llm.engine.llm import check_metadata
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.nn.reader import read_config

SIZES = {"types": "Q8_0", "vocab": 320}

def cut(path, out, keep):
  """Writes the file with some of its tensors: keep(name)."""
  sample = fuzz.take_apart(path.read_bytes())
  out.write_bytes(fuzz.edited(sample, tensors=tuple(t for t in sample.parts.tensors if keep(t.name.decode()))))
  return out

def refusal(path) -> str:
  with pytest.raises(InputError) as e: tinygrad_llm.load(str(path))
  assert "\n" not in str(e.value)
  return str(e.value)

@pytest.mark.parametrize(("nextn", "words"), [
  (0, ""), (1, "it has 1 layer of multi-token prediction, which is not used"),
  (2, "it has 2 layers of multi-token prediction, which are not used")])
def test_multi_token_prediction_is_skipped_with_one_line(model_file, capfd, nextn, words):
  path = model_file(arch="qwen3", layers=2 + nextn, parts={"nextn": nextn}, **SIZES)
  llm = tinygrad_llm.load(str(path))
  assert len(llm.config.layers) == 2
  assert not any(name.startswith("blk.2.") for names in llm.weights for name in names)
  assert capfd.readouterr().err == (f"warning: {path}: {words}\n" if words else "")

def test_file_without_its_layers_of_multi_token_prediction(model_file, tmp_path, capfd):
  """The key tells of a layer whose tensors are in another file."""
  path = model_file(arch="qwen3", layers=3, parts={"nextn": 1}, **SIZES)
  tinygrad_llm.load(str(cut(path, tmp_path / "m.gguf", lambda name: not name.startswith("blk.2."))))
  assert capfd.readouterr().err == ""

@pytest.mark.parametrize("embedding", [True, False])
@pytest.mark.parametrize("keyed", [True, False])
def test_file_of_multi_token_prediction_alone_is_refused(model_file, tmp_path, embedding, keyed):
  path = cut(model_file(arch="qwen3", layers=3, parts={"nextn": 1}, **SIZES), tmp_path / "mtp.gguf", lambda name: (
    name.startswith("blk.2.") or not name.startswith("blk.") and (embedding or name != "token_embd.weight")))
  if not keyed:
    sample = fuzz.take_apart(path.read_bytes())
    path.write_bytes(fuzz.edited(sample, pairs=tuple(p for p in sample.parts.pairs if b"nextn" not in p.key)))
  assert refusal(path) == (f"{path}: blk.0: no such layer, the file holds only a draft model for speculation; load the "
                           "whole qwen3 model's file")

def test_all_layers_are_of_multi_token_prediction(model_file):
  """All blocks predict further tokens, the first, too."""
  assert "holds only a draft model" in refusal(model_file(arch="qwen3", layers=1, parts={"nextn": 1}, **SIZES))

@pytest.mark.parametrize("arch", ["dflash", "eagle3", "gemma4-assistant"])
def test_draft_architectures_are_refused(model_file, tmp_path, arch):
  words = (f"general.architecture: '{arch}', the file holds only a draft model for speculation; load the model that it "
           "drafts for")
  path, file = tmp_path / "m.gguf", open_gguf(model_file(header=True, **SIZES))
  with pytest.raises(InputError) as e:
    read_config(dataclasses.replace(file, path=path, kv=file.kv | {"general.architecture": arch}))
  assert str(e.value) == f"{path}: {words}"
  with pytest.raises(InputError) as e: check_metadata({"general.architecture": arch})  # before it is fetched
  assert str(e.value) == words

@pytest.mark.parametrize("arch", ["qwen3", "llama", "gemma3"])
def test_pooling(model_file, arch):
  file = open_gguf(model_file(arch=arch, header=True, **SIZES))
  def config(kind: int, *names: str):
    return read_config(dataclasses.replace(file, kv=file.kv | {f"{arch}.pooling_type": kind},
                                           tensors=file.tensors | dict.fromkeys(names)))
  assert read_config(file).pooling == "" and read_config(file).purpose == "answers"
  assert [config(kind).pooling for kind in range(5)] == ["", "mean", "first", "last", "rank"]
  assert [config(kind).purpose for kind in (0, 3, 4)] == ["answers", "embeddings", "reranking"]
  assert config(0, "cls.output.weight").purpose == "reranking"
  with pytest.raises(InputError, match=rf"{arch}\.pooling_type: 5 is not in 0\.\.4"): config(5)

def test_command_says_what_the_model_is_for(model_file):
  path = model_file(arch="qwen3", kv={"qwen3.pooling_type": 3}, context=64, **SIZES)
  done = subprocess.run([sys.executable, "-m", "tinygrad_llm.run", "-m", str(path), "--tokens", "1,2", "-n", "2"],
                        cwd=child.ROOT, env={**os.environ, "DEV": "CPU"}, stdin=subprocess.DEVNULL, capture_output=True,
                        text=True)
  assert done.returncode == 0, done.stderr
  lines = done.stderr.splitlines()
  assert lines[0] == f"warning: {path}: the model is for embeddings (last pooling); what it answers is not meaningful"
  assert len(lines) == 2 and "first token after" in lines[1]
