"""Llama 4's chunks of positions, of 24 instead of 8,192, so that a short text has some; float64 reference."""
import dataclasses

import numpy as np
import tinygrad_llm
from tests.support import reference_traits
from tests.support.model_cases import EPS, IDS, VOCAB
from tests.support.reference import Reference, clear_choices
from tinygrad_llm.nn import archs

CHUNK, LENGTH, LIMIT = 24, 60, 1e-3


def test_chunks(model_file, monkeypatch):
  """Prompts in one piece and in pieces that cross chunks, and decode steps over the end of a chunk."""
  monkeypatch.setitem(archs.ARCHS, "llama4", dataclasses.replace(archs.ARCHS["llama4"], window=CHUNK))
  traits = reference_traits.TRAITS
  monkeypatch.setitem(traits, "llama4", dataclasses.replace(traits["llama4"], chunk=CHUNK))
  path = model_file(vocab=VOCAB, arch="llama4", eps=EPS, layers=4, window=CHUNK)
  reference = Reference(path)
  ids = clear_choices(reference, IDS[:LENGTH], 0.01)
  want = reference.logits(ids, kv_half=True)
  llm = tinygrad_llm.load(str(path), max_context=80, chunk=32)
  assert np.abs(llm.logits(ids) - want).max() <= LIMIT * want.std()
  llm.prefill(ids[:40])
  steps = np.stack([llm.step(token, 40 + i) for i, token in enumerate(ids[40:52])])
  assert np.abs(steps - want[40:52]).max() <= LIMIT * want.std()
  # without chunks, the answers differ: the test can fail
  monkeypatch.setitem(traits, "llama4", dataclasses.replace(traits["llama4"], chunk=8192))
  assert np.abs(Reference(path).logits(ids) - want).max() > 0.1 * want.std()
