"""The tensors of a feed-forward layer: dense, or experts."""
import math
from collections.abc import Iterator

from tests.support.synthetic_shapes import MoE, Shape, Spec, bias, matrix


def feed_forward(s: Shape, i: int, ffn: int, gain: float, suffix="") -> Iterator[Spec]:
  """A feed-forward of width `ffn` in layer i; its output has the standard deviation `gain`."""
  hidden, size = s.family.hidden
  name, inner, fused = f"blk.{i}.ffn_", hidden / math.sqrt(s.dim) / s.read, s.family.gated and "up" in s.family.fused
  parts = (("up", 2 * ffn),) if fused else (("gate", ffn), ("up", ffn)) if s.family.gated else (("up", ffn),)
  for part, n in parts:
    yield matrix(f"{name}{part}{suffix}", i, inner, n, s.dim)
    if "ffn" in s.family.biases: yield bias(f"{name}{part}{suffix}", 0.5, n)
  yield matrix(f"{name}down{suffix}", i, gain / size / math.sqrt(ffn), s.dim, ffn)
  if "ffn" in s.family.biases: yield bias(f"{name}down{suffix}", gain / 2, s.dim)

def experts(s: Shape, m: MoE, i: int, gain: float) -> Iterator[Spec]:
  """The experts of layer i; their output has about the standard deviation `gain`."""
  name, biased = f"blk.{i}.ffn_", "experts" in s.family.biases
  yield Spec(name + "gate_inp.weight", (m.experts, s.dim), 1.5 / math.sqrt(s.dim) / s.read, matrix=False, layer=i)
  if m.bias: yield bias(f"blk.{i}.exp_probs_b", 0.1, m.experts)
  hidden, size = s.family.hidden
  if m.latent:
    yield matrix(name + "latent_down", i, 1 / math.sqrt(s.dim), m.latent, s.dim)
    yield matrix(name + "latent_up", i, gain / math.sqrt(m.latent), s.dim, m.latent)
  dim, out = m.latent or s.dim, 1 if m.latent else gain
  inner, down = hidden / math.sqrt(dim) / s.read, out / size / math.sqrt(m.ffn) / (m.scale or 1)
  parts = [("gate", inner, m.ffn, dim), ("up", inner, m.ffn, dim), ("down", down, dim, m.ffn)]
  if m.layout == "fused": parts[:2] = [("gate_up", inner, 2 * m.ffn, dim)]
  if not s.family.gated: del parts[0]
  for part, std, *shape in parts:
    if m.layout == "split":
      for expert in range(m.experts): yield matrix(f"{name}{part}.{expert}", i, std, *shape)
    else: yield matrix(f"{name}{part}_exps", i, std, m.experts, *shape)
    if biased: yield bias(f"{name}{part}_exps", gain / 2 if part == "down" else 0.5, m.experts, shape[0])
  if biased: yield bias(name + "gate_inp", 0.5, m.experts)
  if m.shared_gate: yield Spec(name + "gate_inp_shexp.weight", (s.dim,), 1.5 / math.sqrt(s.dim), matrix=False, layer=i)
  if m.shared: yield from feed_forward(s, i, m.shared_width, gain, "_shexp")
