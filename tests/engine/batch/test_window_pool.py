"""Models whose layers with a window have a pool of their own: the same answers, though what was given back is NaN."""
import random
import threading
import time

import numpy as np
import pytest
from tests.support.extended import some
from tests.support.model_cases import MODELS
import tinygrad_llm
from tinygrad_llm.device.buffers import host_view
from tinygrad_llm.engine import llm as llm_module
from tinygrad_llm.engine.prefixes.windows import WindowSize, held_blocks
from tinygrad_llm.engine.batch.pool_size import window_size

ALL = {"kv": {"gemma3.attention.sliding_window_pattern": [True] * 3}}
# a window in one of two layers; with sinks and experts; layers that share keys and values; recurrent layers; no others
CASES = {"gemma3": {}, "gpt-oss": {}, "gemma4-e": {}, "lfm2-window": {}, "gemma3-arrays": ALL}
SEQUENCES, CHUNK, CONTEXT = 2, 64, 1024  # how many windows the small pool has

def loaded(path, monkeypatch, small: bool):
  """The model with a pool of few windows, or with one pool for all layers."""
  def few(*args) -> WindowSize | None:
    if not small or (found := window_size(*args)) is None: return None
    return found._replace(blocks=1 + held_blocks(found.positions, CHUNK, CONTEXT, SEQUENCES))
  monkeypatch.setattr(llm_module, "window_size", few)
  return tinygrad_llm.load(str(path), max_context=CONTEXT, chunk=CHUNK)

def poison(llm) -> None:
  """Blocks of the window pool are NaN as soon as they are free."""
  blocks = llm.engine.pool.windows.blocks
  views, free = [host_view(cache.pool.kv) for cache in llm.model.caches if cache.apart], blocks._free
  def freed(block: int) -> None:
    for view in views: view[:, :, block] = np.nan
    free(block)
  blocks._free = freed

def answers(llm, rng: random.Random) -> list[list[int]]:
  """One after the other, two beside each other, forks, and a second turn."""
  prompts = [[rng.randrange(300) for _ in range(n)] for n in (5, 100, rng.randint(200, 400))]
  prompts.append(prompts[2][:150] + prompts[1])
  settings = {"max_tokens": 40, "ignore_eos": True}
  found = [[*llm.stream(prompt, **settings)] for prompt in prompts]
  streams, beside = [llm.stream(prompt, **settings) for prompt in prompts[2:]], (list[int](), list[int]())
  threads = [threading.Thread(target=lambda i=i: beside[i].extend(streams[i])) for i in range(2)]
  for thread in threads: thread.start()
  for thread in threads: thread.join()
  found += beside
  found += [[*stream] for stream in llm.streams(prompts[3], 2, temperature=1.0, **settings)]
  second = llm.stream(prompts[2] + found[2] + [7] * 9, **settings)
  found.append([*second])
  return found

def written(model_file, name):
  """The path of a case's model."""
  return model_file(**MODELS[name] | {"vocab": 320, "types": "F32", "context": CONTEXT} | CASES[name])

@pytest.mark.parametrize("name", some(CASES, 0))
def test_answers_are_the_same(model_file, monkeypatch, name):
  print("seed", seed := random.randrange(2**32))
  path = written(model_file, name)
  with loaded(path, monkeypatch, small=False) as llm:
    assert llm.engine.pool.windows is None
    wanted, all_bytes = answers(llm, random.Random(seed)), llm.memory()["kv_pool"]
  with loaded(path, monkeypatch, small=True) as llm:
    poison(llm)
    assert answers(llm, random.Random(seed)) == wanted
    counts, pool = llm.pool_counts(), llm.engine.pool
    assert counts.windows.evictions > 5 and counts.hits > 100
    assert pool.windows.blocks.total < counts.total / 10 and llm.memory()["kv_pool"] < all_bytes * 0.7

def forget(llm) -> None:
  """Nothing is left in the pool but what sequences hold."""
  with llm.lock:
    while llm.engine.pool.tree.evict(): pass

@pytest.mark.parametrize("name", some([name for name in CASES if name != "lfm2-window"], 0))
def test_answer_that_is_read_again(model_file, monkeypatch, name):
  """Over several blocks, by decode steps: each takes its block of the window pool when it comes to it."""
  rng = random.Random(seed := random.randrange(2**32))
  print("seed", seed)
  path = written(model_file, name)
  with loaded(path, monkeypatch, small=True) as llm:
    prompt, settings = [rng.randrange(300) for _ in range(rng.randint(1, 130))], {"max_tokens": 250, "ignore_eos": True}
    wanted = [*llm.generate(prompt, **settings)]
    answer = llm.generate(prompt, **settings)
    got = [next(answer) for _ in range(rng.randint(140, 240))]
    end = time.perf_counter() + 30
    while llm.health().state != "idle" and time.perf_counter() < end: time.sleep(0.001)
    with llm.lock: assert llm.engine.scheduler.preempt()
    forget(llm)
    assert got + [*answer] == wanted

@pytest.mark.parametrize("name", some([name for name in CASES if name != "lfm2-window"], 0))
def test_steps_by_hand(model_file, monkeypatch, name):
  """prefill() and step() go on past any block, also when the pool has lost what was fed."""
  rng = random.Random(seed := random.randrange(2**32))
  print("seed", seed)
  path = written(model_file, name)
  with loaded(path, monkeypatch, small=True) as llm:
    ids, first = [rng.randrange(300) for _ in range(200)], rng.randint(1, 60)
    wanted = llm.logits(ids)
    found = [llm.prefill(ids[:first])]
    for i in range(first, len(ids)):
      if i % 64 == 0 or rng.random() < 0.05:
        llm._by_hand.leave()
        if rng.random() < 0.5: forget(llm)
      found.append(llm.step(ids[i], i))
    np.testing.assert_allclose(np.array(found), wanted[first - 1:], atol=1e-3)
