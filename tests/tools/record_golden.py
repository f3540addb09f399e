"""
Records llama.cpp's logits and greedy continuations as the golden files of test_golden.py (development only).

  python tests/tools/record_golden.py [case ...]      with llama-cpp-python==0.3.36, gguf, numpy and jinja2 installed

A synthetic case holds the token `ids` (T,), their `logits` (T, vocab) float16 and the `sha256` of the model, which the
test rebuilds. The default model's case holds the same for a text. For every chat prompt it holds the ids, llama.cpp's
greedy ids up to a stop token, and the gap between the two best logits at every step. There llama.cpp has the same
weights as F32, because with its 8-bit activations it leaves its own float answers too early.

llama.cpp runs its plain kernels (weights not repacked) with flash attention off, a half KV cache, 2 threads, and the
prompt as one batch.
"""
import argparse
import ctypes
import hashlib
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import jinja2
import llama_cpp as lc
import numpy as np
from gguf import GGUFReader
from tests.support.golden_cases import CASES, DEFAULT_MODEL, GOLDEN, case_ids, write_case
from tests.support.reference import Reference, kl

TEXT = ("Once upon a time there was a little fox who lived at the edge of the forest. Every morning she walked to the "
        "river to see if the ice had gone. One day she found a small boat between the stones. \"Whose boat is this?\" "
        "she asked the old heron. The heron looked at the water and said nothing for a long time. Then he smiled and "
        "told her that the boat was waiting for someone who was not afraid.")
PROMPTS = ["Tell me a story about a brave little fox.", "Write a story about a girl and her red kite.",
           "Tell me about a dog who lost his ball.", "A story about two friends and a boat, please.",
           "Tell me a short story about the moon.", "Write about a boy who was afraid of the dark.",
           "Tell me a story with a happy ending.", "What did the cat find in the garden?",
           "Write a story about a bear who shares his honey.", "Tell me about a rainy day."]

class LlamaCpp:
  """A model in llama.cpp, through its C interface. `overrides`: integers that replace the file's metadata."""
  def __init__(self, path: pathlib.Path, context: int, overrides: dict[str, int] | None = None):
    mp = lc.llama_model_default_params()
    mp.use_extra_bufts, mp.use_mmap = False, False
    if overrides:
      mp.kv_overrides = self.overrides = (lc.llama_model_kv_override * (len(overrides) + 1))()
      for item, (key, value) in zip(self.overrides, overrides.items()):
        item.key, item.value.val_i64 = key.encode(), value
    self.model = lc.llama_model_load_from_file(str(path).encode(), mp)
    cp = lc.llama_context_default_params()
    cp.n_ctx = cp.n_batch = cp.n_ubatch = context
    cp.n_threads = cp.n_threads_batch = 2
    cp.flash_attn_type = lc.LLAMA_FLASH_ATTN_TYPE_DISABLED
    self.ctx = lc.llama_init_from_model(self.model, cp)
    if not self.model or not self.ctx: raise SystemExit(f"llama.cpp cannot load {path}")
    self.vocab = lc.llama_model_get_vocab(self.model)

  def eval(self, ids: Sequence[int], start: int) -> np.ndarray:
    """The logits after each token, (len(ids), vocab) float32; the tokens come after `start` cached ones."""
    lc.llama_memory_seq_rm(lc.llama_get_memory(self.ctx), 0, start, -1)
    batch = lc.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
      batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, start + i, 1, True
      batch.seq_id[i][0] = 0
    if lc.llama_decode(self.ctx, batch): raise SystemExit("llama.cpp: llama_decode failed")
    n = lc.llama_vocab_n_tokens(self.vocab)
    out = np.ctypeslib.as_array(lc.llama_get_logits(self.ctx), (len(ids), n)).copy()
    lc.llama_batch_free(batch)
    return out

  def tokenize(self, text: str, special: bool) -> list[int]:
    data, out = text.encode(), (lc.llama_token * (len(text.encode()) + 8))()
    return list(out[:lc.llama_tokenize(self.vocab, data, len(data), out, len(out), False, special)])

  def greedy(self, ids: Sequence[int], count: int) -> tuple[list[int], list[float]]:
    """At most `count` best tokens after `ids`, the last of them possibly a stop token, and the gap at every step."""
    logits, out, gaps = self.eval(ids, 0)[-1], [], []
    while True:
      second, first = np.sort(logits)[-2:]
      out.append(int(logits.argmax()))
      gaps.append(float(first - second))
      if len(out) == count or lc.llama_vocab_is_eog(self.vocab, out[-1]): return out, gaps
      logits = self.eval(out[-1:], len(ids) + len(out) - 1)[-1]

  def close(self) -> None:
    lc.llama_free(self.ctx)
    lc.llama_model_free(self.model)

def report(name: str, path: pathlib.Path, ids: np.ndarray, logits: np.ndarray) -> None:
  exact = Reference(path).logits(ids)
  print(f"{name:20} std {exact.std():.2f}  KL(exact || llama.cpp) {kl(exact, logits):.1e}  "
        f"same best token {(exact.argmax(-1) == logits.argmax(-1)).mean():.0%}", flush=True)

def record(name: str, folder: pathlib.Path) -> None:
  path = folder / "model.gguf"
  sha = write_case(name, path)
  ids = case_ids(name, path)
  # llama.cpp recognises a model without low-rank queries only by its number of layers
  full = CASES[name]["arch"] == "deepseek2" and (mla := CASES[name].get("mla")) and not mla.q_lora
  peer = LlamaCpp(path, 256, {"deepseek2.attention.q_lora_rank": 0} if full else None)
  logits = peer.eval(ids.tolist(), 0)
  peer.close()
  report(name, path, ids, logits)
  np.savez_compressed(GOLDEN / f"{name}.npz", ids=ids.astype(np.int16), logits=logits.astype(np.float16), sha256=sha)

def expand(path: pathlib.Path, out: pathlib.Path) -> pathlib.Path:
  """The same weights as F32: llama.cpp then computes with float activations, not with its 8-bit ones."""
  params = lc.llama_model_quantize_default_params()
  params.ftype, params.allow_requantize = 0, True  # 0: all F32
  if lc.llama_model_quantize(str(path).encode(), str(out).encode(), ctypes.byref(params)):
    raise SystemExit(f"llama.cpp cannot expand {path}")
  return out

def record_default(folder: pathlib.Path) -> None:
  sha = hashlib.sha256(DEFAULT_MODEL.read_bytes()).hexdigest()
  kv = {name: field.contents() for name, field in GGUFReader(DEFAULT_MODEL).fields.items()}
  peer, tokens = LlamaCpp(expand(DEFAULT_MODEL, folder / "default.gguf"), 512), kv["tokenizer.ggml.tokens"]
  special = {f"{kind}_token": tokens[kv[key]] if (key := f"tokenizer.ggml.{kind}_token_id") in kv else ""
             for kind in ("bos", "eos")}
  template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(kv["tokenizer.chat_template"])
  ids = np.array(peer.tokenize(TEXT, False)[:64], np.int32)
  logits = peer.eval(ids.tolist(), 0)
  report("default", DEFAULT_MODEL, ids, logits)
  out: dict[str, Any] = {"sha256": sha, "ids": ids, "logits": logits.astype(np.float16)}
  for i, prompt in enumerate(PROMPTS):
    chat = template.render(messages=[{"role": "user", "content": prompt}], add_generation_prompt=True, **special)
    prompt_ids = peer.tokenize(chat, True)
    answer, gaps = peer.greedy(prompt_ids, 64)
    out |= {f"prompt{i}": np.array(prompt_ids, np.int32), f"answer{i}": np.array(answer, np.int32),
            f"gap{i}": np.array(gaps, np.float16)}
    print(f"  {prompt} -> {len(answer)} tokens, smallest gap {min(gaps):.3f}")
  peer.close()
  np.savez_compressed(GOLDEN / "default.npz", **out)

def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("case", nargs="*", help="default: all")
  wanted = parser.parse_args().case or [*CASES, "default"]
  @lc.llama_log_callback
  def quiet(*_: Any) -> None: pass
  lc.llama_log_set(quiet, ctypes.c_void_p(0))
  GOLDEN.mkdir(exist_ok=True)
  with tempfile.TemporaryDirectory() as folder:
    for name in wanted:
      if name != "default": record(name, pathlib.Path(folder))
      elif DEFAULT_MODEL.exists(): record_default(pathlib.Path(folder))
      else: print(f"default: skipped, {DEFAULT_MODEL} is not there", file=sys.stderr)

if __name__ == "__main__": main()
