"""Log-probabilities against a softmax of plain Python floats."""
import math

import numpy as np
import pytest
from tests.text.test_tokenizer import ID, TOKENS, make

from tinygrad_llm.engine.choice.logprobs import logprobs, most_logprobs
from tinygrad_llm.errors import InputError

SIZE = len(TOKENS) + 5  # a model may have more rows than its tokenizer has tokens

def row(seed: int = 0) -> np.ndarray:
  return (np.random.default_rng(seed).standard_normal(SIZE) * 3).astype(np.float32)

@pytest.mark.parametrize("offset", [0.0, 80.0, -300.0])
def test_log_softmax(offset):
  x = row() + np.float32(offset)
  x[5] = -np.inf
  values = [float(value) for value in x]
  total = max(values) + math.log(math.fsum(math.exp(value - max(values)) for value in values))
  order = sorted(range(SIZE), key=lambda i: (-values[i], i))
  for token in (0, 17, SIZE - 1):
    found = logprobs(x, token, 20, make())
    assert found.chosen.token == token and found.chosen.logprob == pytest.approx(values[token] - total, abs=1e-12)
    assert [part.token for part in found.top] == order[:20]
    assert [part.logprob for part in found.top] == pytest.approx([values[i] - total for i in order[:20]], abs=1e-12)
  assert logprobs(x, 5, 0, make()) == ((5, -math.inf, make().token_bytes(5)), ())

def test_equal_logits_are_in_the_order_of_ids():
  x = np.zeros(SIZE, np.float32)
  x[[40, 9, 30]] = 2
  assert [part.token for part in logprobs(x, 0, 6, make()).top] == [9, 30, 40, 0, 1, 2]
  assert len(logprobs(np.array([1, 2], np.float32), 0, 20, make()).top) == 2

def test_bytes():
  """A part of a character is its bytes; a token without text is its name; an id beyond the vocabulary has none."""
  tokenizer = make()
  for text, raw in (("Ã©", "é".encode()), ("Ã", b"\xc3"), ("Ġwor", b" wor"), ("<|eos|>", b"<|eos|>"),
                    ("<0xE2>", b"\xe2")):
    assert logprobs(row(), ID[text], 0, tokenizer).chosen.raw == raw
  assert logprobs(row(), SIZE - 1, 0, tokenizer).chosen.raw == b""

def test_bad_input():
  for bad in (-1, 21, 1.5, "2", True, None):
    with pytest.raises(InputError, match="^top_logprobs: .* is not a whole number from 0 to 20"): most_logprobs(bad)
    with pytest.raises(InputError, match="^top_logprobs: "): logprobs(row(), 0, bad, make())
  for value in (np.nan, np.inf):
    x = row()
    x[3] = value
    with pytest.raises(InputError, match="logits"): logprobs(x, 0, 2, make())
