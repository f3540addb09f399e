"""The KV pool of one layer: keys and values of many sequences, in blocks of 64 positions."""
from __future__ import annotations
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.device.buffers import empty
from tinygrad_llm.nn.cache.place import BLOCK, Piece, Rows

class KVPool:
  """
  One layer's keys and values, after rope, in half precision: (parts, kv_head, blocks, BLOCK, D), see KVCache.

  Block 0 belongs to no sequence. A head's positions are contiguous through neighbouring blocks. With blocks outermost,
  attention at depth 4,096 took 1.17 times as long where blocks are neighbours: the prefetch of the positions that come
  next met another head's.
  """
  def __init__(self, blocks: int, parts: int, heads: int, head_dim: int):
    self.kv = empty((parts, heads, blocks, BLOCK, head_dim), dtypes.half)

  @property
  def nbytes(self) -> int: return self.kv.nbytes()

  def append(self, kv: Tensor, place: Rows | Piece, T: int | UOp) -> Tensor:
    """Stores kv (parts, B, KVH, T, D); returns the positions up to the place's end, (parts, B, KVH, S, D)."""
    flat = self.kv.reshape(*self.kv.shape[:2], -1, self.kv.shape[-1])  # (parts, KVH, blocks * BLOCK, D)
    stores = [flat[:, :, at:at+T].uop.store(kv[:, b].cast(dtypes.half).uop) for b, at in enumerate(place.stores)]
    return self._seen(Tensor(self.kv.uop.after(*stores)), place)

  def read(self, place: Rows | Piece) -> Tensor:
    """The same where another layer of the step has stored them."""
    return self._seen(self.kv, place)

  @staticmethod
  def _seen(kv: Tensor, place: Rows | Piece) -> Tensor:
    # numbers that are clamped into range need no bounds check
    kv = kv[:, :, place.table.minimum(int(kv.shape[2]) - 1).maximum(0)]  # (parts, KVH, B, n, BLOCK, D)
    return kv.transpose(1, 2).reshape(kv.shape[0], kv.shape[2], kv.shape[1], -1, kv.shape[-1])[:, :, :, :place.end]
