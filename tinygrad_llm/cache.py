"""The KV cache of one layer."""
from __future__ import annotations
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.config import ModelConfig
from tinygrad_llm.device import empty

class KVCache:
  """
  Keys (after rope) and values: one half-precision tensor (2, slot, kv_head, position, head_dim).

  Its memory is not cleared: no position is read before it was written.
  """
  def __init__(self, config: ModelConfig, max_context: int):
    self.kv = empty((2, 1, config.n_kv_heads, max_context, config.head_dim), dtypes.half)

  @property
  def nbytes(self) -> int: return self.kv.nbytes()

  def append(self, k: Tensor, v: Tensor, start: UOp, length: int | UOp) -> tuple[Tensor, Tensor]:
    """Stores k, v (B, KVH, T, D) at positions start..; returns all so far, (B, KVH, start + T, D) each."""
    store = self.kv[:, :, :, start:start+length].uop.store(Tensor.stack(k, v).cast(dtypes.half).uop)
    kv = Tensor(self.kv.uop.after(store))
    return kv[0, :, :, :start+length], kv[1, :, :, :start+length]
