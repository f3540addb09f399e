"""The configuration of a model, as its GGUF file says it."""
from __future__ import annotations
from dataclasses import dataclass
from tinygrad_llm.nn.layers import LayerConfig, Rope, Temperature

@dataclass(frozen=True)
class ModelConfig:
  """
  The hyper-parameters of a model. Shapes are in elements.

  `context_length`: positions that a context may have: those that the model was trained for, at most `dense_context`.
  `dense_context`: attention is exact up to so many positions, which an indexer would choose from more; 0: no limit.
  `ropes`: the rotations that layers choose from. `temperature`: of queries, in layers that have one. `embd_scale`
  multiplies embeddings, `logit_scale` logits. `branch_scale` multiplies the outputs of mixer and feed-forward before
  the residual addition. A `logit_softcap` c limits a logit x to c tanh(x / c); 0: no limit.
  `pooling`: of a model that was trained for embeddings or scores, how it makes one of a text: "mean" of all
  positions, "first", "last", or "rank", a score by the last; "" for a model that answers.
  """
  arch: str
  dim: int
  vocab_size: int
  context_length: int
  layers: tuple[LayerConfig, ...]
  dense_context: int
  ropes: tuple[Rope, ...]
  temperature: Temperature | None
  last_norm: str  # the tensor's name
  layer_norm: bool  # all norms are LayerNorm, else RMSNorm
  norm_eps: float
  embd_scale: float
  per_layer: int  # width of the per-layer embeddings; 0: none
  branch_scale: float
  logit_scale: float
  logit_softcap: float
  tied: bool  # the output head is the embedding
  pooling: str = ""

  @property
  def purpose(self) -> str:
    """The model's purpose: "answers", "embeddings" or "reranking"."""
    return "answers" if not self.pooling else "reranking" if self.pooling == "rank" else "embeddings"

  @property
  def cache_windows(self) -> dict[int, int]:
    """{layer with keys and values of its own: the widest window of the layers that read them; 0: one reads all}."""
    found = dict[int, list[int]]()
    for i, layer in enumerate(self.layers):
      if (c := layer.attention) is None: continue
      found.setdefault(i if c.kv_from is None else c.kv_from, []).append(c.window)
    return {i: max(windows) if all(windows) else 0 for i, windows in found.items()}

  @property
  def n_layers(self) -> int: return len(self.layers)
