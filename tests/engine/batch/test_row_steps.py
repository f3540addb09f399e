"""Steps of rows over the pool of KV blocks: each row has the logits of LLM.step(), whatever its company."""
import random

import numpy as np
import pytest
from tests.support.extended import some
from tests.support.model_cases import MODELS
import tinygrad_llm
from tinygrad_llm.device.buffers import host_view
from tinygrad_llm.engine.batch import row_steps
from tinygrad_llm.engine.batch.row_steps import COUNTS, Row, RowSteps
from tinygrad_llm.nn.cache.place import BLOCK

VOCAB, CHUNK, BLOCKS, TOKENS = 317, 64, 40, 3  # TOKENS: decoded after each prompt
LENGTHS = (1, 63, 64, 65, 128, 7, 100, 190)
CASES = {"Q8_0": {"types": "Q8_0"}, "F16": {"types": "F16"}, "BF16": {"types": "BF16"},
         "Q4_K": {"types": "Q4_K", "dim": 256, "layers": 1}, "Q6_K": {"types": "Q6_K", "dim": 256, "layers": 1},
         "experts": {"arch": "qwen3moe", "types": "Q8_0", "layers": 1},
         # windows; windows, sinks and experts; latent attention and experts; soft caps; shared keys and values
         **{name: MODELS[name] for name in ("gemma3", "gpt-oss", "deepseek2", "gemma2", "gemma4-e")}}
NEARLY = ("Q4_K", "experts")  # a head whose rows are not in tiles; groups of pairs with experts
WINDOWS = ("gemma3", "gpt-oss", "gemma2", "gemma4-e")  # the pool's loop over a window begins with a block
NEAR = 1e-4  # of the logits' standard deviation: far above the rounding of float32 sums, far below that to int8
FAR = 0.1    # where an activation falls on the other side of a boundary between two int8 numbers

class Fed:
  """A model, random sequences, their prompts in a pool, and the logits of LLM.prefill() and step() for them."""
  def __init__(self, path, seed: int = 0):
    rng = random.Random(seed)
    self.llm = tinygrad_llm.load(str(path), max_context=512, chunk=CHUNK)
    self.ids = [[rng.randrange(VOCAB) for _ in range(n + TOKENS)] for n in LENGTHS]
    self.tables = tables(rng, [-(-len(ids) // BLOCK) for ids in self.ids])
    self.want, alone = dict[tuple[int, int], np.ndarray](), []
    for b, (n, ids) in enumerate(zip(LENGTHS, self.ids)):
      alone.append(self.llm.prefill(ids[:n]))
      self.want |= {(b, at): self.llm.step(ids[at], at) for at in range(n, len(ids))}
    self.steps = RowSteps(self.llm.model, self.llm.positions, CHUNK, BLOCKS)  # its own pool, from here on
    self.prompts = [(logits, self.read(rng, ids[:n], table))
                    for logits, n, ids, table in zip(alone, LENGTHS, self.ids, self.tables)]
    self.held = [host_view(pool).copy() for pool in self.steps.pools]

  def read(self, rng: random.Random, ids: list[int], table: list[int]) -> np.ndarray:
    """Reads a prompt in pieces of random lengths, each within neighbouring blocks; the logits after the last."""
    at = count = 0
    while at < len(ids):
      end = at // BLOCK
      while end + 1 < len(table) and table[end + 1] == table[end] + 1: end += 1
      count = min(rng.randint(1, CHUNK), len(ids) - at, (end + 1) * BLOCK - at)
      self.steps.piece(ids[at:at + count], at, table)
      at += count
    return self.steps.last_logits(count)

  def decoded(self, size: int, order: list[int]) -> dict[tuple[int, int], np.ndarray]:
    """The logits of the same tokens by steps of at most `size` rows, in an order of the sequences."""
    for pool, held in zip(self.steps.pools, self.held): host_view(pool)[:] = held
    found = dict[tuple[int, int], np.ndarray]()
    for i in range(TOKENS):
      for first in range(0, len(order), size):
        of = [(b, LENGTHS[b] + i) for b in order[first:first + size]]
        logits, keys = self.steps.decode([Row(self.ids[b][at], at, self.tables[b]) for b, at in of])
        for k, (b, at) in enumerate(of):
          found[b, at] = self.steps.logits(logits, k).copy()
          assert 0xFFFFFFFF - (self.steps.keys(keys)[k] & 0xFFFFFFFF) == found[b, at].argmax()
    return found

def tables(rng: random.Random, sizes: list[int]) -> list[list[int]]:
  """Blocks of each sequence: neighbours for every third one, scattered and in any order for the others."""
  free, made = list(range(1, BLOCKS)), list[list[int]]()
  for i, size in enumerate(sizes):
    if i % 3 == 1: run = next(free[k:k + size] for k in range(len(free)) if free[k + size - 1] == free[k] + size - 1)
    else: run = rng.sample(free, size)
    made.append(run)
    free = [block for block in free if block not in run]
  return made

def differences(found: dict[tuple[int, int], np.ndarray], want: dict[tuple[int, int], np.ndarray]) -> np.ndarray:
  """The largest difference of each row, in standard deviations. Another choice than the wanted one is a near tie."""
  assert found.keys() == want.keys()
  far = {key: float(np.abs(row - want[key]).max()) for key, row in found.items()}
  for key, row in found.items():
    assert want[key].max() - want[key][row.argmax()] <= 2 * far[key], f"row {key} is no near tie"
  return np.array([far[key] / want[key].std() for key in found])

@pytest.mark.parametrize("name", some(CASES, 0))
def test_logits_of_a_row_are_those_of_a_step_alone(model_file, name):
  """
  One row is equal to LLM.step(), to the bit; so are several rows, also with int8 activations.

  Where two or more rows add int8 products in another order than one row does, an activation of a few rows is rounded to
  the next int8 number. Beyond a window's length, float32 sums of attention are in another order, too. Each run draws
  two numbers of rows.
  """
  fed = Fed(model_file(vocab=VOCAB, context=512, **({"types": "F32"} | CASES[name])))
  for alone, read in fed.prompts:
    assert np.array_equal(read, alone) or name in WINDOWS and np.abs(read - alone).max() < NEAR * alone.std()
  rng, all_found = random.Random(1), []
  sizes = [n for n in range(2, COUNTS[-1] + 1) if len(LENGTHS) % n != 1]  # else the last step has one row
  for size in (1, *random.sample(sizes, 2)):
    order = [*range(len(LENGTHS))]
    if size > 1: rng.shuffle(order)
    all_found.append(found := fed.decoded(size, order))
    far = differences(found, fed.want)
    if name in WINDOWS: assert far.max() < NEAR
    elif size > 1 and name in NEARLY: assert (far > NEAR).mean() <= 0.2 and far.max() < FAR
    else: assert not far.any(), f"{size} rows: {far}"
  same = all_found[1:] if name in NEARLY else all_found
  for found in same[1:]:
    for key, row in found.items(): np.testing.assert_array_equal(row, same[0][key])

@pytest.mark.parametrize("name", some(["llama", "Q4_K", "gemma3"], 0))
def test_repeated_steps_are_steps(model_file, name):
  """To the bit, for any number of rows, also where other steps came between that wrote their own tables."""
  fed = Fed(model_file(vocab=VOCAB, context=512, **({"types": "F32"} | CASES.get(name, {}))), seed=2)
  rng = random.Random(2)
  for size in (1, 2, 3, 5, 8):
    order = rng.sample(range(len(LENGTHS)), min(size, len(LENGTHS)))
    want, rows = fed.decoded(size, order), [Row(fed.ids[b][LENGTHS[b]], LENGTHS[b], fed.tables[b]) for b in order]
    for pool, held in zip(fed.steps.pools, fed.held): host_view(pool)[:] = held
    again = fed.steps.repeat(rows)
    for i in range(TOKENS):
      at = [LENGTHS[b] + i for b in order]
      if i and any(n % BLOCK == 0 for n in at): break  # another block
      if i % 3 == 2: fed.steps.decode([Row(table=[BLOCKS - 1])] * rng.choice([1, size]))  # nobody's block
      logits, _ = again([fed.ids[b][n] for b, n in zip(order, at)], at)
      for k, (b, n) in enumerate(zip(order, at)):
        np.testing.assert_array_equal(fed.steps.logits(logits, k), want[b, n])

def test_every_place_of_a_step(model_file):
  """Each sequence in each place of 8, and beside idle rows only."""
  fed = Fed(model_file(vocab=VOCAB, context=512, types="F32"), seed=2)
  order = [*range(len(LENGTHS))]
  for first in range(1, len(order)):
    found = fed.decoded(8, order[first:] + order[:first])
    for key, row in found.items(): np.testing.assert_array_equal(row, fed.want[key])
  for size in (1, 2, 3, 5, 7):
    for key, row in fed.decoded(size, order).items(): np.testing.assert_array_equal(row, fed.want[key])

@pytest.mark.parametrize("by_host", [True, False])
def test_copies_of_blocks(model_file, monkeypatch, by_host):
  """A sequence goes on from copies of its blocks; no other block changes."""
  fed = Fed(model_file(vocab=VOCAB, context=512, types="F32"), seed=2)
  if not by_host: monkeypatch.setattr(row_steps, "host_view", lambda _: None)
  used = {block for table in fed.tables for block in table}
  b, free = 7, [block for block in range(1, BLOCKS) if block not in used]
  copies = dict(zip(fed.tables[b], free))
  for source, target in copies.items(): fed.steps.copy(source, target)
  others = [block for block in range(1, BLOCKS) if block not in copies.values()]
  for pool, held in zip(fed.steps.pools, fed.held):
    np.testing.assert_array_equal(host_view(pool)[:, :, others], held[:, :, others])
    held[:] = host_view(pool)
  for source in fed.tables[b]:
    for pool in fed.held: pool[:, :, source] = np.nan  # it reads the copies only
  fed.tables[b] = [copies[block] for block in fed.tables[b]]
  for key, row in fed.decoded(1, [b]).items(): np.testing.assert_array_equal(row, fed.want[key])
  fed.steps.copy(free[0], 0)
  fed.steps.copy(free[-1], 0)  # scratch, as a target, is nobody's

@pytest.mark.parametrize("by_host", [True, False])
def test_cleared_blocks_are_zero(model_file, monkeypatch, by_host):
  """Also while scratch holds numbers that are not finite."""
  llm = tinygrad_llm.load(str(model_file(vocab=VOCAB, context=512, types="F32")), max_context=512)
  steps = llm.engine.steps
  for pool in steps.pools: host_view(pool)[:, :, :6] = np.nan
  with monkeypatch.context() as m:
    if not by_host: m.setattr(row_steps, "host_view", lambda _: None)
    for block in (3, 4): steps.clear(block)
  for pool in steps.pools:
    assert not host_view(pool)[:, :, 3:5].any() and np.isnan(host_view(pool)[:, :, [2, 5]]).all()
