"""The app's logits against the float64 reference: every architecture, every way to reach a position. F32 weights."""
from typing import Any

import numpy as np
import pytest
import tinygrad_llm
from golden_cases import yarn
from reference import Reference, clear_choices
from synthetic_layers import MLA, MoE

EPS = 0.01  # large enough to matter
SIGMOID = {"gating": "sigmoid", "norm": True, "bias": True, "dense": 1}
MODELS: dict[str, dict[str, Any]] = {
  "llama": {"arch": "llama", "heads": 4, "kv_heads": 1, "rope_freqs": True},
  "llama-untied": {"arch": "llama", "tied": False, "head_dim": 48,
                   "kv": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}},
  "llama-yarn": {"arch": "llama", "kv": yarn("llama", 2.0)},
  "qwen2": {"arch": "qwen2"},
  "qwen2-yarn": {"arch": "qwen2", "kv": yarn("qwen2", 4.0, attn_factor=0.9)},
  "qwen3": {"arch": "qwen3", "eps": EPS, "tied": False, "head_dim": 64},
  "qwen3moe": {"arch": "qwen3moe", "eps": EPS},
  "olmoe": {"arch": "olmoe", "eps": EPS, "ffn": 64, "moe": MoE(experts=6, used=3)},
  # DeepSeek-V2-Lite: a full matrix of queries, softmax gating, YaRN with its factor in the scores
  "deepseek2": {"arch": "deepseek2", "eps": EPS, "kv": yarn("deepseek2", 40.0, yarn_log_multiplier=0.0707)},
  # GLM-4.7-Flash, DeepSeek-V3: low-rank queries, sigmoid gating, groups
  "deepseek2-groups": {"arch": "deepseek2", "eps": EPS, "mla": MLA(q_lora=48),
                       "moe": MoE(experts=12, used=3, shared=1, scale=2.5, groups=4, groups_used=2, **SIGMOID)},
  # files from before the split of attn_kv_b, and before the key of the gating function
  "deepseek2-old": {"arch": "deepseek2", "moe": MoE(dense=1, shared=2, scale=16.0), "mla": MLA(absorbed=False)},
  # Youtu-LLM: no experts at all
  "deepseek2-dense": {"arch": "deepseek2", "dense": True, "tied": True, "mla": MLA(q_lora=48)},
  "gemma3": {"arch": "gemma3", "eps": EPS, "head_dim": 48, "pattern": 2, "window": 24,
             "kv": {"gemma3.final_logit_softcapping": 5.0, "gemma3.rope.scaling.type": "linear",
                    "gemma3.rope.scaling.factor": 8.0}},
  "gemma3-sliding": {"arch": "gemma3", "head_dim": 32},  # two layers of the usual pattern of six
  "gpt-oss": {"arch": "gpt-oss", "eps": EPS, "head_dim": 48, "kv": yarn("gpt-oss", 32.0)},
}
FIRST = ("llama", "llama-untied", "qwen2", "qwen3")  # these with a longer context
VOCAB, LONG = 320, 2048
IDS = np.random.default_rng(0).integers(0, VOCAB, LONG).tolist()

# The cache is half precision, which alone moves a logit by 1.3e-3 of the standard deviation at most in these models. A
# reference that rounds its keys and values too shows what else differs: the order of float32 sums, and keys and values
# so near a rounding boundary that float32 and float64 fall on different sides.
EXACT, HALF = 2e-3, 1e-3
# Where two experts are nearly as good, rounding decides: no token is used whose choice is closer (standard deviations).
MARGIN = 0.01


class Case:
  def __init__(self, name, model_file):
    self.path = model_file(vocab=VOCAB, **MODELS[name])
    reference, self.length = Reference(self.path), LONG if name == "llama" else 300 if name in FIRST else 100
    self.chunk = 256 if name in FIRST else 64
    self.ids = clear_choices(reference, IDS[:self.length], MARGIN)
    self.exact, self.half = (reference.logits(self.ids, kv_half=half) for half in (False, True))
    self.llm = tinygrad_llm.load(str(self.path), max_context=self.length + 16, chunk=self.chunk)

  def check(self, logits: np.ndarray, positions=slice(None)) -> None:
    for reference, limit in ((self.exact, EXACT), (self.half, HALF)):
      error = np.abs(logits - reference[positions]).max() / self.exact.std()
      print(f"{error:.1e}", end=" ")
      assert error <= limit


@pytest.fixture(scope="module", params=MODELS)
def case(request, model_file):
  return Case(request.param, model_file)


@pytest.fixture(scope="module")
def llama(model_file):
  return Case("llama", model_file)


def test_reference_is_sane(case):
  assert 1 <= case.exact.std() <= 3
  assert len(set(case.exact.argmax(-1))) > case.length ** 0.5  # not one answer for every context


def test_single_token(case):
  logits = case.llm.logits(case.ids[:1])
  assert logits.shape == (1, VOCAB)
  assert logits.dtype == np.float32
  case.check(logits, slice(0, 1))


def test_prefill(case):
  """A short chunk, longer and shorter ones, a full one, many and a ragged one; the llama model to 2,048 positions."""
  for n in (2, 19, 7, case.chunk, case.length): case.check(case.llm.logits(case.ids[:n]), slice(0, n))


def test_decode(case):
  """Token by token after a prompt: the logits of the decode step, and generate() against the reference's choice."""
  start, n = 23, 24
  out = list(case.llm.generate(case.ids[:start], max_tokens=n, ignore_eos=True))
  exact = Reference(case.path).logits(case.ids[:start] + out)[start - 1:-1]
  assert len(out) == n
  assert (exact.max(-1) - exact[np.arange(n), out]).max() <= 2 * EXACT * exact.std()  # the best token, or a tie
  list(case.llm.generate(case.ids[:start], max_tokens=1))
  steps = [case.llm._step(token, start + i) for i, token in enumerate(case.ids[start:start + n])]
  case.check(np.stack(steps), slice(start, start + n))


def test_generate_again(case):
  """A prompt that shares its beginning with the last one gives what it gives from an empty context."""
  list(case.llm.generate(case.ids[:40], max_tokens=4, ignore_eos=True))
  prompt = case.ids[:30] + case.ids[60:70]
  again = list(case.llm.generate(prompt, max_tokens=4, ignore_eos=True))
  fresh = case.llm.logits(prompt + again[:-1])[len(prompt) - 1:]
  assert again == fresh.argmax(-1).tolist()


@pytest.mark.parametrize("chunk", [1, 7])
def test_chunks(llama, chunk):
  """Small chunks, the last one ragged, give the same logits: token by token at chunk 1."""
  n = 60
  llm = tinygrad_llm.load(str(llama.path), max_context=128, chunk=chunk)
  logits = llm.logits(llama.ids[:n])
  llama.check(logits, slice(0, n))
  assert np.abs(logits - llama.llm.logits(llama.ids[:n])).max() <= HALF * llama.exact.std()
