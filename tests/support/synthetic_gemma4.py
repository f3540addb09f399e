"""
Gemma 4's additions to the tensors and metadata of a layer, named and shaped as llama.cpp's converter writes them.

A layer has a window or sees everything, and the two kinds have their own head sizes, rotations and numbers of KV heads.
The weights of the query and key norms are small, because no factor follows the scores.

Source: conversion/gemma.py and src/models/gemma4.cpp of llama.cpp.
"""
import math
from collections.abc import Iterator
from dataclasses import dataclass

from gguf import GGUFWriter
from tests.support.synthetic_ffn import feed_forward
from tests.support.synthetic_shapes import Shape, Spec, matrix, norm

WINDOW, FULL = "gemma4-window", "gemma4-full"  # the kinds of mixers

@dataclass(frozen=True)
class Gemma4:
  """
  Sizes that only Gemma 4 has; Shape.head_dim belongs to the full layers.

  `window_dim`: head size of layers with a window. `turning`: the part of a full layer's dimensions that is rotated.
  `shared`: last layers that read the keys and values of an earlier layer. `per_layer`: width of the per-layer
  embeddings (0: none). `keys_only`: full layers have no matrix of values. `scaled`: layers have a layer_output_scale.
  `suppress`: tokens that are never sampled.
  """
  window_dim: int = 32
  turning: float = 0.25
  shared: int = 0
  per_layer: int = 0
  keys_only: bool = False
  scaled: bool = True
  suppress: tuple[int, ...] = ()

def head_dim(s: Shape, i: int) -> int: return s.parts["gemma4"].window_dim if WINDOW in s.kinds(i) else s.head_dim

def attention(s: Shape, i: int, gain: float) -> Iterator[Spec]:
  """The mixer of layer i. A norm follows, which alone determines the size of the output."""
  g, name, n = s.parts["gemma4"], f"blk.{i}.attn_", head_dim(s, i)
  sharp = 1.2 / n ** 0.25  # scores: sharp^2 times the product of two normed heads
  parts = ["q", "k", "v"][:1 if i >= s.layers - g.shared else 2 if g.keys_only and FULL in s.kinds(i) else 3]
  for part in parts:
    yield matrix(name + part, i, 1 / math.sqrt(s.dim), (s.heads if part == "q" else s.kv(i)) * n, s.dim)
    if part != "v": yield norm(f"{name}{part}_norm", n, sharp)
  yield matrix(name + "output", i, gain / math.sqrt(s.heads * n), s.dim, s.heads * n)

def model_tensors(s: Shape, gain: float) -> Iterator[Spec]:
  """Divisors that stop most frequencies of full layers, and the tables of the per-layer embeddings."""
  g, pairs = s.parts["gemma4"], s.head_dim // 2
  turning = int(pairs * g.turning)
  yield Spec("rope_freqs.weight", (pairs,), 0, matrix=False, values=(1.0,) * turning + (1e30,) * (pairs - turning))
  if not g.per_layer: return
  yield matrix("per_layer_token_embd", 0, 1 / math.sqrt(g.per_layer), s.vocab, s.layers * g.per_layer)
  yield matrix("per_layer_model_proj", 0, 1 / math.sqrt(s.dim), s.layers * g.per_layer, s.dim)
  yield norm("per_layer_proj_norm", g.per_layer)

def layer_tensors(s: Shape, i: int, gain: float) -> Iterator[Spec]:
  """The dense feed-forward beside experts, the per-layer embedding's matrices, and the factor of the output."""
  g, name = s.parts["gemma4"], f"blk.{i}."
  if s.moe:
    yield from feed_forward(s, i, s.width(i), gain)
    yield Spec(name + "ffn_gate_inp.scale", (s.dim,), 0.3 * math.sqrt(s.dim), math.sqrt(s.dim), matrix=False)
    yield Spec(name + "ffn_down_exps.scale", (s.moe.experts,), 0.3, 1.0, matrix=False)
    for part in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"): yield norm(name + part, s.dim)
  if g.per_layer:
    yield matrix(name + "inp_gate", i, 1 / s.logit_std / math.sqrt(s.dim), g.per_layer, s.dim)
    yield matrix(name + "proj", i, 1 / math.sqrt(g.per_layer), s.dim, g.per_layer)
    yield norm(name + "post_norm", s.dim, gain * math.sqrt(s.dim) / 2)
  if g.scaled: yield Spec(name + "layer_output_scale.weight", (1,), 0.2, 1.0, matrix=False)

def keys(w: GGUFWriter, s: Shape) -> None:
  g = s.parts["gemma4"]
  w.add_float32("gemma4.rope.freq_base_swa", 10000.0)
  w.add_array("gemma4.attention.sliding_window_pattern", [WINDOW in s.kinds(i) for i in range(s.layers)])
  w.add_uint32("gemma4.attention.shared_kv_layers", g.shared)
  w.add_uint32("gemma4.embedding_length_per_layer_input", g.per_layer)
  for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
    w.add_uint32(f"gemma4.{key}_swa", g.window_dim)
  if g.suppress: w.add_array("tokenizer.ggml.suppress_tokens", [*g.suppress])
