"""
A mixture of experts in float64, one expert at a time. Routing: https://arxiv.org/abs/2401.06066 (DeepSeekMoE) and
https://arxiv.org/abs/2412.19437 (sigmoid scores, bias, groups: a group's score is the sum of its two best scores).
"""
from typing import TYPE_CHECKING

import numpy as np
from tests.support.reference_traits import SIGMOID

if TYPE_CHECKING: from tests.support.reference import Reference

def softmax(x: np.ndarray) -> np.ndarray:
  p = np.exp(x - x.max(-1, keepdims=True))
  return p / p.sum(-1, keepdims=True)

def best(scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
  """scores (T, n) -> indices of the `count` best (T, count), and the gap from the last of them to the next (T,)."""
  order = np.argsort(-scores, -1, kind="stable")
  ranked = np.take_along_axis(scores, order, -1)
  gap = ranked[:, count - 1] - ranked[:, count] if count < scores.shape[1] else np.full(len(scores), np.inf)
  return order[:, :count], gap

def route(ref: "Reference", logits: np.ndarray, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Router logits (T, experts) -> the chosen (T, used), their weights (T, used), Reference.gap of this layer (T,)."""
  used, groups = int(ref.param("expert_used_count")), int(ref.param("expert_group_count", 1))
  gating = int(ref.param("expert_gating_func", ref.traits.gating))
  probs = 1 / (1 + np.exp(-logits)) if gating == SIGMOID else softmax(logits)
  scores = logits if bias is None and groups <= 1 or ref.traits.choice == "logits" else \
    probs if bias is None else probs + bias
  spread, group_gap = scores.std(), np.full(len(scores), np.inf)
  if groups > 1:
    by_group = scores.reshape(len(scores), groups, -1)
    top, group_gap = best(np.sort(by_group, -1)[..., -2:].sum(-1), int(ref.param("expert_group_used_count")))
    allowed = np.zeros((len(scores), groups, 1), bool)
    np.put_along_axis(allowed, top[..., None], True, 1)
    scores = np.where(allowed, by_group, -np.inf).reshape(scores.shape)
  chosen, gap = best(scores, used)
  if ref.arch == "gpt-oss": weights = softmax(np.take_along_axis(logits, chosen, -1))
  else: weights = np.take_along_axis(probs, chosen, -1)
  if ref.param("expert_weights_norm", ref.traits.normalised): weights = weights / weights.sum(-1, keepdims=True)
  return chosen, weights * (float(ref.param("expert_weights_scale", 0)) or 1), np.minimum(gap, group_gap) / spread

def experts(ref: "Reference", x: np.ndarray, layer: str) -> tuple[np.ndarray, np.ndarray]:
  """x (T, dim) -> (T, dim), and Reference.gap of this layer (T,)."""
  inner = ref.linear(x, f"{layer}.ffn_latent_down") if f"{layer}.ffn_latent_down.weight" in ref.w else x
  out = np.zeros_like(inner)
  chosen, weights, gap = route(ref, ref.linear(x, f"{layer}.ffn_gate_inp"), ref.w.get(f"{layer}.exp_probs_b.bias"))
  for expert in np.unique(chosen):
    token, place = np.nonzero(chosen == expert)
    weight, h = weights[token, place][:, None], inner[token]
    if ref.traits.weigh_input: h, weight = h * weight, np.ones(1)
    out[token] += ref.feed_forward(h, f"{layer}.ffn", "_exps", expert) * weight
  if inner is not x: out = ref.linear(out, f"{layer}.ffn_latent_up")
  if f"{layer}.ffn_up_shexp.weight" not in ref.w: return out, gap
  shared, gate = ref.feed_forward(x, f"{layer}.ffn", "_shexp"), ref.w.get(f"{layer}.ffn_gate_inp_shexp.weight")
  return out + (shared if gate is None else shared / (1 + np.exp(-x @ gate))[:, None]), gap
