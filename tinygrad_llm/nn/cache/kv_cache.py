"""The KV cache of one layer."""
from __future__ import annotations
import numpy as np
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.device.buffers import empty, host_view
from tinygrad_llm.nn.cache.kv_pool import KVPool
from tinygrad_llm.nn.cache.place import Place, Slot, positions
from tinygrad_llm.nn.layers import AttentionConfig

class KVCache:
  """
  One layer's keys and values, after rope, in one half-precision tensor (parts, slot, kv_head, position, D).

  Grouped heads: two parts, keys and values. MLA: one part and one head, which hold the latent (key and value) and the
  rotated key. The memory is not cleared: no position is read before it was written. A pool, if there is one, holds the
  same for steps of many sequences.
  """
  dtype = dtypes.half

  def __init__(self, config: AttentionConfig, positions: int):
    self.kv = empty(self.shape(config, positions), self.dtype)
    self.pool: KVPool | None = None

  @staticmethod
  def shape(config: AttentionConfig, positions: int) -> tuple[int, ...]:
    """The shape of the tensor that holds so many positions."""
    latent, D = config.latent, config.head_dim
    parts, D = (1, latent.kv_rank + D - latent.nope_dim) if latent else (2, D)
    return parts, 1, config.kv_heads, positions, D

  def make_pool(self, blocks: int) -> KVPool:
    """Allocates a pool of so many blocks beside the slot, for the steps of many sequences."""
    parts, _, heads, _, D = self.kv.shape
    self.pool = KVPool(blocks, int(parts), int(heads), int(D))
    return self.pool

  @property
  def nbytes(self) -> int: return self.kv.nbytes()

  @property
  def elements(self) -> int: return int(self.kv.numel())

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

  def append(self, kv: Tensor, place: Place, length: int | UOp, window: int = 0, chunked: bool = False) -> Tensor:
    """
    Stores kv (parts, B, KVH, T, D) at the tokens' places; returns what they may attend to, (parts, B, KVH, S, D).
    """
    if not isinstance(place, Slot): return self._pool.append(kv, place, length)
    store = self.kv[:, :, :, place.start:place.start+length].uop.store(kv.cast(dtypes.half).uop)
    return self._seen(Tensor(self.kv.uop.after(store)), place, length, window, chunked)

  def read(self, place: Place, length: int | UOp, window: int = 0, chunked: bool = False) -> Tensor:
    """The same where another layer of the step has stored them."""
    return self._seen(self.kv, place, length, window, chunked) if isinstance(place, Slot) else self._pool.read(place)

  def hidden(self, place: Place, length: int | UOp, window: int = 0, chunked: bool = False) -> Tensor | None:
    """
    Which of the S positions of append() a token does not attend to, (B or 1, S, T). None: it attends to all.
    """
    if not isinstance(place, Slot):
      keys, queries = positions(place.table)[:place.end], place.queries(length)
    elif isinstance(length, int) and length == 1: return None
    else:
      keys = Tensor.arange(self.positions)
      keys, queries = keys.shrink((seen(place.start, length, window, chunked),)), place.of(keys, length)
    keys, queries = keys.reshape(1, keys.shape[-1], 1), queries.reshape(-1, 1, length)
    later: Tensor = keys > queries
    if chunked: return later | (keys < queries // window * window)
    return later | (keys <= queries - window) if window else later

  @property
  def _pool(self) -> KVPool:
    assert self.pool is not None, "make_pool() comes before steps of many sequences"
    return self.pool

  @staticmethod
  def _seen(kv: Tensor, place: Slot, length: int | UOp, window: int, chunked: bool) -> Tensor:
    return kv.shrink((None, None, None, seen(place.start, length, window, chunked), None))

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
