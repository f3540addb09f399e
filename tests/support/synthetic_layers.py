"""
The tensors and metadata of every architecture, named and shaped as llama.cpp's converters write them. The standard
deviations of the random weights keep a model well-conditioned (see synthetic.py).

Source: conversion/*.py and src/models/*.cpp of llama.cpp.
"""
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gguf import ExpertGatingFuncType, GGUFWriter


@dataclass(frozen=True)
class MoE:
  """
  The experts of a layer.

  `ffn`: width of one expert. `dense`: leading layers without experts. `shared`: experts for every token, joined into
  one. `gating`: softmax, sigmoid or "" (not written, as in the oldest files). `norm`: the chosen experts' weights are
  normalised to sum to 1. `scale`: a factor of these weights (0: not written). `bias`: a bias of the selection.
  `groups`, `groups_used`: experts are chosen from the best groups only (0: not written).
  """
  experts: int = 8
  used: int = 2
  ffn: int = 64
  dense: int = 0
  shared: int = 0
  gating: str = ""
  norm: bool = False
  scale: float = 0
  bias: bool = False
  groups: int = 0
  groups_used: int = 0

@dataclass(frozen=True)
class MLA:
  """
  Multi-head latent attention (DeepSeek-V2).

  `q_lora`: rank of the queries (0: not factored). `kv_lora`: rank of keys and values. `nope`, `rope`, `value`:
  dimensions of a head. `absorbed`: the file has attn_k_b (transposed) and attn_v_b instead of the older attn_kv_b.
  """
  q_lora: int = 0
  kv_lora: int = 64
  nope: int = 32
  rope: int = 16
  value: int = 32
  absorbed: bool = True

@dataclass(frozen=True)
class Family:
  """Defaults of an architecture. vocab: see synthetic_vocab. qk_norm: over each "head", or over "all" heads at once."""
  vocab: str
  rope_base: float
  qkv_bias: bool = False
  qk_norm: str = ""
  moe: MoE | None = None
  mla: MLA | None = None
  window: int = 0
  tied: bool = True

DEEPSEEK_V2_LITE = MoE(dense=1, shared=2, gating="softmax", scale=1.0, groups=1, groups_used=1)
FAMILIES = {
  "llama": Family("llama", 500000.0),
  "qwen2": Family("qwen", 1000000.0, qkv_bias=True),
  "qwen3": Family("qwen", 1000000.0, qk_norm="head"),
  "qwen3moe": Family("qwen", 1000000.0, qk_norm="head", moe=MoE(), tied=False),
  "olmoe": Family("olmo", 10000.0, qk_norm="all", moe=MoE(), tied=False),
  "deepseek2": Family("deepseek", 10000.0, moe=DEEPSEEK_V2_LITE, mla=MLA(), tied=False),
  "gemma3": Family("gemma", 1000000.0, qk_norm="head", window=32),
  "gpt-oss": Family("gpt-oss", 150000.0, qkv_bias=True, moe=MoE(), window=16, tied=False),
  "seed_oss": Family("qwen", 10000000.0, qkv_bias=True, tied=False),
  "granite": Family("llama", 10000.0),
}

@dataclass(frozen=True)
class Shape:
  """The arguments of write_model that determine the tensors, with defaults filled in."""
  arch: str
  dim: int
  ffn: int
  layers: int
  heads: int
  kv_heads: int
  head_dim: int
  vocab: int
  tied: bool
  qkv_bias: bool
  qk_norm: str
  logit_std: float
  rope_freqs: bool
  moe: MoE | None
  mla: MLA | None

class Spec(NamedTuple):
  """A gaussian tensor of `mean`, `std` and optional random `signs`. The file's types apply only to a `matrix`."""
  name: str
  shape: tuple[int, ...]
  std: float
  mean: float = 0.0
  signs: bool = False
  matrix: bool = True
  layer: int = 0

def matrix(name: str, layer: int, std: float, *shape: int) -> Spec:
  return Spec(name + ".weight", shape, std, layer=layer)

def norm(name: str, n: int, mean=1.0, signs=False) -> Spec:
  return Spec(name + ".weight", (n,), 0.1 * mean, mean, signs, matrix=False)

def bias(name: str, std: float, *shape: int) -> Spec:
  return Spec(name + ".bias", shape, std, matrix=False)

# *** tensors ***

def tensors(s: Shape) -> Iterator[Spec]:
  """All tensors, in the order of the file."""
  emb, back = s.logit_std / math.sqrt(s.dim), min(0.7, 1 / math.sqrt(s.layers))
  gain = emb * back  # standard deviation of a block's contribution to the residual stream
  yield matrix("token_embd", 0, emb, s.vocab, s.dim)
  if s.rope_freqs: yield Spec("rope_freqs.weight", (s.head_dim // 2,), 0, matrix=False)
  for i in range(s.layers):
    name = f"blk.{i}."
    yield norm(name + "attn_norm", s.dim)
    yield from (latent_attention if s.mla else attention)(s, i, gain)
    if s.arch == "gemma3": yield norm(name + "post_attention_norm", s.dim, s.logit_std * back / 2)
    yield norm(name + ("post_attention_norm" if s.arch in ("gpt-oss", "seed_oss") else "ffn_norm"), s.dim)
    if s.moe and i >= s.moe.dense: yield from experts(s, s.moe, i, gain)
    else: yield from feed_forward(s, i, s.ffn, gain)
    if s.arch == "gemma3": yield norm(name + "post_ffw_norm", s.dim, s.logit_std * back / 2)
  # with a tied head, random signs in the last norm keep a token's own embedding from winning every prediction
  yield norm("output_norm", s.dim, signs=s.tied)
  if not s.tied: yield matrix("output", 0, emb, s.vocab, s.dim)

def scales(specs: Sequence[Spec]) -> Iterator[Spec]:
  """NVFP4's scale of each matrix (or of each expert's), and the input scales, which only other devices use."""
  for spec in specs:
    if not spec.matrix or spec.name.split(".")[-2] in ("token_embd", "attn_k_b", "attn_v_b", "attn_kv_b"): continue
    for kind in ("scale", "input_scale"):
      yield Spec(spec.name.removesuffix("weight") + kind, (1,) if len(spec.shape) < 3 else spec.shape[:1], 0.3, 1.0,
                 matrix=False)

def attention(s: Shape, i: int, gain: float) -> Iterator[Spec]:
  sharp, name = 1 if s.qk_norm else 1.2 if s.arch == "gpt-oss" else 1.5, f"blk.{i}.attn_"
  for part, n, std in (("q", s.heads, sharp), ("k", s.kv_heads, sharp), ("v", s.kv_heads, 1)):
    yield matrix(name + part, i, std / math.sqrt(s.dim), n * s.head_dim, s.dim)
    if s.qkv_bias: yield bias(name + part, 0.5, n * s.head_dim)
    if s.qk_norm and part != "v": yield norm(f"{name}{part}_norm", s.head_dim * (n if s.qk_norm == "all" else 1), 1.5)
  yield matrix(name + "output", i, gain / math.sqrt(s.heads * s.head_dim), s.dim, s.heads * s.head_dim)
  if s.arch == "gpt-oss":
    yield bias(name + "output", gain / 2, s.dim)
    yield Spec(name + "sinks.weight", (s.heads,), 1.0, 1.0, matrix=False)

def latent_attention(s: Shape, i: int, gain: float) -> Iterator[Spec]:
  assert s.mla
  m, name, n = s.mla, f"blk.{i}.attn_", s.heads * (s.mla.nope + s.mla.rope)
  if m.q_lora:
    yield matrix(name + "q_a", i, 1 / math.sqrt(s.dim), m.q_lora, s.dim)
    yield norm(name + "q_a_norm", m.q_lora)
    yield matrix(name + "q_b", i, 1.2 / math.sqrt(m.q_lora), n, m.q_lora)
  else: yield matrix(name + "q", i, 1.2 / math.sqrt(s.dim), n, s.dim)
  yield matrix(name + "kv_a_mqa", i, 1.2 / math.sqrt(s.dim), m.kv_lora + m.rope, s.dim)
  yield norm(name + "kv_a_norm", m.kv_lora)
  std = 1.2 / math.sqrt(m.kv_lora)
  if m.absorbed:
    yield matrix(name + "k_b", i, std, s.heads, m.kv_lora, m.nope)
    yield matrix(name + "v_b", i, std, s.heads, m.value, m.kv_lora)
  else: yield matrix(name + "kv_b", i, std, s.heads * (m.nope + m.value), m.kv_lora)
  yield matrix(name + "output", i, gain / math.sqrt(s.heads * m.value), s.dim, s.heads * m.value)

def feed_forward(s: Shape, i: int, ffn: int, gain: float, suffix="") -> Iterator[Spec]:
  yield matrix(f"blk.{i}.ffn_gate{suffix}", i, 1 / math.sqrt(s.dim), ffn, s.dim)
  yield matrix(f"blk.{i}.ffn_up{suffix}", i, 1 / math.sqrt(s.dim), ffn, s.dim)
  yield matrix(f"blk.{i}.ffn_down{suffix}", i, gain / 0.6 / math.sqrt(ffn), s.dim, ffn)

def experts(s: Shape, m: MoE, i: int, gain: float) -> Iterator[Spec]:
  name = f"blk.{i}.ffn_"
  yield Spec(name + "gate_inp.weight", (m.experts, s.dim), 1.5 / math.sqrt(s.dim), matrix=False, layer=i)
  if m.bias: yield bias(f"blk.{i}.exp_probs_b", 0.1, m.experts)
  # gpt-oss clamps both factors at 7: here one in twelve exceeds it
  hidden, size = (4, 10) if s.arch == "gpt-oss" else (1, 0.6)
  inner, down = hidden / math.sqrt(s.dim), gain / size / math.sqrt(m.ffn) / (m.scale or 1)
  for part, std, *shape in (("gate", inner, m.ffn, s.dim), ("up", inner, m.ffn, s.dim), ("down", down, s.dim, m.ffn)):
    yield matrix(f"{name}{part}_exps", i, std, m.experts, *shape)
    if s.arch == "gpt-oss": yield bias(f"{name}{part}_exps", gain / 2 if part == "down" else 0.5, m.experts, shape[0])
  if s.arch == "gpt-oss": yield bias(name + "gate_inp", 0.5, m.experts)
  if m.shared: yield from feed_forward(s, i, m.ffn * m.shared, gain, "_shexp")

# *** metadata ***

def add_metadata(w: GGUFWriter, s: Shape, *, context: int, base: float, eps: float, window: int, pattern: int,
                 key_length: bool) -> None:
  """All metadata under `<arch>.`. window, pattern: sliding-window attention (0: not written)."""
  w.add_vocab_size(s.vocab)
  w.add_context_length(context)
  w.add_embedding_length(s.dim)
  w.add_block_count(s.layers)
  w.add_feed_forward_length(s.ffn)
  w.add_head_count(s.heads)
  m = s.mla
  w.add_head_count_kv(1 if m and m.absorbed else s.heads if m else s.kv_heads)
  if m:
    w.add_key_length(m.kv_lora + m.rope if m.absorbed else m.nope + m.rope)
    w.add_value_length(m.kv_lora if m.absorbed else m.value)
    if m.absorbed:
      w.add_key_length_mla(m.nope + m.rope)
      w.add_value_length_mla(m.value)
    w.add_kv_lora_rank(m.kv_lora)
    if m.q_lora: w.add_q_lora_rank(m.q_lora)
  elif key_length:
    w.add_key_length(s.head_dim)
    w.add_value_length(s.head_dim)
  if s.arch not in ("gemma3", "gpt-oss"): w.add_rope_dimension_count(m.rope if m else s.head_dim)
  w.add_rope_freq_base(base)
  w.add_layer_norm_rms_eps(eps)
  if window: w.add_sliding_window(window)
  if pattern: w.add_sliding_window_pattern(pattern)
  if s.arch == "granite":
    w.add_embedding_scale(0.5)
    w.add_residual_scale(0.6)
    w.add_attention_scale(0.12)
    w.add_logit_scale(1.25)
  if s.moe: add_experts(w, s, s.moe)
  elif m:  # a dense model of this architecture (Youtu-LLM)
    w.add_leading_dense_block_count(s.layers)
    w.add_expert_feed_forward_length(s.ffn)
    w.add_expert_shared_count(0)

def add_experts(w: GGUFWriter, s: Shape, m: MoE) -> None:
  w.add_expert_count(m.experts)
  w.add_expert_used_count(m.used)
  if s.arch not in ("llama", "olmoe"): w.add_expert_feed_forward_length(m.ffn)
  if s.mla:
    w.add_leading_dense_block_count(m.dense)
    w.add_expert_shared_count(m.shared)
  if m.scale: w.add_expert_weights_scale(m.scale)
  if m.norm: w.add_expert_weights_norm(True)
  if m.gating: w.add_expert_gating_func(ExpertGatingFuncType[m.gating.upper()])
  if m.groups:
    w.add_expert_group_count(m.groups)
    w.add_expert_group_used_count(m.groups_used)

def fill(family: Family, s: Shape) -> Shape:
  """The shape with dependent sizes filled in. ValueError if sizes do not fit."""
  if s.arch in ("llama", "olmoe") and s.moe: s = replace(s, moe=replace(s.moe, ffn=s.ffn))
  if s.heads % s.kv_heads: raise ValueError(f"kv_heads: {s.kv_heads} does not divide {s.heads} heads")
  if family.moe and not (s.moe or s.mla): raise ValueError(f"dense: {s.arch} has experts")
  return s
