"""
Recurrent layers in whole models: every way to cut a text into chunks, and texts that try their states. The logits are
compared with the float64 reference, whose recurrent layers go token by token.
"""
import numpy as np
import pytest
import tinygrad_llm
from tests.nn.test_recurrent_models import CASES
from tests.support.extended import extended, sample, some
from tests.support.model_cases import IDS, MODELS, VOCAB
from tests.support.reference import Reference, clear_choices
from tinygrad_llm.device.buffers import fill
from tinygrad_llm.engine.batch.row_steps import Row

LIMIT = 2e-3  # of the logits' standard deviation, as in test_logits.py
MARGIN = 0.01  # choices of experts that are closer may differ
FEW = ("qwen35",)  # checked by `make test`
LENGTHS = 15, 16, 17, 31, 32, 33  # around the numbers of tokens that linear attention computes at once
CHUNK, CONTEXT = 64, 200
TABLE = [1, 2, 3, 4]  # the blocks of the pool that these steps use; the engine runs none of its own


def loaded(path, chunk: int, context=CONTEXT):
  """A model whose states hold NaN: memory that is read before it is written would show."""
  llm = tinygrad_llm.load(str(path), max_context=context, chunk=chunk)
  for state in llm.model.states:
    for x in (x for held in (*state.pool.turns, state.pool.prompt) for x in held):
      fill(x, lambda memory: memory.fill(np.nan))
  return llm

def in_chunks(llm, ids, lengths) -> np.ndarray:
  """The logits after each token, fed in chunks of these lengths; the last chunk has the rest."""
  first, out, steps = 0, [], llm.engine.steps
  while first < len(ids):
    n = next(lengths, CHUNK)
    part = ids[first:first + n]
    steps.piece(part, first, TABLE)
    out.append(steps.piece_logits(len(part)).copy())
    first += n
  return np.concatenate(out)

def check(logits: np.ndarray, exact: np.ndarray) -> None:
  error = np.abs(logits - exact).max() / exact.std()
  print(f"{error:.1e}", end=" ")
  assert error <= LIMIT  # false for NaN


class Case:
  def __init__(self, name, model_file):
    self.path = model_file(vocab=VOCAB, **MODELS[name])
    self.reference = Reference(self.path)
    self.llm = loaded(self.path, CHUNK)
    self.taps = next(layer.recurrent.taps for layer in self.llm.config.layers if layer.recurrent)
    self.ids = clear_choices(self.reference, IDS[:160], MARGIN)
    self.exact = self.reference.logits(self.ids)


@pytest.fixture(scope="module", params=sample(CASES, FEW))
def case(request, model_file):
  return Case(request.param, model_file)

def test_lengths_of_chunks(case):
  """Chunks of one token, of fewer than the convolution sees, and around the sizes at which linear attention pads."""
  check(in_chunks(case.llm, case.ids, iter((1, max(1, case.taps - 2), *LENGTHS))), case.exact)
  check(in_chunks(case.llm, case.ids, iter((*LENGTHS[::-1], 1))), case.exact)

def test_decode_steps_from_the_first_token(case):
  steps = case.llm.engine.steps
  logits = [steps.logits(steps.decode([Row(token, i, TABLE)], i % 2)[0], 0).copy()
            for i, token in enumerate(case.ids[:12])]
  check(np.stack(logits), case.exact[:12])

def test_repeated_token(case):
  """Equal keys make the corrections of a chunk depend on each other as much as they can."""
  token = next(t for t in range(VOCAB) if (case.reference.logits([t] * 100), case.reference.gap.min() >= MARGIN)[1])
  check(in_chunks(case.llm, [token] * 100, iter(())), case.reference.logits([token] * 100))


@pytest.mark.parametrize("name", sample(CASES, ("lfm2",)))
@pytest.mark.parametrize("chunk", some([1, 7], 1))
def test_small_chunks(name, chunk, model_file):
  """Steps that never have more tokens: fewer than linear attention computes at once, and a single one."""
  path = model_file(vocab=VOCAB, **MODELS[name])
  reference = Reference(path)
  ids = clear_choices(reference, IDS[:40], MARGIN)
  check(loaded(path, chunk).logits(ids), reference.logits(ids))


@extended
@pytest.mark.parametrize("name", CASES)
def test_long_text(name, model_file):
  """Errors do not grow with the number of positions."""
  path, n = model_file(vocab=VOCAB, **MODELS[name]), 4096
  reference = Reference(path)
  ids = clear_choices(reference, np.random.default_rng(1).integers(0, VOCAB, n), MARGIN)
  check(loaded(path, 256, n).logits(ids), reference.logits(ids))
