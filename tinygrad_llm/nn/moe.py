"""The sparse mixture of experts (https://arxiv.org/abs/1701.06538): a router sends each token to a few of many."""
from __future__ import annotations
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.nn.ffn import ACTIVATIONS, FeedForward
from tinygrad_llm.nn.layers import FFNConfig, MoEConfig
from tinygrad_llm.weights import numerics
from tinygrad_llm.weights.expert_blocks import expert_blocks
from tinygrad_llm.weights.loader import Loader
from tinygrad_llm.weights.pair_groups import PairGroups, group_sizes, pairs

def ranks(x: Tensor) -> Tensor:
  """(.., n) -> int32 (.., n): each element's rank in the last axis, 0 for the largest; equal ones in order."""
  place = Tensor.arange(x.shape[-1])
  a, b = x.unsqueeze(-1), x.unsqueeze(-2)
  return ((b > a) | (b == a) & (place < place.unsqueeze(-1))).sum(-1, dtype=dtypes.int32)

class MoE:
  """
  A router, the experts it chooses from, and perhaps a shared expert.

  Gating "softmax" and "sigmoid" apply that function to the router's logits, and the experts with the highest results
  are chosen, with these as weights. "softmax_chosen" chooses the highest logits; their softmax are the weights.
  """
  def __init__(self, dim: int, moe: MoEConfig, load: Loader, layer: int):
    self.moe, self.activation = moe, ACTIVATIONS[moe.activation]
    name, E, hidden = f"blk.{layer}.ffn_", moe.n_experts, moe.hidden_dim
    self.router = load.linear([(name + "gate_inp", E)], dim)
    self.bias = load.optional(f"blk.{layer}.exp_probs_b.bias", E)
    self.latent = None if not (n := moe.latent_dim) else (
      load.linear([(name + "latent_down", n)], dim), load.linear([(name + "latent_up", dim)], n))
    n, parts = n or dim, ("gate", "up") if moe.gated else ("up",)
    self.gate_up = load.experts([f"{name}{x}_exps" for x in parts], E, hidden, n, name + "gate_up_exps")
    self.down = load.experts([name + "down_exps"], E, n, hidden)
    self.row_slots = numerics.slots_of_rows() if self.gate_up.shares_groups and self.down.shares_groups else 0
    self.slots = numerics.slots_of_blocks() if self.gate_up.shares_blocks and self.down.shares_blocks else 0
    shared = FFNConfig(moe.shared_dim, moe.activation, moe.gated)
    self.shared = FeedForward(dim, shared, load, layer, "_shexp") if moe.shared_dim else None
    self.shared_gate = load.optional(name + "gate_inp_shexp.weight", dim) if moe.shared_dim else None

  def __call__(self, x: Tensor) -> Tensor:
    """x (B, T, dim) -> (B, T, dim)."""
    return self.multiplied(x, *self.route(x))

  def multiplied(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """x (B, T, dim) by the experts that route() chose, which may have seen another input -> (B, T, dim)."""
    rows, tokens = x.shape[:2]
    if isinstance(tokens, UOp): product = self._in_blocks if self.slots else self._by_pair
    else: product = self._in_groups if self.row_slots and tokens == 1 < rows else self._by_pair
    inner, weights = (x * weights, weights.ones_like()) if self.moe.weigh_input else (x, weights)
    if self.latent is not None: inner = self.latent[0](inner)[0]
    y = product(inner, ids, weights)
    if self.latent is not None: y = self.latent[1](y)[0]
    return y if self.shared is None else y + self._gated(self.shared(x), x)

  def _gated(self, y: Tensor, x: Tensor) -> Tensor:
    """The shared expert's output y (B, T, dim) for the input x: some models multiply it by a factor for each token."""
    if self.shared_gate is None: return y
    return y * (x * self.shared_gate.float()).sum(-1, keepdim=True).sigmoid()

  def _by_pair(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    hidden = self.activation(*self.gate_up(x.unsqueeze(2), ids))  # (B, T, K, hidden)
    # contiguous: see FeedForward
    y = self.down(hidden.contiguous(), ids)[0]  # (B, T, K, dim)
    return (y * weights.unsqueeze(-1)).sum(2)

  def _in_blocks(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """The same as a grouped GEMM, for one sequence, B = 1."""
    blocks = expert_blocks(ids[0].contiguous(), self.moe.n_experts, self.slots)
    hidden = self.activation(*self.gate_up.of_blocks(x[0], blocks))  # (N, S, hidden)
    hidden = blocks.filled(self.down.multiplied(hidden))
    y = blocks.filled(self.down.of_blocks(hidden, blocks)[0])  # (N, S, dim)
    y = blocks.of_tokens(y, weights[0]).unsqueeze(0)
    # contiguous: otherwise the gather of a token's pairs is fused into the shared expert's matmul
    return y if self.shared is None else y.contiguous()

  def _in_groups(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
    """The same for a token of each of B rows, T = 1: rows that chose an expert share its dequantised weights."""
    def product(groups: PairGroups) -> Tensor:
      parts = self.gate_up.scaled(self.gate_up.of_groups(x[:, 0], groups), groups.experts.unsqueeze(-1))
      return self.down.of_groups(groups.filled(self.activation(*parts)), groups)[0]  # (N, S, dim)
    ids, weights = ids[:, 0].contiguous(), weights[:, 0].contiguous()
    y = pairs(ids, group_sizes(int(x.shape[0]), self.row_slots)).each(product)  # (B, K, dim)
    return (self.down.scaled([y], ids)[0] * weights.unsqueeze(-1)).sum(1, keepdim=True)

  def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, T, dim) -> the chosen experts, best first, int32 (B, T, K), and their weights (B, T, K)."""
    moe, logits = self.moe, self.router(x)[0]  # (B, T, E)
    probs = {"softmax": logits.softmax(-1), "sigmoid": logits.sigmoid()}.get(moe.gating, logits)
    scores = logits if moe.weigh_input else probs
    scores = self._limited(scores if self.bias is None else scores + self.bias.float())
    # contiguous: otherwise each of the E x E comparisons would compute its two exponentials
    chosen = ranks(scores.contiguous()).unsqueeze(-2) == Tensor.arange(moe.n_used).unsqueeze(-1)  # (B, T, K, E)
    ids, weights = (chosen.where(y, 0).sum(-1) for y in (Tensor.arange(moe.n_experts), probs.unsqueeze(-2)))
    if moe.gating == "softmax_chosen": weights = weights.softmax(-1)
    if moe.norm_weights: weights = weights / weights.sum(-1, keepdim=True).maximum(2**-14)  # the smallest normal fp16
    return ids, weights * moe.scale

  def _limited(self, scores: Tensor) -> Tensor:
    """Rules out experts outside the best groups: a group's rank is the sum of its two highest scores."""
    if self.moe.groups_used == self.moe.groups: return scores
    groups = scores.reshape(*scores.shape[:-1], self.moe.groups, -1)  # (B, T, G, E / G)
    best = (ranks(groups) < 2).where(groups, 0).sum(-1)  # (B, T, G)
    return (ranks(best) < self.moe.groups_used).unsqueeze(-1).where(groups, float("-inf")).reshape(scores.shape)
