"""Tokens that a file suppresses (tokenizer.ggml.suppress_tokens) are never chosen, on the host and on the device."""
import numpy as np
import pytest
from tests.support.read_at_once import reader
from tests.support.scripted_gguf import CHATML, build
import tinygrad_llm
from tinygrad_llm.engine import llm as llm_module
from tinygrad_llm.engine.batch import row_ahead
from tinygrad_llm.errors import InputError

SCRIPT = ["one", " two", " three", " four"]
KEY = "tokenizer.ggml.suppress_tokens"

def written(path, suppressed) -> list[int]:
  """Writes a file whose answer is SCRIPT; `suppressed` makes the key's value of the script's ids."""
  def kv(writer, ids): writer.add_array(KEY, [ids[text] for text in suppressed])
  _, _, _, said = build(path, [("id", text) for text in SCRIPT], [(text, 1) for text in SCRIPT], template=CHATML,
                        kv=kv if suppressed else None)
  return said

@pytest.mark.parametrize("ahead", [False, True])
def test_suppressed_token_is_never_chosen(tmp_path, monkeypatch, ahead):
  """The script's second word is the likeliest after its first one, but the file suppresses it."""
  said = written(tmp_path / "plain.gguf", [])
  plain = tinygrad_llm.load(str(tmp_path / "plain.gguf"))
  assert plain.engine.steps._decodes[1][0].fxn.args[1:3] == (0, None)  # type: ignore[union-attr]
  assert list(plain.generate([said[3]], 4)) == said
  written(tmp_path / "model.gguf", [SCRIPT[1]])
  if ahead:
    monkeypatch.setattr(llm_module, "is_asynchronous", lambda _: True)
    monkeypatch.setattr(row_ahead, "reader", reader)
  llm = tinygrad_llm.load(str(tmp_path / "model.gguf"))
  first = list(llm.generate([said[3]], 6, ignore_eos=True))
  assert first[0] == said[0] and said[1] not in first
  assert said[1] not in list(llm.generate([said[0]], 1, ignore_eos=True))  # the prompt's own logits choose it
  for asked in ({"temperature": 0.01}, {"temperature": 1.0, "top_k": 2}, {"repeat_penalty": 1.1}):
    assert said[1] not in list(llm.generate([said[3]], 30, ignore_eos=True, **asked))
  assert np.argmax(llm.logits([said[0]])[0]) == said[1]   # logits stay what the model says

@pytest.mark.parametrize("value, error", [
  (["a"], "is not an array of token ids"), ([1.5], "is not an array of token ids"), (7, "is not an array"),
  ([*range(999)], "all [0-9]+ tokens")])
def test_bad_keys(tmp_path, value, error):
  def kv(writer, ids): writer.add_array(KEY, value) if isinstance(value, list) else writer.add_uint32(KEY, value)
  build(tmp_path / "m.gguf", ["x"], kv=kv)
  with pytest.raises(InputError, match=rf"m\.gguf: {KEY}: .*{error}"): tinygrad_llm.load(str(tmp_path / "m.gguf"))

def test_ids_beyond_the_vocabulary_are_left_out(tmp_path, capfd):
  build(tmp_path / "m.gguf", ["x"], kv=lambda writer, ids: writer.add_array(KEY, [3, -1, 99999, 3]))
  assert tinygrad_llm.load(str(tmp_path / "m.gguf"))._suppressed == (3,)
  assert f"{KEY}: 2 of 3, such as -1, are none of the" in capfd.readouterr().err
