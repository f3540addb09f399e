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
from dataclasses import asdict, dataclass
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from tests.support.reference import Reference, clear_choices, kl
from tests.support.synthetic import write_model
from tests.support.synthetic_layers import FAMILIES, MLA, MoE

FLOATS = ("F32", "F16", "BF16")
TYPES = (*FLOATS, "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS",
         "MXFP4", "NVFP4", "Q4_K_M", "Q5_K_M")
DRAWN = tuple(FAMILIES)[:10]  # the families of random models
MARGIN = 0.1  # of expert routing, in standard deviations: int8 activations do not flip the choice
# Limits of KL(exact || ours): mean over the positions, and maximum. A defect is orders of magnitude above: a row of the
# logits in another place gives 3 or more. With float weights only the half-precision KV cache makes errors; int8
# activations move a logit of standard deviation 2 by some hundredths.
FLOAT_KL, Q8_KL = (1e-5, 1e-3), (5e-3, 5e-2)

@dataclass(frozen=True)
class Case:
  """Arguments of write_model, and tokens of a chunk, the context, the first prompt, the answer, the second turn."""
  seed: int
  model: dict[str, Any]
  chunk: int
  context: int
  prompt: int
  answer: int
  turn: int

  def __str__(self) -> str:
    sizes = ", ".join(f"{name}={value}" for name, value in self.model.items() if value is not None)
    return (f"seed {self.seed}: {sizes}; chunk {self.chunk}, context {self.context}, prompt {self.prompt} + "
            f"{self.answer} + {self.turn} tokens")

class Draw:
  """Random choices that favour small and odd numbers."""
  def __init__(self, seed: int): self.rng = np.random.default_rng([seed, 0x5eed])
  def of(self, *choices: Any) -> Any: return choices[int(self.rng.integers(len(choices)))]
  def size(self, low: int, high: int, step: int = 1) -> int:
    """A log-uniform number from low to high in steps."""
    value = math.exp(self.rng.uniform(math.log(low), math.log(high + step)))
    return min(max(low, int(value) // step * step), high // step * step)
  def yes(self, chance: float) -> bool: return bool(self.rng.random() < chance)

def _step(types: str) -> int:
  """The step of row lengths that fit a type. The usual mixes fall back to other types for rows that do not fit."""
  return 32 if types.endswith("_M") else max(2, GGML_QUANT_SIZES[GGMLQuantizationType[types]][0])

def _heads(d: Draw, arch: str, step: int) -> dict[str, int]:
  """heads, kv_heads and head_dim, whose product is a whole number of blocks."""
  while True:
    groups, kv_heads, head_dim = d.size(1, 6), d.size(1, 6), d.size(48, 288, 2)
    if arch in ("olmoe", "deepseek2"): groups = 1
    if groups * kv_heads <= 12 and groups * kv_heads * head_dim % step == 0 and groups * kv_heads * head_dim <= 1024:
      return {"heads": groups * kv_heads, "kv_heads": kv_heads, "head_dim": head_dim}

def _moe(d: Draw, arch: str, step: int) -> MoE:
  gating = d.of("softmax", "sigmoid") if arch == "deepseek2" else ""
  groups = d.of(0, 0, 2, 3) if arch == "deepseek2" else 0
  experts = groups * d.size(2, 8) if groups else d.size(2, 40)
  groups_used = d.size(1, groups) if groups else 0
  most = experts // groups * groups_used if groups else experts
  return MoE(experts=experts, used=d.size(1, min(8, most)), ffn=d.size(max(step, 32), max(step, 320), step),
             dense=d.of(0, 1) if arch == "deepseek2" else 0, shared=d.of(0, 1, 2) if arch == "deepseek2" else 0,
             gating=gating, norm=d.yes(0.5) and arch == "deepseek2", scale=d.of(0, 2.5) if arch == "deepseek2" else 0,
             bias=gating == "sigmoid" and d.yes(0.5), groups=groups, groups_used=groups_used)

def draw(seed: int) -> Case:
  """The case of a seed, the same on every machine. Odd seeds have experts, even ones have none."""
  d = Draw(seed)
  arch = d.of(*(name for name in DRAWN if bool(FAMILIES[name].moe) == bool(seed % 2)))
  types = d.of(*TYPES)
  step = _step(types)
  def rows(most: int) -> int: return d.size(max(step, 64), max(step, most), step)
  model: dict[str, Any] = {"arch": arch, "types": types, "seed": seed, "dim": rows(512), "ffn": rows(640),
                           "layers": d.of(1, 1, 2), "vocab": d.size(300, 1500), **_heads(d, arch, step)}
  if FAMILIES[arch].moe:
    model["moe"] = _moe(d, arch, step)
    if arch == "deepseek2": model["layers"] = model["moe"].dense + 1
  if arch == "deepseek2":
    heads = d.size(1, 8)
    value = step // math.gcd(step, heads)  # so that heads * value and the ranks are whole blocks
    model |= {"head_dim": None, "heads": heads, "kv_heads": heads, "mla": MLA(
      q_lora=d.of(0, 1) * d.size(max(step, 32), max(step, 256), step),
      kv_lora=d.size(max(step, 32), max(step, 256), step),
      nope=d.size(max(step, 16), max(step, 128), step), rope=d.size(8, 64, 2),
      value=d.size(max(value, 16), max(value, 128), value), absorbed=d.yes(0.7))}
  if arch in ("llama", "qwen2", "qwen3"): model["tied"] = d.yes(0.5)
  if arch in ("gemma3", "gpt-oss"): model["window"] = d.size(1, 64)
  if arch == "gemma3": model["pattern"] = d.of(0, 2)
  chunk, prompt = d.size(1, 64), d.size(1, 90)
  answer, turn = d.size(2, 6), d.size(1, 20)
  return Case(seed, model, chunk, prompt + answer + turn + 4 + d.size(1, 60), prompt, answer, turn)

def seeds_of_today(experts: bool) -> list[int]:
  """Today's seed for `make test`, the same in all its processes; SEED in the environment overrides it."""
  first = int(os.environ.get("SEED") or (datetime.datetime.now(datetime.UTC).date().toordinal() * 100))
  return [first // 2 * 2 + experts]

class Mismatch(AssertionError): pass

def clear_ids(reference: Reference, ids: list[int], types: str) -> list[int]:
  """clear_choices with other seeds if it fails; for float weights also with smaller margins, which suffice."""
  for seed, part in enumerate((1, 1 / 4, 1 / 20) if types in FLOATS else (1, 1, 1)):
    with contextlib.suppress(ValueError): return clear_choices(reference, ids, part * MARGIN, seed)
  raise ValueError("no tokens found that choose their experts clearly")

def check(case: Case, folder: pathlib.Path) -> dict[str, float]:
  """
  {part: mean KL} of the prompt's logits, of decode steps and of a second turn. Mismatch if something is wrong.

  The reference must find each token of a greedy answer as good as its best token, or nearly.
  """
  import tinygrad_llm
  path = write_model(folder / "model.gguf", **case.model)
  reference, limits = Reference(path), FLOAT_KL if case.model["types"] in FLOATS else Q8_KL
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
  exact, clear = reference.logits([*second, steps[0]])[-1:], (reference.gap >= MARGIN).all()
  compare("second turn", llm.step(steps[0], len(second))[None],
          exact if clear else llm.logits([*second, steps[0]])[-1:].astype(np.float64))
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
