"""Sampling against its definitions written out in float64, and stop strings."""
import itertools

import numpy as np
import pytest

from tinygrad import Tensor
from tinygrad_llm.errors import InputError
from tinygrad_llm.engine.sampling import Sampler, _top_k, _top_p, greedy_key, greedy_token
from tinygrad_llm.text.stop_strings import StopStrings

def logits(seed: int = 0, size: int = 50, scale: float = 2.0) -> np.ndarray:
  return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)

def softmax(x: np.ndarray) -> np.ndarray:
  e = np.exp(x - x.max())
  return e / e.sum()

def distribution(x, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0, history=()) -> np.ndarray:
  """The probability of each token, computed by sorting all tokens."""
  x = x.astype(np.float64)
  for i in set(history[-64:]): x[i] = x[i] / repeat_penalty if x[i] > 0 else x[i] * repeat_penalty
  order = np.argsort(-x, kind="stable")
  if top_k: order = order[:top_k]
  p = softmax(x[order])
  n = 1 + int(np.searchsorted(np.cumsum(p), top_p)) if top_p < 1 else len(p)
  n = min(n, int((p >= min_p * p[0]).sum()))
  out = np.zeros(len(x))
  out[order[:n]] = softmax(x[order[:n]] / temperature)
  return out

SETTINGS = [
  {"temperature": 1.0}, {"temperature": 0.5}, {"temperature": 2.0, "top_k": 5}, {"temperature": 1.0, "top_p": 0.7},
  {"temperature": 1.0, "top_p": 0.0}, {"temperature": 1.5, "min_p": 0.1}, {"temperature": 0.7, "repeat_penalty": 1.5},
  {"temperature": 3.0, "top_k": 10, "top_p": 0.8, "min_p": 0.2, "repeat_penalty": 1.3}]

@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("seed", [0, 1])
def test_sampled_distribution(settings, seed):
  x, draws, history = logits(seed), 5000, [int(i) for i in np.argsort(-logits(seed))[:4]]
  sampler = Sampler(**settings, seed=seed)
  count = np.bincount([sampler(x, history) for _ in range(draws)], minlength=len(x))
  wanted = distribution(x, **settings, history=history)
  assert not count[wanted == 0].any()
  assert np.abs(count / draws - wanted).max() < 5 * np.sqrt(0.25 / draws)   # 5 standard deviations

@pytest.mark.parametrize("size, scale", [(50, 2.0), (151936, 3.0), (151936, 0.01), (3000, 0.0), (1, 1.0)])
@pytest.mark.parametrize("p", [0.01, 0.5, 0.95, 0.9999])
def test_top_p_takes_the_fewest(size, scale, p):
  x = logits(3, size, scale)
  x[::7] -= 1e9 if size > 50 else 0   # masked logits must not cost resolution
  wanted = distribution(x, top_p=p) > 0
  found = _top_p(x.max() - x, p)
  assert found.any() and x[found].min() >= x[~found].max(initial=-np.inf)
  # float32 weights may move the edge by a few tokens where the probabilities are tiny
  assert abs(int(found.sum()) - int(wanted.sum())) <= max(1, size // 10000)

def test_greedy():
  x = logits()
  assert Sampler()(x) == int(x.argmax()) == Sampler(temperature=9, top_k=1)(x) == Sampler(temperature=1e-320)(x)
  assert Sampler()(np.zeros(9, np.float32)) == 0
  assert Sampler(temperature=1e-30, seed=4)(x) == int(x.argmax()) == Sampler(temperature=1e30, top_p=0.0)(x)

def on_device(x: np.ndarray) -> int: return greedy_token(int(greedy_key(Tensor(x[None])).numpy()[0]))

@pytest.mark.parametrize("scale", [1.0, 1e-42, 1e37])
@pytest.mark.parametrize("size", [1, 2, 50, 5000, 128256])
def test_greedy_on_the_device(size, scale):
  for seed in range(3):
    x = logits(seed, size, 1.0) * np.float32(scale)
    for case in (x, -np.abs(x), np.abs(x), np.full_like(x, x[0])): assert on_device(case) == int(case.argmax())

def test_greedy_on_the_device_takes_the_first_of_equals():
  x = np.full(40000, -1.0, np.float32)
  x[[39999, 777, 20000]] = 5
  assert on_device(x) == 777
  assert on_device(np.array([-1, -0.0, 0.0, -0.0], np.float32)) == 1
  assert on_device(np.array([-1, 0.0, -0.0], np.float32)) == 1
  assert on_device(np.array([-np.inf, -3e38, -np.inf], np.float32)) == 1

@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_damaged_logits_on_the_device(value):
  x = logits()
  x[17] = value
  with pytest.raises(InputError, match="logits: the largest is"): on_device(x)
  with pytest.raises(InputError, match="logits: the largest is -inf"): on_device(np.full(5, -np.inf, np.float32))

def test_which_settings_are_greedy():
  for settings in ({}, {"temperature": 2.0, "top_k": 1}, {"top_p": 0.5}): assert Sampler(**settings).greedy
  for settings in ({"temperature": 0.1}, {"repeat_penalty": 1.1}, {"temperature": 1.0, "top_k": 2}):
    assert not Sampler(**settings).greedy

@pytest.mark.parametrize("size", [5, 255, 256, 1000, 151936])
@pytest.mark.parametrize("k", [1, 4, 40, 5000])
def test_top_k(size, k):
  x = logits(1, size)
  x[::3] = -np.inf
  for case in (x, np.zeros_like(x), np.sort(x)):
    if k < size: np.testing.assert_array_equal(np.sort(case[_top_k(case, k)]), np.sort(case)[-k:])

def test_repeat_penalty():
  x = np.array([3.0, 2.5, -1.0, -2.0], np.float32)
  sampler = Sampler(repeat_penalty=2.0)
  assert sampler(x, []) == 0 and sampler(x, [0]) == 1 and sampler(x, [0, 0, 0]) == 1   # once, however often it came
  assert sampler(x, [0] + [2] * 63) == 1 and sampler(x, [0] + [2] * 64) == 0           # only the last 64 tokens count
  assert sampler(x[2:], [0]) == 0 and Sampler(repeat_penalty=3.0)(x[2:], [0]) == 1     # negative logits are multiplied
  assert x.tolist() == [3.0, 2.5, -1.0, -2.0]
  for bad in ([4], [-1]):
    with pytest.raises(InputError, match="history"): sampler(x, bad)

def test_same_seed_same_tokens():
  def tokens(seed):
    sampler = Sampler(temperature=1.0, top_k=50, top_p=0.9, seed=seed)
    return [sampler(logits(i, 1000)) for i in range(50)]
  assert tokens(7) == tokens(7) != tokens(8)

def test_masked_tokens_are_never_sampled():
  x = np.full(100, -np.inf, np.float32)
  x[[3, 5]] = 0
  for settings in SETTINGS: assert Sampler(**settings)(x) in (3, 5)

@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("settings", [{}, *SETTINGS])
def test_damaged_logits(value, settings):
  x = logits()
  x[17] = value
  with pytest.raises(InputError, match="logits"): Sampler(**settings)(x)
  with pytest.raises(InputError, match="logits"): Sampler(**settings)(np.full(5, -np.inf, np.float32))

@pytest.mark.parametrize("shape", [(0,), (2, 3), ()])
def test_rejects_bad_logits_shape(shape):
  with pytest.raises(InputError, match="logits"): Sampler()(np.zeros(shape, np.float32))

@pytest.mark.parametrize("name, values", [
  ("temperature", [-1, np.nan, np.inf, "1", None, True]), ("top_k", [-1, 1.5, "1", np.inf]),
  ("top_p", [-0.1, 1.1, np.nan]), ("min_p", [-0.1, 1.1, np.nan]), ("repeat_penalty", [0, -1, np.nan, np.inf]),
  ("seed", [-1, 0.5, None, 2**64])])
def test_rejects_bad_arguments(name, values):
  for value in values:
    with pytest.raises(InputError, match=f"^{name}: "): Sampler(**{name: value})

def cut(stops, pieces) -> tuple[str, bool]:
  s, shown = StopStrings(stops), ""
  for piece in pieces:
    text, stopped = s.push(piece)
    shown += text
    if stopped: return shown, True
  return shown + s.flush(), False

@pytest.mark.parametrize("stops, text, wanted, stopped", [
  ([], "abc", "abc", False), (["x"], "abc", "abc", False), (["b"], "abc", "a", True), (["cd"], "abc", "abc", False),
  (["aab"], "aaab", "a", True), (["abab", "c"], "ababc", "", True), (["abcd", "bc"], "abcd", "a", True),
  (["bcd", "cd"], "abcd", "a", True),
  (["\nUser:"], "hi\nUse it\nUser: x", "hi\nUse it", True), (["日本"], "日日本", "日", True)])
def test_stop_strings(stops, text, wanted, stopped):
  """The result does not depend on the pieces that the text comes in."""
  splits = range(1, len(text)) if len(text) < 8 else range(3, len(text), 5)
  for n in range(len(splits) + 1):
    for at in itertools.combinations(splits, n):
      bounds = [0, *at, len(text)]
      assert cut(stops, [text[a:b] for a, b in itertools.pairwise(bounds)]) == (wanted, stopped)

def test_stop_strings_hold_back_no_more_than_needed():
  s = StopStrings(["</s>"])
  assert [s.push(x)[0] for x in ("a<", "b", "</", "x", "<<")] == ["a", "<b", "", "</x", "<"]
  assert s.flush() == "<" and s.flush() == ""

@pytest.mark.parametrize("stops", ["text", [""], [1]])
def test_bad_stop_strings(stops):
  with pytest.raises(InputError, match="stop"): StopStrings(stops)
