"""
Compares models of random shape, type and architecture with the float64 reference, to find untested combinations.

  python tests/tools/random_models.py --seed 4711              one case, with its drawn values (replays a failure)
  python tests/tools/random_models.py --seed 1 --count 300     300 cases from that seed on (make random-models)

`make test` takes new seeds each day; SEED in the environment overrides the first one.
"""
import argparse
import concurrent.futures
import contextlib
import datetime
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import numpy as np
from tests.support.reference import Reference, clear_choices, kl
from tests.support.synthetic import write_model
from tests.tools.random_shapes import FLOATS, Case, draw

MARGIN = 0.1  # of expert routing, in standard deviations: int8 activations do not flip the choice
# Limits of KL(exact || ours): mean over the positions, and maximum. A defect is orders of magnitude above: a row of the
# logits in another place gives 3 or more. With float weights only the half-precision KV cache makes errors; int8
# activations move a logit of standard deviation 2 by some hundredths.
FLOAT_KL, Q8_KL = (1e-5, 1e-3), (5e-3, 5e-2)

def seeds_of_today(experts: bool) -> list[int]:
  """Today's seed for `make test`, the same in all its processes; SEED in the environment overrides it."""
  first = int(os.environ.get("SEED") or (datetime.datetime.now(datetime.UTC).date().toordinal() * 100))
  return [first // 2 * 2 + experts]

class Mismatch(AssertionError): pass

def clear_ids(reference: Reference, ids: list[int], types: str) -> list[int]:
  """clear_choices with other seeds if it fails; for float weights with smaller margins, which suffice."""
  for seed, part in enumerate((1 / 4, 1 / 10, 1 / 20) if types in FLOATS else (1, 1, 1)):
    with contextlib.suppress(ValueError): return clear_choices(reference, ids, part * MARGIN, seed)
  raise ValueError("no tokens found that choose their experts clearly")

def check(case: Case, folder: pathlib.Path) -> dict[str, float]:
  """
  {part: mean KL} of the prompt's logits, of decode steps and of a second turn. Mismatch if something is wrong.

  The reference must find each token of a greedy answer as good as its best token, or nearly.
  """
  import tinygrad_llm
  path = write_model(folder / "model.gguf", **case.model)
  reference, limits = Reference(path, case.context), FLOAT_KL if case.model["types"] in FLOATS else Q8_KL
  rng = np.random.default_rng(case.seed)
  ids = clear_ids(reference, rng.integers(0, case.model["vocab"], case.prompt + 6).tolist(), case.model["types"])
  prompt, steps = ids[:case.prompt], ids[case.prompt:]
  llm, found = tinygrad_llm.load(str(path), max_context=case.context, chunk=case.chunk), dict[str, float]()

  def compare(what: str, ours: np.ndarray, exact: np.ndarray) -> None:
    if ours.shape != exact.shape or not np.isfinite(ours).all(): raise Mismatch(f"{what}: {ours.shape}, not finite?")
    each = [kl(exact[i:i + 1], ours[i:i + 1]) for i in range(len(exact))]
    found[what] = float(np.mean(each))
    if found[what] > limits[0] or max(each) > limits[1]:
      raise Mismatch(f"{what}: KL {found[what]:.1e}, at position {int(np.argmax(each))} {max(each):.1e}")

  exact = reference.logits(ids)
  compare("prompt", llm.logits(prompt), exact[:case.prompt])
  list(llm.generate(prompt, max_tokens=1, ignore_eos=True))
  llm.prefill(prompt, case.prompt - 1)  # after what the answer has left
  compare("decode", np.stack([llm.step(t, case.prompt + i) for i, t in enumerate(steps)]), exact[case.prompt:])
  out = list(llm.generate(prompt, max_tokens=case.answer, ignore_eos=True))
  if len(out) != case.answer: raise Mismatch(f"generate: {len(out)} tokens, not {case.answer}")
  turn = rng.integers(0, case.model["vocab"], case.turn).tolist()
  second = clear_ids(reference, prompt + out + turn, case.model["types"])
  if second[:len(prompt + out)] == prompt + out:  # every choice of experts was clear
    best = reference.logits(prompt + out)[case.prompt - 1:-1]
    behind = (best.max(-1) - best[np.arange(len(out)), out]).max() / best.std()
    if behind > math.sqrt(limits[1]): raise Mismatch(f"generate: a token {behind:.2f} deviations behind the best")
  next(llm.generate(second, max_tokens=1, ignore_eos=True))
  llm.prefill(second, len(second) - 1)
  exact, margin = reference.logits([*second, steps[0]])[-1:], MARGIN / 20 if case.model["types"] in FLOATS else MARGIN
  compare("second turn", llm.step(steps[0], len(second))[None],
          exact if (reference.gap >= margin).all() else llm.logits([*second, steps[0]])[-1:].astype(np.float64))
  return found

def run(seed: int) -> dict[str, Any]:
  """The result of a case: {seed, case, seconds, kl or error}."""
  case, start = draw(seed), time.perf_counter()
  row: dict[str, Any] = {"seed": seed, "case": str(case)}
  with tempfile.TemporaryDirectory() as folder:
    try: row["kl"] = check(case, pathlib.Path(folder))
    except Exception as e: row["error"] = " ".join(f"{type(e).__name__}: {e}".split())[:400]
  return row | {"seconds": round(time.perf_counter() - start, 1)}

def process(seed: int) -> dict[str, Any]:
  """run(seed) in a child process, so that no state of earlier cases hides a fault."""
  path = [str(pathlib.Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
  env = {"DEV": "CPU", "PARALLEL": "0"} | os.environ | {"PYTHONPATH": os.pathsep.join(path)}
  done = subprocess.run([sys.executable, __file__, "--run", str(seed)], env=env, capture_output=True, text=True)
  if done.returncode:
    said = done.stderr[-600:] or f"exit code {done.returncode}"
    return {"seed": seed, "case": str(draw(seed)), "error": said, "seconds": 0}
  return json.loads(done.stdout.splitlines()[-1])

def main() -> int:
  parser = argparse.ArgumentParser(description="Compare models of random shape with a float64 reference.")
  parser.add_argument("--seed", type=int, default=1, help="the first (default 1)")
  parser.add_argument("--count", type=int, default=1, help="how many, from that on (default 1)")
  parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: the cores)")
  parser.add_argument("--run", type=int, help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.run is not None:
    print(json.dumps(run(args.run)))
    return 0
  if args.count == 1: print(json.dumps(asdict(draw(args.seed)), indent=1))
  seeds, wrong, worst = range(args.seed, args.seed + args.count), 0, 0.0
  with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
    for row in pool.map(process, seeds):
      wrong += "error" in row
      worst = max(worst, *row.get("kl", {}).values(), 0.0)
      print(f"{'WRONG' if 'error' in row else 'right'} {row['seconds']:6.1f} s  {row['case']}  "
            f"{row.get('error') or json.dumps(row['kl'])}", flush=True)
  print(f"{args.count} cases from seed {args.seed}: {wrong} wrong, largest mean KL {worst:.1e}")
  return min(wrong, 1)

if __name__ == "__main__": sys.exit(main())
