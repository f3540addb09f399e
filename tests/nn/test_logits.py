"""Our logits against the float64 reference: every architecture, every way to reach a position. F32 weights."""
import numpy as np
import pytest
import tinygrad_llm
from tests.support.extended import sample, some
from tests.support.model_cases import IDS, MODELS, VOCAB, sizes
from tests.support.reference import Reference, clear_choices

# EXACT: the KV cache is half precision, which alone moves a logit by at most 1.3e-3 of the standard deviation in these
# models. HALF: a reference that rounds its keys and values, too, shows the other differences. These are the order of
# float32 sums, and keys and values so near a rounding boundary that float32 and float64 round differently.
EXACT, HALF = 2e-3, 1e-3
# If two experts are nearly as good, rounding decides. Tokens with a closer choice are not used (standard deviations).
MARGIN = 0.01
FEW = ("llama", "deepseek2")  # checked by `make test`


class Case:
  def __init__(self, name, model_file):
    self.path = model_file(vocab=VOCAB, **MODELS[name])
    reference, (self.length, self.chunk, context) = Reference(self.path), sizes(name)
    self.ids = clear_choices(reference, IDS[:self.length], MARGIN)
    self.exact, self.half = (reference.logits(self.ids, kv_half=half) for half in (False, True))
    self.llm = tinygrad_llm.load(str(self.path), max_context=context, chunk=self.chunk)

  def check(self, logits: np.ndarray, positions=slice(None)) -> None:
    for reference, limit in ((self.exact, EXACT), (self.half, HALF)):
      error = np.abs(logits - reference[positions]).max() / self.exact.std()
      print(f"{error:.1e}", end=" ")
      assert error <= limit


@pytest.fixture(scope="module", params=sample(MODELS, FEW))
def case(request, model_file):
  return Case(request.param, model_file)


@pytest.fixture(scope="module")
def llama(model_file):
  return Case("llama", model_file)


def test_reference_is_sane(case):
  assert 1 <= case.exact.std() <= 3
  assert len(set(case.exact.argmax(-1))) > case.length ** 0.5  # answers depend on the context


def test_single_token(case):
  logits = case.llm.logits(case.ids[:1])
  assert logits.shape == (1, VOCAB)
  assert logits.dtype == np.float32
  case.check(logits, slice(0, 1))


def test_prefill(case):
  """
  Prefill in a short chunk, longer and shorter ones, a full one, and many with a ragged end; llama: 2,048 positions.
  """
  for n in (2, 19, 7, case.chunk, case.length): case.check(case.llm.logits(case.ids[:n]), slice(0, n))


def test_decode_step(case):
  """After a prompt, the decode step's logits match, and generate() takes the reference's best tokens."""
  start, n = 23, 24
  out = list(case.llm.generate(case.ids[:start], max_tokens=n, ignore_eos=True))
  exact = Reference(case.path).logits(case.ids[:start] + out)[start - 1:-1]
  assert len(out) == n
  assert (exact.max(-1) - exact[np.arange(n), out]).max() <= 2 * EXACT * exact.std()  # the best token, or a tie
  case.llm.prefill(case.ids[:start])
  steps = [case.llm.step(token, start + i) for i, token in enumerate(case.ids[start:start + n])]
  case.check(np.stack(steps), slice(start, start + n))


def test_reused_prefix(case):
  """A prompt that shares a prefix with the last one gives the same as from an empty context."""
  list(case.llm.generate(case.ids[:40], max_tokens=4, ignore_eos=True))
  prompt = case.ids[:30] + case.ids[60:70]
  again = list(case.llm.generate(prompt, max_tokens=4, ignore_eos=True))
  fresh = case.llm.logits(prompt + again[:-1])[len(prompt) - 1:]
  assert again == fresh.argmax(-1).tolist()


@pytest.mark.parametrize("chunk", some([1, 7], 1))
def test_prefill_chunk_sizes(llama, chunk):
  """Small chunks, the last one ragged, give the same logits; chunk 1 goes token by token."""
  n = 60
  llm = tinygrad_llm.load(str(llama.path), max_context=128, chunk=chunk)
  logits = llm.logits(llama.ids[:n])
  llama.check(logits, slice(0, n))
  assert np.abs(logits - llama.llm.logits(llama.ids[:n])).max() <= HALF * llama.exact.std()
