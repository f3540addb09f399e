"""Fixtures of the attention tests."""
import pytest
from tinygrad_llm.patches.attention import flash_decoding

@pytest.fixture
def on_a_gpu(monkeypatch):
  """Schedules as on a GPU, where flash decoding splits the positions into parts."""
  monkeypatch.setattr(flash_decoding, "has_vectors", lambda ren: False)
  monkeypatch.setattr(flash_decoding, "fits", lambda *_: True)
