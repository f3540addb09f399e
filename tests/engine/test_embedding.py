"""LLM.embed: vectors by the file's pooling, against the float64 reference."""
import threading

import numpy as np
import pytest
import tinygrad_llm
from tests.support.reference import Reference
from tinygrad_llm import InputError

TEXTS = ["a", "the wolves of the north", "x" * 70]
KINDS = {"mean": 1, "last": 3, "": 0}

@pytest.fixture(scope="module", params=KINDS)
def model(request, model_file):
  path = model_file(arch="qwen3", layers=2, vocab=315, types="F16", kv={"qwen3.pooling_type": KINDS[request.param]})
  return tinygrad_llm.load(str(path), max_context=128, chunk=24), Reference(path), request.param

def test_vectors(model, capfd):
  """Chunks of 24 tokens: a text goes over several."""
  llm, reference, kind = model
  found, plain = llm.embed(TEXTS), llm.embed(TEXTS, unit=False)
  for vector, raw, text in zip(found, plain, TEXTS):
    rows = reference.normed(llm.tokenizer.encode(text, add_bos=llm.tokenizer.add_bos))
    wanted = rows[-1] if kind == "last" else rows.mean(0)
    np.testing.assert_allclose(raw, wanted, atol=2e-3 * np.abs(rows).std())
    np.testing.assert_allclose(vector, wanted / np.linalg.norm(wanted), atol=1e-4)
  assert ("mean of all positions" in capfd.readouterr().err) == (kind == "")

def test_bad_texts(model):
  llm, _, _ = model
  assert llm.embed([]).shape == (0, llm.config.dim)
  ids = [3, 4, 5]
  np.testing.assert_array_equal(llm.embed(np.array([ids])), llm.embed([ids]))
  bad = (("text", "a list of texts"), (b"text", "a list of texts"), (None, "a list of texts"),
         ([""], "no tokens"), ([3], "is not a text"), (["x " * 400], "do not fit"))
  for texts, words in bad:
    with pytest.raises(InputError, match=words): llm.embed(texts)

def test_interrupted_between_two_chunks(model, monkeypatch):
  """An exception whose traceback lives on, as in an interactive Python, keeps no lock: others use the model."""
  llm, found = model[0], list[int]()
  def vector(parts, unit):
    next(parts)
    raise KeyboardInterrupt
  monkeypatch.setattr(llm.pooling, "vector", vector)
  with pytest.raises(KeyboardInterrupt) as kept: llm.embed(["x" * 70])
  def read(): found.extend(llm.stream([3, 4, 5], max_tokens=2, ignore_eos=True))
  reader = threading.Thread(target=read, daemon=True)
  reader.start()
  reader.join(60)
  assert len(found) == 2 and kept.traceback
