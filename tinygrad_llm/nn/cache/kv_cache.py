"""The KV cache of one layer."""
from __future__ import annotations
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.nn.cache.kv_pool import KVPool
from tinygrad_llm.nn.cache.place import Place, in_window, positions
from tinygrad_llm.nn.layers import AttentionConfig

class KVCache:
  """
  One layer's keys and values, after rope, in half precision. Its memory is a pool, which the steps' owner makes.

  Grouped heads: two parts, keys and values. MLA: one part and one head, which hold the latent (key and value) and the
  rotated key.

  window: the widest window of the layers that read it, 0: one reads all. apart: the pool is the one of such layers.
  """
  dtype = dtypes.half

  def __init__(self, config: AttentionConfig):
    self._config, self.window, self.apart = config, config.window, False
    self._pool: KVPool | None = None

  @staticmethod
  def shape(config: AttentionConfig, positions: int) -> tuple[int, int, int, int]:
    """(parts, kv_heads, positions, D): the shape of so many positions."""
    latent, D = config.latent, config.head_dim
    parts, D = (1, latent.kv_rank + D - latent.nope_dim) if latent else (2, D)
    return parts, config.kv_heads, positions, D

  def make_pool(self, blocks: int, apart: bool = False) -> KVPool:
    """Allocates a pool of so many blocks, in place of an earlier one. apart: steps have tables of its own for it."""
    parts, heads, _, D = self.shape(self._config, 1)
    self._pool, self.apart = KVPool(blocks, parts, heads, D), apart
    return self._pool

  @property
  def pool(self) -> KVPool:
    assert self._pool is not None, "make_pool() comes before the first step"
    return self._pool

  def append(self, kv: Tensor, place: Place, length: int | UOp) -> Tensor:
    """
    Stores kv (parts, B, KVH, T, D) at the tokens' places; returns what they may attend to, (parts, B, KVH, S, D).
    """
    return self.pool.append(kv, self._place(place), length)

  def read(self, place: Place) -> Tensor:
    """The same where another layer of the step has stored them."""
    return self.pool.read(self._place(place))

  def _place(self, place: Place) -> Place: return in_window(place) if self.apart else place

  @staticmethod
  def hidden(place: Place, length: int | UOp, window: int = 0, chunked: bool = False) -> Tensor:
    """Which of the S positions of append() a token does not attend to, (B or 1, S, T)."""
    keys, queries = positions(place.table)[:place.end], place.queries(length)
    keys, queries = keys.reshape(1, keys.shape[-1], 1), queries.reshape(-1, 1, length)
    later: Tensor = keys > queries
    if chunked: return later | (keys < queries // window * window)
    return later | (keys <= queries - window) if window else later
