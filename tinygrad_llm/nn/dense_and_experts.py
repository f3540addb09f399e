"""Gemma 4's feed-forward part of a layer: a dense network and a mixture of experts, whose outputs are added."""
from __future__ import annotations
from tinygrad import Tensor
from tinygrad_llm.nn.ffn import FeedForward
from tinygrad_llm.nn.layers import DenseAndExpertsConfig
from tinygrad_llm.nn.moe import MoE
from tinygrad_llm.nn.norm import norm, rms
from tinygrad_llm.weights.loader import Loader

class DenseAndExperts:
  """Both read the residual stream through norms of their own, and the router reads it through a third one."""
  def __init__(self, dim: int, eps: float, config: DenseAndExpertsConfig, load: Loader, layer: int):
    self.dense, self.experts = FeedForward(dim, config.dense, load, layer), MoE(dim, config.experts, load, layer)
    self.before, self.experts_before, self.after, self.experts_after = (
      norm(load, f"blk.{layer}.{name}", dim, eps)
      for name in ("ffn_norm", "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"))
    self.scale = load.vector(f"blk.{layer}.ffn_gate_inp.scale", dim)
    self.eps, self.factor = eps, dim ** -0.5

  def __call__(self, x: Tensor) -> Tensor:
    """x (B, T, dim), not normed -> (B, T, dim)."""
    routes = self.experts.route(rms(x, self.eps) * self.factor * self.scale.float())
    y = self.experts.multiplied(self.experts_before(x), *routes)
    return self.after(self.dense(self.before(x))) + self.experts_after(y)
