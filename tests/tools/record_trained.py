"""
Records llama.cpp's results for SmolLM2-135M as the golden file of test_trained.py (development only).

  python tests/tools/record_trained.py      with llama-cpp-python==0.3.36 installed

The golden file holds these arrays. Float activations are llama.cpp's with the same weights as F32.
- `tokens`: the hostile texts' ids; `special`: with control tokens parsed. Both are concatenated, with `.._lengths`
- `text`: the text's ids. For its first chunks: `nll`: -ln p of each counted token
- `best`, `log_p`: the likeliest tokens of each counted position and their log-probabilities, with float activations
- `kl_peer`: llama.cpp's own divergence from these
- `prompt..`, `answer..`: the prompts' ids and the greedy answers with float activations. An answer is (tokens, 3): the
  token, the second best, and how much less its logit is in 1/1000
- `turn..`, `reply..`: the same for a chat
"""
import argparse
import pathlib
import sys
import tempfile
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import jinja2
import numpy as np
from gguf import GGUFReader
from tests.support.hostile_texts import as_unicode, hostile_texts
from tests.support.llama_cpp_logits import Peer
from tests.tools.record_golden import expand
from tests.support.trained_cases import (ANSWER, BEST, CHUNKS, CONTEXT, GOLDEN, PROMPTS, TEXT, TURN, TURNS, coarse_kl,
  texts_hash)
from tests.support.trained_models import MODELS, fetch

def log_softmax(logits: np.ndarray) -> np.ndarray:
  x = logits.astype(np.float64) - logits.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))

def flat(found: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
  return np.array([i for ids in found for i in ids], np.int32), np.array([len(ids) for ids in found], np.int32)

def answers(peer: Peer, prompt: list[int], count: int, ends: set[int]) -> np.ndarray:
  answer = peer.greedy(prompt, count, ends)
  return np.array([(token, second, round(1000 * gap)) for token, second, gap in answer], np.int32)

def record(path: pathlib.Path, folder: pathlib.Path) -> dict[str, Any]:
  kv = {name: field.contents() for name, field in GGUFReader(path).fields.items()}
  ends, tokens = {kv["tokenizer.ggml.eos_token_id"]}, kv["tokenizer.ggml.tokens"]
  template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(kv["tokenizer.chat_template"])
  peer, exact = Peer(path, 2 * CONTEXT), Peer(expand(path, folder / "f32.gguf"), 2 * CONTEXT)
  def prompt(messages: list[dict[str, str]]) -> list[int]:
    text = template.render(messages=messages, add_generation_prompt=True, bos_token=tokens[1], eos_token=tokens[2])
    return peer.encode(text, False, True)
  texts = [as_unicode(text) for text in hostile_texts()]
  out: dict[str, Any] = {"sha256": MODELS["SmolLM2-135M"].sha256, "texts": texts_hash()}
  out["tokens"], out["tokens_lengths"] = flat([peer.encode(text, False) for text in texts])
  out["special"], out["special_lengths"] = flat([peer.encode(text, False, True) for text in texts])
  ids = peer.encode(TEXT.read_text().removesuffix("\n"))
  out["text"] = np.array(ids, np.int32)
  nll, exact_nll, best, log_p, log_q = [], [], [], [], []
  for i in range(CHUNKS):
    chunk = ids[i * CONTEXT:(i + 1) * CONTEXT]
    theirs, want = (log_softmax(p.logits(chunk[:-1], CONTEXT // 2)) for p in (peer, exact))
    targets = np.array(chunk[CONTEXT // 2 + 1:])[:, None]
    nll.append(-np.take_along_axis(theirs, targets, 1)[:, 0])
    exact_nll.append(-np.take_along_axis(want, targets, 1)[:, 0])
    best.append(np.argsort(-want, -1, "stable")[:, :BEST])
    log_p.append(np.take_along_axis(want, best[-1], 1))
    log_q.append(np.take_along_axis(theirs, best[-1], 1))
  out |= {"nll": np.concatenate(nll).astype(np.float32), "best": np.concatenate(best).astype(np.uint16),
          "log_p": np.concatenate(log_p).astype(np.float32),
          "kl_peer": coarse_kl(np.concatenate(log_p), np.concatenate(log_q))}
  print(f"perplexity {np.exp(np.mean(nll)):.3f}, with float activations {np.exp(np.mean(exact_nll)):.3f}; "
        f"KL {out['kl_peer']:.2e}")
  for i, text in enumerate(PROMPTS):
    out[f"prompt{i}"] = np.array(asked := prompt([{"role": "user", "content": text}]), np.int32)
    out[f"answer{i}"] = answers(exact, asked, ANSWER, ends)
    plain = [token for token, _, _ in peer.greedy(asked, ANSWER, ends)]
    same = plain == out[f"answer{i}"][:, 0].tolist()
    print(f"{text} -> {exact.decode(out[f'answer{i}'][:, 0].tolist())!r}"
          + ("" if same else f"; with 8 bits {peer.decode(plain)!r}"))
  messages: list[dict[str, str]] = []
  for i, text in enumerate(TURNS):
    messages.append({"role": "user", "content": text})
    out[f"turn{i}"] = np.array(asked := prompt(messages), np.int32)
    out[f"reply{i}"] = answers(exact, asked, TURN, ends)
    said = exact.decode([t for t in out[f"reply{i}"][:, 0].tolist() if t not in ends])
    messages.append({"role": "assistant", "content": said})
    print(text, "->", said)
  return out

def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    np.savez_compressed(GOLDEN, **record(fetch("SmolLM2-135M"), pathlib.Path(folder)))
  print(f"written: {GOLDEN}, {GOLDEN.stat().st_size} bytes")

if __name__ == "__main__": main()
