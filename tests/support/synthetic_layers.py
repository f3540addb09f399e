"""
The tensors of every architecture, named and shaped as llama.cpp's converters write them. The standard deviations of the
random weights keep a model well-conditioned (see synthetic.py).

The traits of the architectures are in synthetic_families.py; a new kind of mixer is one line of MIXERS.

Source: conversion/*.py and src/models/*.cpp of llama.cpp.
"""
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tests.support.synthetic_attention import attention, latent_attention, sparse_attention
from tests.support.synthetic_families import DEEPSEEK_V2_LITE, FAMILIES
from tests.support.synthetic_ffn import experts, feed_forward
from tests.support.synthetic_gemma4 import FULL, WINDOW, Gemma4, attention as gemma4_attention
from tests.support.synthetic_metadata import add_metadata
from tests.support.synthetic_recurrent import delta, kda, mamba2, shortconv
from tests.support.synthetic_shapes import MLA, Family, Indexer, MoE, Shape, Spec, bias, matrix, norm

__all__ = ["DEEPSEEK_V2_LITE", "FAMILIES", "MIXERS", "MLA", "Family", "Gemma4", "Indexer", "MoE", "Shape", "Spec",
           "add_metadata", "fill", "scales", "tensors"]

Mixer = Callable[[Shape, int, float], Iterator[Spec]]  # of layer i, with an output of a given standard deviation
MIXERS: dict[str, Mixer] = {
  "attention": attention,
  "latent": latent_attention,
  "sparse": sparse_attention,
  "shortconv": shortconv,
  "delta": delta,
  "kda": kda,
  "mamba2": mamba2,
  WINDOW: gemma4_attention,
  FULL: gemma4_attention,
}

def tensors(s: Shape) -> Iterator[Spec]:
  """All tensors, in the order of the file."""
  back = min(0.7, 1 / math.sqrt(s.layers))
  # embeddings times sqrt(dim) need larger contributions, unless norms after the branches provide these
  size = s.logit_std / 2 if s.family.stream and s.family.norms == "pre" else s.emb
  gain = size * back  # standard deviation of a block's contribution to the residual stream
  yield matrix("token_embd", 0, s.emb, s.vocab, s.dim)
  if s.rope_freqs: yield Spec("rope_freqs.weight", (s.head_dim // 2,), 0, matrix=False)
  if s.family.model_tensors: yield from s.family.model_tensors(s, gain)
  for i in range(s.layers): yield from layer(s, i, gain, s.logit_std * back / 2 if s.family.stream else gain)
  # with a tied head, random signs in the last norm keep a token's own embedding from winning every prediction
  yield from norms(s, s.family.last_norm, signs=s.tied)
  if not s.tied: yield matrix("output", 0, s.emb, s.vocab, s.dim)

def norms(s: Shape, name: str, mean=1.0, signs=False) -> Iterator[Spec]:
  """A norm over the residual stream."""
  spec = norm(name, s.dim, mean, signs)
  yield spec._replace(name=name) if name.split(".")[-1] in s.family.bare else spec
  if s.family.norm_bias: yield bias(name, 0.1 * mean, s.dim)

def layer(s: Shape, i: int, gain: float, post: float) -> Iterator[Spec]:
  """A layer's tensors. post: the mean weight of the norms after its parts."""
  f, name = s.family, f"blk.{i}."
  before, after = f.norms != "post", f.norms in ("post", "both")
  if before and s.kinds(i): yield from norms(s, name + f.names[0])
  for kind in s.kinds(i): yield from MIXERS[kind](s, i, gain)
  if after and s.kinds(i): yield from norms(s, name + f.post_names[0], post)
  if s.feeds(i):
    if before and f.norms != "parallel": yield from norms(s, name + f.names[1])
    if s.moe and s.sparse(i): yield from experts(s, s.moe, i, gain)
    else: yield from feed_forward(s, i, s.width(i), gain)
    if after: yield from norms(s, name + f.post_names[1], post)
  if s.predicts(i):
    for part in ("enorm", "hnorm", "shared_head_norm"): yield norm(f"{name}nextn.{part}", s.dim)
    yield matrix(name + "nextn.eh_proj", i, 1 / math.sqrt(2 * s.dim), s.dim, 2 * s.dim)
  if f.layer_tensors: yield from f.layer_tensors(s, i, gain)

def scales(specs: Sequence[Spec]) -> Iterator[Spec]:
  """NVFP4's scale of each matrix (or of each expert's), and the input scales, which only other devices use."""
  for spec in specs:
    if not spec.matrix or spec.name.split(".")[-2] in ("token_embd", "attn_k_b", "attn_v_b", "attn_kv_b"): continue
    for kind in ("scale", "input_scale"):
      yield Spec(spec.name.removesuffix("weight") + kind, (1,) if len(spec.shape) < 3 else spec.shape[:1], 0.3, 1.0,
                 matrix=False)

def fill(family: Family, s: Shape) -> Shape:
  """The shape with dependent sizes filled in. ValueError if sizes do not fit."""
  wide = family.wide_experts or "ffn" not in family.expert_keys
  if s.moe and wide: s = replace(s, moe=replace(s.moe, ffn=s.width(0)))
  if "kv" in family.marked: s = replace(s, kv_heads=tuple(s.kv(i) if s.attends(i) else 0 for i in range(s.layers)))
  if "ffn" in family.marked: s = replace(s, ffn=tuple(s.width(i) if s.feeds(i) else 0 for i in range(s.layers)))
  for i in range(s.layers):
    if s.kv(i) and s.heads % s.kv(i): raise ValueError(f"kv_heads: {s.kv(i)} does not divide {s.heads} heads")
  if family.moe and not (s.moe or s.mla): raise ValueError(f"dense: {s.arch} has experts")
  return s
