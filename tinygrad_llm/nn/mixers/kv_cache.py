"""The KV cache of one layer."""
from __future__ import annotations
import numpy as np
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.device.buffers import empty, host_view
from tinygrad_llm.nn.layers import AttentionConfig

class KVCache:
  """
  One layer's keys and values, after rope, in one half-precision tensor (parts, slot, kv_head, position, D).

  Grouped heads: two parts, keys and values. MLA: one part and one head, which hold the latent (key and value) and the
  rotated key. The memory is not cleared: no position is read before it was written.
  """
  def __init__(self, config: AttentionConfig, positions: int):
    latent, D = config.latent, config.head_dim
    parts, D = (1, latent.kv_rank + D - latent.nope_dim) if latent else (2, D)
    self.kv = empty((parts, 1, config.kv_heads, positions, D), dtypes.half)

  @property
  def nbytes(self) -> int: return self.kv.nbytes()

  @property
  def positions(self) -> int: return int(self.kv.shape[3])

  def save(self, first: int, last: int) -> np.ndarray | None:
    """A copy of positions first..last-1, (parts, 1, kv_head, n, D); None where the host cannot reach the memory."""
    memory = host_view(self.kv)
    return None if memory is None else memory[:, :, :, first:last].copy()

  def restore(self, first: int, positions: np.ndarray) -> None:
    """Writes back a copy that save() made, from position `first` on."""
    memory = host_view(self.kv)
    assert memory is not None, "save() reached it"
    memory[:, :, :, first:first + positions.shape[3]] = positions

  def append(self, kv: Tensor, start: UOp, length: int | UOp, window: int = 0, chunked: bool = False) -> Tensor:
    """
    Stores kv (parts, B, KVH, T, D) at positions start..; returns the S positions of seen() as (parts, B, KVH, S, D).
    """
    store = self.kv[:, :, :, start:start+length].uop.store(kv.cast(dtypes.half).uop)
    return self._seen(Tensor(self.kv.uop.after(store)), start, length, window, chunked)

  def read(self, start: UOp, length: int | UOp, window: int = 0, chunked: bool = False) -> Tensor:
    """The same where another layer of the step has stored them."""
    return self._seen(self.kv, start, length, window, chunked)

  @staticmethod
  def _seen(kv: Tensor, start: UOp, length: int | UOp, window: int, chunked: bool) -> Tensor:
    return kv.shrink((None, None, None, seen(start, length, window, chunked), None))

def seen(start: UOp, length: int | UOp, window: int, chunked: bool = False) -> tuple[UOp | int, UOp]:
  """
  The positions that `length` queries from `start` on attend to: the first, and the one after the last.

  chunked: the first query sees the positions from the start of its chunk of `window` on.
  """
  if not window: return 0, start + length
  # the second is start + length, written so that the range has a size that is known to be positive
  if chunked: return (first := (start // window * window).minimum(start)), first + (start % window + length)
  first = (start - (window - 1)).maximum(0)
  return first, first + (start.minimum(window - 1) + length)
