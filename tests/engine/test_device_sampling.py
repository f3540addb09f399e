"""engine/device_sampling.py: sampling on the device takes the same tokens as a Sampler."""
import functools
from collections.abc import Sequence

import numpy as np
import pytest
from tests.support.extended import extended, sample
from tests.support.child import call
from tests.gpu.gpu_numbers import opencl
from tinygrad import Tensor
from tinygrad_llm.device.captured import captured
from tinygrad_llm.engine import device_sampling
from tinygrad_llm.engine.device_sampling import place, recent_tokens, sampled_key, search, settings
from tinygrad_llm.engine.sampling import Sampler, biased, greedy_key, greedy_token, token_bias
from tinygrad_llm.errors import InputError

SIZES = (1, 515, 32003, 128256)
EDGES = (
  {"temperature": 1.0}, {"temperature": 1.0, "top_k": 1}, {"temperature": 2.0, "top_k": 2}, {"temperature": 0.0},
  {"temperature": 1.0, "top_k": 2**40}, {"temperature": 1.0, "top_p": 0.0}, {"temperature": 3.0, "top_p": 1e-9},
  {"temperature": 1.0, "top_p": 1 - 2**-33}, {"temperature": 1.0, "min_p": 1.0}, {"temperature": 9.0, "min_p": 1e-30},
  {"temperature": 1e-320}, {"temperature": 1e-6, "top_k": 40}, {"temperature": 3e38, "top_k": 3},
  {"temperature": 1.0, "repeat_penalty": 1e-6, "top_k": 5}, {"temperature": 0.7, "repeat_penalty": 1.5, "top_p": 0.5})

@functools.cache
def step(shape: tuple[int, int]): return captured(sampled_key)  # one capture for all settings

def keys(*inputs: np.ndarray) -> list[int]:
  """sampled_key of logits (n, 1, vocab), recent tokens, settings and random numbers, a line a row."""
  n, _, size = inputs[0].shape
  found = step((n, size))(*[Tensor(np.ascontiguousarray(a)).contiguous().realize() for a in inputs])
  return [int(key) for key in found.numpy()[:, 0]]

def choice(x: np.ndarray, history: Sequence[int], sampler: Sampler) -> int:
  random = np.array([sampler.random32()], np.uint32)
  inputs = x.reshape(1, 1, -1), recent_tokens(history)[None], settings(sampler, x.size)[None], random
  return greedy_token(keys(*inputs)[0])

def on_device(x: np.ndarray, history: Sequence[int] = (), **asked) -> int:
  return choice(x, history, Sampler(**asked))

def cases(size: int, count: int):
  """Random logits, histories and settings."""
  rng = np.random.default_rng(size)
  for i in range(count):
    x = (rng.standard_normal(size) * rng.choice([1, 3, 10])).astype(np.float32)
    if i % 3 == 0: x[rng.integers(0, size, size // 2)] = -np.inf
    if not np.isfinite(x).any(): x[-1] = 0
    asked = {"temperature": rng.choice([0.3, 0.8, 1, 2, 5]), "top_k": rng.choice([0, 2, 40, size, size + 5]),
             "top_p": rng.choice([0.1, 0.5, 0.95, 1]), "min_p": rng.choice([0, 0, 0.05, 0.5]),
             "repeat_penalty": rng.choice([1, 1.3, 0.8])}
    history = rng.integers(0, size, rng.choice([0, 5, 64, 100])).tolist()
    yield x, history, {k: v.item() for k, v in asked.items()} if i >= len(EDGES) else EDGES[i], i

def differing(size: int, count: int) -> list:
  return [(asked, seed) for x, history, asked, seed in cases(size, count)
          if on_device(x, history, **asked, seed=seed) != Sampler(**asked, seed=seed)(x, history)]

@pytest.mark.parametrize("size", sample(SIZES, (515,)))
def test_tokens_match_host_sampler(size): assert differing(size, 60) == []

def differing_rows(size: int, n: int, count: int) -> list[int]:
  """
  Steps of n rows some of whose keys are others, in any bit, than each row's own alone, or a greedy one's greedy_key.

  Rows have random settings, ties, masks and histories in any order, and now and then a NaN.
  """
  rng, found = np.random.default_rng(n), []
  for i, made in enumerate(zip(*[cases(size, count * n)] * n)):
    x, recent, words, random = ([], [], [], [])
    for logits, history, asked, seed in made:
      if rng.random() < 0.3: logits = np.round(logits)
      if rng.random() < 0.1: logits[rng.integers(0, size)] = np.nan
      if rng.random() < 0.3: asked = {}
      x.append(logits[None])
      recent.append(rng.permutation(recent_tokens(history)))
      words.append(settings(Sampler(**asked), size))
      random.append(Sampler(seed=seed).random32())
    rows = [*map(np.array, (x, recent, words, np.array(random, np.uint32)))]
    alone = [keys(*[a[k:k + 1] for a in rows])[0] for k in range(n)]
    likeliest = greedy_key(Tensor(rows[0])).numpy()[:, 0].tolist()
    greedy = [k for k in range(n) if (rows[2][k] == settings(Sampler(), size)).all()]
    if keys(*rows) != alone or any(alone[k] != likeliest[k] for k in greedy): found.append(i)
  return found

@pytest.mark.parametrize("size,n,count", sample(
  [(515, 3, 8), (9001, 4, 4), (515, 8, 20), (9001, 2, 20), (128256, 8, 3)], [(515, 3, 8)]))
def test_rows_choose_as_alone(size, n, count): assert differing_rows(size, n, count) == []

@pytest.mark.skipif(opencl() is None, reason="no OpenCL runtime")
@pytest.mark.parametrize("size", [515, 9001])
def test_rows_choose_as_alone_on_opencl(size): assert call(differing_rows, size, 4, 6, **opencl()).value == []

@pytest.mark.parametrize("asked", [{"top_k": 1, "temperature": 1.0}, {"repeat_penalty": 2.0}])
def test_first_of_the_likeliest(asked):
  """A sampler that takes the best token takes the first of equal ones, whatever the number."""
  x = np.zeros(515, np.float32)
  x[[7, 300, 301]] = 2
  for seed in range(4): assert on_device(x, [7], **asked, seed=seed) == (300 if "repeat_penalty" in asked else 7)

@pytest.mark.skipif(opencl() is None, reason="no OpenCL runtime")
def test_tokens_match_host_sampler_on_opencl(): assert call(differing, 32003, 40, **opencl()).value == []

@pytest.mark.parametrize("count", [1, 30, 514])
def test_suppressed_tokens(count):
  """With a token_bias, the device picks what a Sampler with the same suppressed ids picks."""
  rng = np.random.default_rng(count)
  bias = token_bias(banned := rng.permutation(515)[:count].tolist(), 515)
  assert bias is not None
  for seed in range(6):
    x = (rng.standard_normal(515) * 3).astype(np.float32)
    x[banned] += 30
    asked = {"temperature": 1.5, "top_k": seed * 9, "top_p": 0.9, "repeat_penalty": 1.3, "seed": seed}
    wanted = Sampler(**asked, suppressed=banned)(before := x.copy(), history := [banned[0], 7])
    assert on_device(x + bias.numpy(), history, **asked) == wanted and wanted not in banned and (x == before).all()
    assert Sampler(suppressed=banned)(x) == np.where(np.isin(np.arange(515), banned), -np.inf, x).argmax()
    assert greedy_token(int(greedy_key(biased(Tensor(x[None]), bias)).numpy()[0])) == Sampler(suppressed=banned)(x)

def test_without_suppressed_tokens_nothing_is_computed():
  x = Tensor.empty(1, 9)
  assert token_bias((), 9) is None and biased(x, None) is x

def test_one_random_number_per_choice():
  """As with a Sampler, each choice takes one random number from the generator."""
  x = np.random.default_rng(0).standard_normal(515).astype(np.float32)
  host, device = (Sampler(temperature=1.0, seed=4) for _ in range(2))
  for _ in range(9): assert choice(x, [], device) == host(x)

@extended
def test_distribution():
  x = np.log(np.array([0.5, 0.3, 0.1, 0.1], np.float32))
  drawn = np.bincount([on_device(x, temperature=1.0, top_p=0.75, seed=seed) for seed in range(800)], minlength=4)
  assert drawn[2:].tolist() == [0, 0] and abs(drawn[0] / 800 - 0.625) < 5 * np.sqrt(0.25 / 800)

@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf])
def test_damaged_logits(value):
  x = np.zeros(515, np.float32)
  x[17] = value
  with pytest.raises(InputError, match="logits: the largest is"): on_device(x, temperature=1.0)
  with pytest.raises(InputError, match="logits: the largest is -inf"):
    on_device(np.full(515, -np.inf, np.float32), temperature=1.0, top_k=5)

def test_recent_tokens():
  assert recent_tokens([]).tolist() == [-1] * 64
  assert recent_tokens([7, 8]).tolist() == [7, 8, *[-1] * 62]
  assert recent_tokens(range(70)).tolist() == [*range(64, 70), *range(6, 64)]

@pytest.mark.parametrize("few", [0, device_sampling.FEW])
@pytest.mark.parametrize("bits,n", sample([(bits, n) for bits in (1, 5, 6, 7, 17, 31, 32) for n in (1, 3, 5)],
                                          [(1, 3), (5, 1), (7, 5), (17, 3), (31, 1), (32, 5)]))
def test_weighted_key_search(monkeypatch, bits, n, few):
  """Rows with targets of their own, at the edges of each sum."""
  monkeypatch.setattr(device_sampling, "FEW", few)
  rng = np.random.default_rng(bits)
  keys = rng.integers(0, 2**bits, (n, 8, 25), dtype=np.uint64).astype(np.uint32)
  keys[:, 0, :3] = 0, 2**bits - 1, 2**bits - 1
  weights = rng.integers(0, 2**32, keys.shape, dtype=np.uint64).astype(np.uint32)
  order = np.argsort(keys.reshape(n, -1), axis=1)
  def ordered(x: np.ndarray) -> np.ndarray: return np.take_along_axis(x.reshape(n, -1), order, 1)
  sums = np.cumsum(ordered(weights), axis=1, dtype=np.uint64)
  several = [row[7 * i] for i, row in enumerate(sums)]
  for targets in (np.ones(n), sums[:, 0], sums[:, 0] + 1, sums[:, 77], sums[:, -1], several):
    targets = np.array(targets, np.uint64)
    found = search(Tensor(keys), Tensor(weights), Tensor(targets), bits).numpy()
    assert found.tolist() == [row[np.searchsorted(*at)] for row, *at in zip(ordered(keys), sums, targets)]

@pytest.mark.parametrize("few", [0, device_sampling.FEW])
@pytest.mark.parametrize("n", [1, 5])
def test_weighted_place(monkeypatch, few, n):
  monkeypatch.setattr(device_sampling, "FEW", few)
  weights = np.random.default_rng(n).integers(0, 3, (n, 4, 9)).astype(np.uint32) * 10**9
  sums = np.cumsum(weights.reshape(n, -1), axis=1, dtype=np.uint64)
  for part in (0, 0.3, 0.77, 1):
    targets = np.maximum((sums[:, -1] * part).astype(np.uint64), 1)
    found = place(Tensor(weights), Tensor(targets)).numpy()
    assert found.tolist() == [np.searchsorted(*at) for at in zip(sums, targets)]
