"""Masks, biases and penalties against their definitions as a loop in float64, and against llama.cpp's chain."""
import itertools
import json
import math

import numpy as np
import pytest
from tests.tools.record_penalties import RECORD

from tinygrad_llm.engine.choice.penalties import Penalties, unpacked
from tinygrad_llm.engine.sampling import Sampler
from tinygrad_llm.errors import InputError

def packed(mask: np.ndarray) -> np.ndarray:
  words = np.zeros(-(-mask.size // 32), np.uint32)
  for i in np.flatnonzero(mask).tolist(): words[i // 32] |= np.uint32(1 << i % 32)
  return words

def loop(logits, history=(), repeat=1.0, presence=0.0, frequency=0.0, bias=None, allowed=None, ruled_out=(),
         suppressed=()) -> list[float]:
  """One token after another."""
  out = []
  for i, x in enumerate(logits.tolist()):
    if allowed is not None and not allowed[i] or i in ruled_out or i in suppressed: x = -math.inf
    x += (bias or {}).get(i, 0)
    if count := list(history[-64:]).count(i):
      x = x * repeat if x <= 0 else x / repeat
      x -= count * frequency + presence
    out.append(x)
  return out

CHANGES = [{"repeat": 1.3}, {"repeat": 0.7}, {"presence": 0.8}, {"presence": -2.0}, {"frequency": 0.3},
           {"frequency": -0.1}, {"bias": {3: 5.0, 49: -100.0, 7: -math.inf}}, {"suppressed": (2, 40)},
           {"repeat": 1.2, "presence": 0.5, "frequency": 0.25, "bias": {0: -1.5, 9: 100}, "suppressed": (1,)}]

@pytest.mark.parametrize("asked", CHANGES, ids=str)
@pytest.mark.parametrize("length", [0, 5, 64, 200])
def test_definitions(asked, length):
  rng = np.random.default_rng(length)
  x = (rng.standard_normal(50) * 3).astype(np.float32)
  before, history, mask = x.copy(), rng.integers(0, 20, length).tolist(), rng.random(50) < 0.7
  for call in ({}, {"allowed": mask}, {"ruled_out": (4, 30)}, {"allowed": mask, "ruled_out": (4,)}):
    wanted = loop(x, history, **asked, **call)
    np.testing.assert_allclose(Penalties(**asked)(x, history, **call), wanted, rtol=1e-6, atol=1e-6)
  assert (x == before).all()

def test_llama_cpp():
  """Records of llama.cpp's own chain: the same order, the same window of 64 tokens, float32 arithmetic."""
  cases = json.loads(RECORD.read_text())
  assert len(cases) == 24 and sum(case["logits"] != case["result"] for case in cases) > 16
  for case in cases:
    bias = {int(i): x for i, x in case["bias"].items()}
    penalties = Penalties(case["repeat"], case["presence"], case["frequency"], bias)
    found = penalties(np.array(case["logits"], np.float32), case["history"])
    np.testing.assert_allclose(found, np.array(case["result"], np.float32), rtol=3e-7, atol=1e-6)

@pytest.mark.parametrize("size", [1, 31, 32, 33, 500])
def test_packed_masks(size):
  mask = np.random.default_rng(size).random(size) < 0.5
  mask[-1] = True
  np.testing.assert_array_equal(unpacked(packed(mask), size), mask)
  x = np.random.default_rng(1).standard_normal(size).astype(np.float32)
  np.testing.assert_array_equal(Penalties()(x, allowed=packed(mask)), np.where(mask, x, -np.inf))
  for bad in (mask[1:], mask.astype(np.int32), packed(mask)[1:], packed(mask).astype(np.int32), mask[None]):
    with pytest.raises(InputError, match="^allowed: "): Penalties()(x, allowed=bad)

def test_defaults_change_nothing():
  x = np.zeros(9, np.float32)
  assert Penalties()(x, [1, 2]) is x and Penalties(bias={3: 0.0})(x, [1]) is x and Penalties(presence=1.0)(x, []) is x

def test_samplers_pick_by_changed_logits():
  """Every temperature heeds masks, biases and penalties."""
  x = np.array([4.0, 3.9, 3.8, -5.0], np.float32)
  for how in ({}, {"temperature": 1.0, "top_k": 1}, {"temperature": 1e-4}, {"temperature": 1e-4, "top_p": 0.5}):
    assert Sampler(**how)(x) == 0
    assert Sampler(**how, presence_penalty=0.15)(x, [0, 0]) == 1 and Sampler(**how, logit_bias={3: 9.5})(x) == 3
    often = Sampler(**how, frequency_penalty=0.15)
    assert often(x, [0, 1, 1]) == 0 and often(x, [0, 0, 1]) == 2
    masked = Sampler(**how, masked=True)
    assert masked(x, ruled_out=[0, 1]) == 2 and masked(x) == 0
    assert masked(x, allowed=np.array([False, False, False, True])) == 3
    with pytest.raises(InputError, match="every token is ruled out"): masked(x, allowed=np.zeros(1, np.uint32))
  with pytest.raises(InputError, match="largest is nan"):
    Sampler(masked=True)(np.array([1, np.nan], np.float32), allowed=np.array([True, False]))

SETTINGS = ({}, {"repeat_penalty": 1.1}, {"presence_penalty": -0.5}, {"frequency_penalty": 0.1}, {"logit_bias": {0: 1}},
            {"logit_bias": {0: 0}}, {"masked": True}, {"suppressed": (1,)})

@pytest.mark.parametrize(("asked", "how"), itertools.product(SETTINGS, ({}, {"temperature": 1.0})), ids=str)
def test_what_the_device_may_choose(asked, how):
  changes = asked.keys() & {"presence_penalty", "frequency_penalty", "masked"} or asked.get("logit_bias", {}).get(0)
  sampler = Sampler(**asked, **how)
  assert sampler.on_device == (not changes)
  assert sampler.greedy == (not changes and not how and "repeat_penalty" not in asked)

@pytest.mark.parametrize(("name", "values"), [
  ("presence_penalty", [math.nan, math.inf, "1", None, True]), ("frequency_penalty", [math.nan, -math.inf, 1e39]),
  ("logit_bias", [{1: 100.1}, {1: math.nan}, {1: math.inf}, {1: "2"}, {1: True}, {-1: 1}, {1.5: 1}, {"1": 1}, [1], 7]),
  ("repeat_penalty", [0, -1])])
def test_bad_settings(name, values):
  for value in values:
    with pytest.raises(InputError, match=f"^{name}"): Sampler(**{name: value})

def test_ids_beyond_the_logits():
  x = np.zeros(4, np.float32)
  with pytest.raises(InputError, match="logit_bias: token 4 is not in 0..3"): Penalties(bias={4: 1})(x)
  for bad in ([4], [-1]):
    with pytest.raises(InputError, match="history"): Penalties(presence=1)(x, bad)
