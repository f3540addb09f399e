"""
The tensors and metadata of recurrent mixers: a short convolution (LFM2), the gated delta rule (Qwen 3.5, Qwen3-Next),
Kimi Delta Attention and Mamba-2 (Granite 4 H, Nemotron-H, Falcon-H1).

The random weights make states that matter: most decays lie between 0.8 and 0.999, so a token is visible 50 positions
later. The matrices that write to the residual stream undo the size of a mixer's gated output.

Source: conversion/*.py and src/models/*.cpp of llama.cpp.
"""
import math
from collections.abc import Iterator
from dataclasses import dataclass

from gguf import GGUFWriter
from tests.support.synthetic_shapes import Shape, Spec, bias, matrix, norm

SILU, SIGMOID = 0.6, 0.54  # root mean squares of silu(x) and sigmoid(x), x gaussian of standard deviation 1
A, DECAY_BIAS = -1.0, -3.5  # a decay is exp(A softplus(x + bias)), mostly 0.8 to 0.999 here


@dataclass(frozen=True)
class ShortConv:
  """A convolution over `taps` positions, with a gate before and after it."""
  taps: int = 3

@dataclass(frozen=True)
class Delta:
  """
  The gated delta rule (https://arxiv.org/abs/2412.06464): key and value heads of `size` dimensions each.

  `listed`: the file lists the recurrent layers. `joined`: the older files of qwen3next, whose ssm_in holds the rows of
  attn_qkv and attn_gate by key head.
  """
  k_heads: int = 2
  v_heads: int = 4
  size: int = 32
  taps: int = 4
  listed: bool = False
  joined: bool = False

@dataclass(frozen=True)
class KDA:
  """Kimi Delta Attention (https://arxiv.org/abs/2510.26692): as many heads as attention, of `size` dimensions."""
  size: int = 32
  taps: int = 4

@dataclass(frozen=True)
class Mamba2:
  """
  Mamba-2 (https://arxiv.org/abs/2405.21060): `heads` share `inner` channels. `state`: size of the vectors B and C, of
  which there are `groups`. `norm`: the output is normalised by group.
  """
  inner: int = 256
  heads: int = 8
  state: int = 16
  groups: int = 2
  taps: int = 4
  norm: bool = True

# *** tensors

def vector(name: str, std: float, mean: float, *shape: int) -> Spec:
  """A small tensor that stays F32. The name is complete."""
  return Spec(name, shape, std, mean, matrix=False)

def filters(name: str, taps: int, *channels: int) -> Spec:
  """A filter of `taps` weights for each channel."""
  return vector(name + ".weight", 1 / math.sqrt(taps), 0, *channels, taps)

def shortconv(s: Shape, i: int, gain: float) -> Iterator[Spec]:
  r, name = s.parts["shortconv"], f"blk.{i}.shortconv."
  assert isinstance(r, ShortConv)
  yield filters(name + "conv", r.taps, s.dim)
  yield matrix(name + "in_proj", i, 1 / math.sqrt(s.dim), 3 * s.dim, s.dim)
  yield matrix(name + "out_proj", i, gain / math.sqrt(s.dim), s.dim, s.dim)

def delta(s: Shape, i: int, gain: float) -> Iterator[Spec]:
  r, name, std = s.parts["delta"], f"blk.{i}.", 1 / math.sqrt(s.dim)
  assert isinstance(r, Delta)
  keys, values = r.k_heads * r.size, r.v_heads * r.size
  if r.joined: yield matrix(name + "ssm_in", i, std, 2 * keys + 2 * values, s.dim)
  else:
    yield matrix(name + "attn_qkv", i, std, 2 * keys + values, s.dim)
    yield matrix(name + "attn_gate", i, std, values, s.dim)
  yield filters(name + "ssm_conv1d", r.taps, 2 * keys + values)
  yield vector(name + "ssm_dt.bias", 1.0, DECAY_BIAS, r.v_heads)
  yield vector(name + "ssm_a", 0.25, A, r.v_heads)
  if s.arch == "qwen3next": yield matrix(name + "ssm_ba", i, std, 2 * r.v_heads, s.dim)
  else:
    for part in ("alpha", "beta"): yield matrix(f"{name}ssm_{part}", i, std, r.v_heads, s.dim)
  yield norm(name + "ssm_norm", r.size)
  yield matrix(name + "ssm_out", i, gain / SILU / math.sqrt(values), s.dim, values)

def kda(s: Shape, i: int, gain: float) -> Iterator[Spec]:
  r, name, std = s.parts["kda"], f"blk.{i}.", 1 / math.sqrt(s.dim)
  assert isinstance(r, KDA)
  inner = s.heads * r.size
  for part in "qkv": yield filters(f"{name}ssm_conv1d_{part}", r.taps, 1, inner, 1)
  for part in "qkv": yield matrix(f"{name}attn_{part}", i, std, inner, s.dim)
  for part in "fg":  # low-rank: of the decays, of the output's gate
    yield matrix(f"{name}ssm_{part}_a", i, std, r.size, s.dim)
    yield matrix(f"{name}ssm_{part}_b", i, 1 / math.sqrt(r.size), inner, r.size)
  yield matrix(name + "ssm_beta", i, std, s.heads, s.dim)
  yield vector(name + "ssm_a", 0.25, A, 1, 1, s.heads, 1)
  yield vector(name + "ssm_dt.bias", 1.0, DECAY_BIAS, inner)
  yield norm(name + "ssm_norm", r.size)
  yield matrix(name + "attn_output", i, gain / SIGMOID / math.sqrt(inner), s.dim, inner)

def mamba2(s: Shape, i: int, gain: float) -> Iterator[Spec]:
  r, name = s.parts["mamba2"], f"blk.{i}.ssm_"
  assert isinstance(r, Mamba2)
  channels = r.inner + 2 * r.groups * r.state
  yield matrix(name + "in", i, 1 / math.sqrt(s.dim), r.inner + channels + r.heads, s.dim)
  yield filters(name + "conv1d", r.taps, channels)
  yield bias(name + "conv1d", 0.3, channels)
  yield vector(name + "dt.bias", 0.7, DECAY_BIAS, r.heads)
  yield vector(name + "a", 0.25, A, r.heads, 1)
  yield vector(name + "d", 0.2, 0, r.heads, 1)
  if r.norm: yield Spec(name + "norm.weight", (r.groups, r.inner // r.groups), 0.1, 1.0, matrix=False)
  yield matrix(name + "out", i, gain / (1 if r.norm else 0.25) / math.sqrt(r.inner), s.dim, r.inner)

# *** metadata

def add_shortconv(w: GGUFWriter, s: Shape) -> None:
  r = s.parts["shortconv"]
  assert isinstance(r, ShortConv)
  w.add_shortconv_l_cache(r.taps)

def add_delta(w: GGUFWriter, s: Shape) -> None:
  r = s.parts["delta"]
  assert isinstance(r, Delta)
  add_sizes(w, r.taps, r.v_heads * r.size, r.size, r.v_heads, r.k_heads)
  w.add_full_attention_interval(len(s.mixers))
  if r.listed: w.add_array(f"{s.arch}.attention.recurrent_layers", [not s.attends(i) for i in range(s.layers)])

def add_kda(w: GGUFWriter, s: Shape) -> None:
  r = s.parts["kda"]
  assert isinstance(r, KDA)
  w.add_ssm_conv_kernel(r.taps)
  w.add_kda_head_dim(r.size)

def add_mamba2(w: GGUFWriter, s: Shape) -> None:
  r = s.parts["mamba2"]
  assert isinstance(r, Mamba2)
  add_sizes(w, r.taps, r.inner, r.state, r.heads, r.groups)

def add_sizes(w: GGUFWriter, taps: int, inner: int, state: int, heads: int, groups: int) -> None:
  w.add_ssm_conv_kernel(taps)
  w.add_ssm_inner_size(inner)
  w.add_ssm_state_size(state)
  w.add_ssm_time_step_rank(heads)
  w.add_ssm_group_count(groups)
