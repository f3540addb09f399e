"""
Draws models of random shape, type and architecture for random_models.py: sizes, layers, parts and metadata of a file.

A seed's model depends on the set of supported architectures, so it changes when one is added.
"""
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from tests.support.synthetic import MIXED
from tests.support.synthetic_gemma4 import FULL, WINDOW, Gemma4
from tests.support.synthetic_layers import FAMILIES, MLA, Family, Indexer, MoE
from tests.support.synthetic_recurrent import KDA, Delta, Mamba2, ShortConv
from tinygrad_llm.nn.archs import ARCHS

FLOATS = ("F32", "F16", "BF16")
TYPES = (*MIXED, "NVFP4", "Q4_K_M", "Q5_K_M", "MIXED")
DRAWN = tuple(name for name, family in FAMILIES.items() if (family.arch or name) in ARCHS)  # the families drawn
EITHER = ("llama", "gemma4", "granitehybrid", "deepseek2")  # with or without experts
FUSED = ("gemma4", "qwen35moe", "qwen3next")  # their experts' gate and up may be one tensor

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

# cases that were wrong once, as they were drawn then
ONCE_WRONG = {
  # an attention window that is one block of prefill attention
  14209: Case(14209, {"arch": "gpt-oss", "types": "NVFP4", "seed": 14209, "dim": 192, "ffn": 384, "layers": 2,
                      "vocab": 905, "heads": 4, "kv_heads": 4, "head_dim": 96,
                      "moe": MoE(experts=3, used=1, ffn=64), "window": 13}, 4, 143, 84, 3, 3),
}

class Draw:
  """Random choices that favour small and odd numbers. step: of the lengths of rows."""
  def __init__(self, seed: int): self.rng, self.step = np.random.default_rng([seed, 0x5eed]), 1
  def of(self, *choices: Any) -> Any: return choices[int(self.rng.integers(len(choices)))]
  def size(self, low: int, high: int, step: int = 1) -> int:
    """A log-uniform number from low to high in steps; at least one step."""
    low = -(-low // step) * step
    high = max(low, high // step * step)
    return min(max(low, int(math.exp(self.rng.uniform(math.log(low), math.log(high + step)))) // step * step), high)
  def row(self, low: int, high: int) -> int:
    """The length of a row."""
    return self.size(low, high, self.step)
  def part(self, count: int, low: int, high: int, unit: int = 1) -> int:
    """A multiple of `unit`, so that `count` of it are the length of a row."""
    return self.size(low, high, math.lcm(unit, self.step // math.gcd(self.step, count)))
  def yes(self, chance: float) -> bool: return bool(self.rng.random() < chance)

def step_of(types: str) -> int:
  """The step of row lengths that fit a type. The usual mixes fall back to other types for rows that do not fit."""
  if types == "MIXED": return 256  # most types fit
  return 32 if types.endswith("_M") else max(2, GGML_QUANT_SIZES[GGMLQuantizationType[types]][0])

@functools.cache
def mechanisms(experts: bool) -> list[list[str]]:
  """The families with or without experts, grouped by what their layers consist of."""
  groups = dict[tuple[Any, ...], list[str]]()
  for name in DRAWN:
    f = FAMILIES[name]
    if bool(f.moe) != experts and name not in EITHER: continue
    kinds = {part for kind in f.mixers for part in kind.split("+")} - {"attention", ""}
    groups.setdefault((*sorted(kinds), f.norms, f.fused, f.sinks, f.layer_norm), []).append(name)
  return list(groups.values())

# *** parts of a model

Layers = tuple[int, tuple[str, ...]]  # how many, and the kinds of their mixers, repeated

def recurrent(f: Family) -> bool: return any(part in ("delta", "kda", "mamba2", "shortconv") for part in f.parts)

def some_of(d: Draw, kinds: Sequence[str], n: int) -> tuple[str, ...]:
  """n kinds in random order, each of them at least once if n suffices."""
  return tuple(d.rng.permutation([*kinds, *(d.of(*kinds) for _ in range(n))][:n]).tolist())

def layers_of(d: Draw, f: Family, first: int) -> Layers:
  """first: at least so many."""
  kinds = [*dict.fromkeys(f.mixers)]
  if len(kinds) == 1: return max(first, d.of(1, 1, 2, 4) if f.window else d.of(1, 1, 2)), f.mixers
  n = max(first, len(kinds), d.of(2, 2, 3) if f.moe else d.of(2, 3, 4))
  if "delta" in kinds: return n, ("delta",) * d.of(1, n - 1) + ("attention",)
  if WINDOW in kinds: return n, d.of((WINDOW, FULL), (FULL, WINDOW), (WINDOW, WINDOW, FULL))
  return n, some_of(d, kinds, n)

def heads_of(d: Draw, f: Family) -> dict[str, Any]:
  """heads, kv_heads and head_dim, whose product is a whole number of blocks. The rotated share is an even number."""
  unit = 2 if f.rotated in (None, 1.0) else {0.75: 8, 0.5: 4, 0.25: 8}[f.rotated or 1]
  while True:
    groups, kv_heads = 1 if f.mha else d.size(1, 6), d.size(1, 6)
    head_dim = d.part(groups * kv_heads, 32, 288, unit)
    if groups * kv_heads <= 12 and groups * kv_heads * head_dim <= 1024:
      return {"heads": groups * kv_heads, "kv_heads": kv_heads, "head_dim": head_dim}

def latent_of(d: Draw, f: Family) -> dict[str, Any]:
  heads, sparse = d.size(1, 8), "sparse" in f.mixers
  factored = sparse or "kda" not in f.parts and d.yes(0.5)
  return {"heads": heads, "kv_heads": heads, "mla": MLA(
    q_lora=d.row(32, 256) if factored else 0, kv_lora=d.row(32, 256), nope=d.row(16, 128),
    rope=d.size(8, 64, 2), value=d.part(heads, 16, 128), absorbed=sparse or d.yes(0.7))}

def delta(d: Draw, name: str, model: dict[str, Any]) -> Delta:
  k_heads = d.size(1, 4)
  v_heads = k_heads * d.size(1, 4)
  return Delta(k_heads, v_heads, d.part(v_heads, 8, max(16, 384 // v_heads)), d.of(2, 3, 4, 4, 6), d.yes(0.3),
               name == "qwen3next" and d.yes(0.3))

def mamba2(d: Draw, name: str, model: dict[str, Any]) -> Mamba2:
  groups = d.size(1, 4)
  heads = groups * d.size(1, 5)
  return Mamba2(heads * d.part(heads, 8, max(16, 384 // heads)), heads, d.size(4, 80), groups, d.of(2, 3, 4, 4, 6),
                name != "falcon-h1" or d.yes(0.5))

def gemma4(d: Draw, name: str, model: dict[str, Any]) -> Gemma4:
  """Layers that share keys need one of their kind before them."""
  more = model["layers"] - 1 - max(model["mixers"].index(kind) for kind in (WINDOW, FULL))
  shared = d.size(1, more) if more > 0 and d.yes(0.6) else 0
  return Gemma4(d.part(model["heads"], 32, 160, 2), d.of(0.25, 0.5, 1.0), shared, d.row(16, 96) if d.yes(0.5) else 0,
                d.yes(0.5), d.yes(0.7))

def indexer(d: Draw, name: str, model: dict[str, Any]) -> Indexer:
  """All positions are chosen: another order of nearly equal scores would be no error."""
  types = ((1,) * d.of(1, 2) + (0,) * model["layers"])[:model["layers"]] if name == "glm-dsa" else ()
  return Indexer(d.size(1, 16), d.size(model["mla"].rope, 96, 2), 2048, types)

PARTS: dict[str, Callable[[Draw, str, dict[str, Any]], Any]] = {
  "shortconv": lambda d, name, model: ShortConv(d.of(2, 3, 3, 4, 6)),
  "delta": delta,
  "kda": lambda d, name, model: KDA(d.row(16, 64), d.of(2, 3, 4, 4, 6)),
  "mamba2": mamba2,
  "gemma4": gemma4,
  "indexer": indexer,
}

def experts_of(d: Draw, name: str, f: Family, ffn: int) -> MoE:
  """ffn: of the model."""
  moe, keys = f.moe or MoE(), f.expert_keys
  deepseek = name == "deepseek2"
  if deepseek: moe = replace(moe, groups=d.of(0, 0, 2, 3), scale=d.of(0, 2.5), gating=d.of("softmax", "sigmoid"))
  if deepseek or name == "glm4moe": moe = replace(moe, norm=d.yes(0.5))
  if deepseek: moe = replace(moe, bias=moe.gating == "sigmoid" and d.yes(0.5))
  # few experts after a recurrent mixer: a new token changes all later choices, so clear ones are harder to find
  experts = moe.groups * d.size(2, 8) if moe.groups > 1 else d.size(2, 10 if recurrent(f) else 40)
  groups_used = d.size(1, moe.groups) if moe.groups else 0
  most = experts // moe.groups * groups_used if moe.groups > 1 else experts
  if "shared_ffn" in keys: moe = replace(moe, shared=1 if moe.shared_gate else d.of(0, 1), shared_ffn=d.row(32, 320))
  elif "shared" in keys: moe = replace(moe, shared=d.of(0, 1, 2))
  layout = d.of("joined", "split") if name == "llama" else d.of("joined", "fused") if name in FUSED else moe.layout
  return replace(moe, experts=experts, used=1 if name == "llama4" else d.size(1, min(8, most)), groups_used=groups_used,
                 ffn=d.row(32, 320) if "ffn" in keys else ffn, dense=d.of(0, 1) if "dense" in keys else 0,
                 step=d.of(1, 2) if "step" in keys else 1, layout=layout,
                 latent=d.row(32, 128) if name == "nemotron_h_moe" and d.yes(0.5) else 0)

def scaling_of(d: Draw, name: str, f: Family) -> dict[str, Any]:
  """Metadata of rotations, caps and temperatures, most often none."""
  arch = f.arch or name
  def rope(**keys: Any) -> dict[str, Any]: return {f"{arch}.rope.scaling.{key}": value for key, value in keys.items()}
  out, original = dict[str, Any](), d.size(8, 64)
  if name == "phi3" and d.yes(0.5): out |= rope(original_context_length=original)
  if f.rotated != 0 and name not in ("phi3", "gemma4", "kimi-linear", "granitehybrid") and not name.startswith("nemot"):
    log = {"mistral3": 1.0, "deepseek2": 0.0707, "deepseek32": 0.1}
    kind = d.of("", "", "", "linear", "yarn")
    if kind == "linear" and not f.mla: out |= rope(type="linear", factor=float(d.of(2, 4, 8)))
    if kind == "yarn":
      out |= rope(type="yarn", factor=float(d.of(2, 4, 32)), original_context_length=original)
      if name in log: out |= rope(yarn_log_multiplier=log[name])
  if name == "mistral3" and d.yes(0.5):
    out |= rope(original_context_length=original) | {"mistral3.attention.temperature_scale": 0.3}
  if name in ("gemma2", "gemma3", "gemma4") and d.yes(0.5): out[f"{name}.final_logit_softcapping"] = 5.0
  if name == "gemma2" and d.yes(0.5): out["gemma2.attn_logit_softcapping"] = 2.0
  return out

def by_layer(d: Draw, model: dict[str, Any]) -> dict[str, Any]:
  """KV heads and widths of each layer, instead of one number."""
  n, heads = model["layers"], model["heads"]
  divisors = [k for k in range(1, heads + 1) if heads % k == 0]
  return {"kv_heads": tuple(d.of(*divisors) for _ in range(n)), "ffn": tuple(d.row(64, 640) for _ in range(n))}

def draw(seed: int) -> Case:
  """The case of a seed, the same on every machine. Odd seeds have experts, even ones have none."""
  if seed in ONCE_WRONG: return ONCE_WRONG[seed]
  d, experts = Draw(seed), bool(seed % 2)
  name = d.of(*d.of(*mechanisms(experts)))
  f, types = FAMILIES[name], d.of(*TYPES)
  d.step = step_of(types)
  model: dict[str, Any] = {"arch": name, "types": types, "seed": seed, "dim": d.row(64, 512), "ffn": d.row(64, 640),
                           "vocab": d.size(300, 1500), **(latent_of(d, f) if f.mla else heads_of(d, f))}
  if f.qk_norm == "heads": model["kv_heads"] = model["heads"]
  moe = experts_of(d, name, f, model["ffn"]) if experts else None
  first = 4 if name == "smollm3" else 1 + moe.dense if moe else 1
  n, mixers = layers_of(d, f, first)
  if moe: n = -(-n // moe.step) * moe.step
  model |= {"layers": n, "moe": moe, "tied": d.yes(0.5)}
  if len({*f.mixers}) > 1: model["mixers"] = mixers
  if f.mla and not experts: model["dense"] = True
  if f.parts: model["parts"] = {kind: PARTS[kind](d, name, model) for kind in f.parts}
  if "delta" in f.parts:
    if model["parts"]["delta"].listed: model["mixers"] = some_of(d, ("delta", "attention"), n)
    elif not experts and d.yes(0.2): model |= {"layers": n + 1, "parts": model["parts"] | {"nextn": 1}}
  if f.window or name in ("gemma2", "olmo2", "lfm2"): model["window"] = d.size(1, 64)
  if model.get("window") and name != "gemma4" and d.yes(0.2): model["window"] = 0
  if model.get("window") and name not in ("gemma4", "lfm2"): model["pattern"] = d.of(0, 2, 3)
  if not f.mla and not experts and n > 1 and d.yes(0.3): model |= by_layer(d, model)
  if "gemma4" in f.parts: model |= gemma4_heads(d, model)
  elif not f.mla and not f.query_gate and not f.qkv_bias: model["qkv_bias"] = d.yes(0.2)
  elif name in ("glm4", "glm4moe"): model["qkv_bias"] = d.yes(0.7)
  if name == "glm4moe": model["qk_norm"] = d.yes(0.5)
  if name in ("llama", "mixtral-old"): model["rope_freqs"] = d.yes(0.3)
  if types == "NVFP4": model["scaled"] = d.yes(0.5)
  model["kv"] = scaling_of(d, name, f) or None
  chunk, prompt = d.size(1, 64), d.size(1, 40 if recurrent(f) and experts else 90)
  answer, turn = d.size(2, 6), d.size(1, 20)
  return Case(seed, model, chunk, prompt + answer + turn + 4 + d.size(1, 60), prompt, answer, turn)

def gemma4_heads(d: Draw, model: dict[str, Any]) -> dict[str, Any]:
  """KV heads by the kind of a layer, so that those which share keys have as many."""
  divisors = [k for k in range(1, model["heads"] + 1) if model["heads"] % k == 0]
  heads = {WINDOW: d.of(*divisors), FULL: d.of(*divisors)}
  return {"kv_heads": tuple(heads[model["mixers"][i % len(model["mixers"])]] for i in range(model["layers"]))}

def rows(model: dict[str, Any]) -> list[int]:
  """The lengths of a model's rows, which are whole blocks of its type."""
  heads, parts, ffn = model["heads"], model.get("parts", {}), model["ffn"]
  out = [model["dim"], *((ffn,) if isinstance(ffn, int) else ffn)]
  if moe := model["moe"]: out += [moe.ffn, moe.shared_width, moe.latent]
  if mla := model.get("mla"): out += [mla.q_lora, mla.kv_lora, mla.nope, heads * mla.value]
  else: out.append(heads * model["head_dim"])
  for part in parts.values():
    if isinstance(part, Delta): out.append(part.v_heads * part.size)
    if isinstance(part, Mamba2): out.append(part.inner)
    if isinstance(part, KDA): out += [part.size, heads * part.size]
    if isinstance(part, Gemma4): out += [heads * part.window_dim, part.per_layer]
  return out
