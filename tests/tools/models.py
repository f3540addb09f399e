"""
Writes one tiny file for each architecture, answers a prompt with each, and checks the numbers (make models).

  python tests/tools/models.py [NAME ..]      only these architectures

A line each: the architecture, right or wrong, milliseconds a token, seconds in all, its layers by kind, and the models
that people know it by. The logits after the prompt are compared with the float64 reference, and so is each token of the
greedy answer. The exit code is 1 if any is wrong. Compiled kernels stay in tinygrad's cache, so a second run is fast.
"""
import argparse
import collections
import concurrent.futures
import functools
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import numpy as np
from tests.support.model_cases import IDS, MODELS, VOCAB
from tests.support.reference import Reference, clear_choices
from tests.support.synthetic import write_model
from tests.tools.doc_pages import MODELS as KNOWN
from tinygrad_llm.nn.archs import ARCHS
from tinygrad_llm.nn.config import ModelConfig

PROMPT, ANSWER = 12, 4  # tokens
LIMIT, MARGIN = 2e-3, 0.01  # of tests/nn/test_logits.py, in standard deviations
NAMES = {"ffn": "dense", "moe": "experts", "denseandexperts": "dense and experts"}

def kinds(config: ModelConfig) -> str:
  """How many layers a model has of each kind, such as "2 delta + experts, 1 attention + experts"."""
  def name(part: object) -> str:
    kind = type(part).__name__.removesuffix("Config").lower()
    before = next((f"{x} " for x in ("latent", "window") if getattr(part, x, None)), "")
    return before + NAMES.get(kind, kind)
  counted = collections.Counter(" + ".join(name(part) for part in (*layer.mixers, layer.ffn) if part is not None)
                                for layer in config.layers)
  return ", ".join(f"{n} {kind}" for kind, n in counted.items())

def check(path: pathlib.Path, chunk: int) -> tuple[float, str, str]:
  """Milliseconds a token, the layers, and the fault ("": none) of the model in a file."""
  import tinygrad_llm
  reference = Reference(path)
  ids = clear_choices(reference, IDS[:PROMPT], MARGIN)
  with tinygrad_llm.load(str(path), max_context=64, chunk=chunk) as llm:
    logits, out = llm.prefill(ids), list(llm.generate(ids, max_tokens=ANSWER, ignore_eos=True))
    layers, ms = kinds(llm.config), 1e3 / (llm.timing.decode_tok_s or np.inf)
  exact = reference.logits(ids + out)[PROMPT - 1:-1]
  error = np.abs(logits - exact[0]).max() / exact.std()
  behind = (exact.max(-1) - exact[np.arange(len(out)), out]).max() / exact.std()
  if not error <= LIMIT: return ms, layers, f"the prompt's logits are off by {error:.1e} standard deviations"
  if not behind <= 2 * LIMIT: return ms, layers, f"a token is {behind:.1e} standard deviations behind the best"
  return ms, layers, ""

def line(arch: str, chunk: int) -> tuple[bool, str]:
  """Whether an architecture's first model of model_cases.py is right, and its line."""
  start = time.perf_counter()
  try:
    model = next(case for case in MODELS.values() if case["arch"] == arch)
    with tempfile.TemporaryDirectory() as folder:
      path = write_model(pathlib.Path(folder) / f"{arch}.gguf", vocab=VOCAB, **model)
      ms, layers, fault = check(path, chunk)
  except Exception as e: ms, layers, fault = 0.0, "", " ".join(f"{type(e).__name__}: {e}".split())[:200]
  word, seconds, rest = "WRONG" if fault else "right", time.perf_counter() - start, fault or f"{layers}; {KNOWN[arch]}"
  return not fault, f"{word} {arch:<16} {ms:6.2f} ms a token {seconds:6.1f} s  {rest}"

def main() -> int:
  parser = argparse.ArgumentParser(description="Answer with a tiny model of each architecture; check the numbers.")
  parser.add_argument("names", nargs="*", metavar="NAME", help="architectures (default: all)")
  parser.add_argument("--chunk", type=int, default=1, help="tokens of a prompt at once (default 1: fewest kernels)")
  parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: the cores)")
  args, start, wrong = parser.parse_args(), time.perf_counter(), 0
  if unknown := {*args.names} - {*ARCHS}: parser.error(f"no such architecture: {', '.join(sorted(unknown))}")
  names, spawn = args.names or [*ARCHS], multiprocessing.get_context("spawn")
  os.environ.setdefault("PARALLEL", "0")  # compile workers would only wait for the cores
  with concurrent.futures.ProcessPoolExecutor(args.jobs, spawn) as pool:
    for right, text in pool.map(functools.partial(line, chunk=args.chunk), names):
      wrong += not right
      print(text, flush=True)
  print(f"{len(names)} architectures, {wrong} wrong, {time.perf_counter() - start:.0f} seconds")
  return min(wrong, 1)

if __name__ == "__main__": sys.exit(main())
