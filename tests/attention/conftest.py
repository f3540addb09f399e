"""What tests of attention share."""
import pytest
from tinygrad_llm.patches.attention import flash_decoding

@pytest.fixture
def on_a_gpu(monkeypatch):
  """Positions are cut into parts there."""
  monkeypatch.setattr(flash_decoding, "has_vectors", lambda ren: False)
  monkeypatch.setattr(flash_decoding, "fits", lambda *_: True)
