"""Attention of steps over a pool of blocks: rows of several sequences, or a piece of one; numpy's float64 result."""
import math
import random
from dataclasses import dataclass

import numpy as np
from tinygrad import Tensor, UOp, dtypes
from tinygrad_llm.device.buffers import empty, fill
from tinygrad_llm.nn.cache.kv_cache import KVCache
from tinygrad_llm.nn.cache.place import BLOCK, Piece, Rows
from tinygrad_llm.nn.layers import AttentionConfig, LatentConfig
from tinygrad_llm.nn.mixers.attention import Attention
from tinygrad_llm.nn.mixers.step import Step

@dataclass(frozen=True)
class Case:
  """
  One attention: KVH key heads of D elements with G queries each. lengths: positions of each sequence.

  `T`: tokens of a piece, the last ones of the only sequence; 0: a step of rows. `W`: values are the first W elements
  of the keys. `most`: blocks of a table. `window`, `chunked`, `softcap`: see AttentionConfig. `sink`: heads have one.
  """
  KVH: int
  G: int
  D: int
  lengths: tuple[int, ...]
  T: int = 0
  W: int = 0
  most: int = 6
  window: int = 0
  chunked: bool = False
  softcap: float = 0
  sink: bool = False
  seed: int = 0

  def __post_init__(self) -> None: object.__setattr__(self, "lengths", tuple(self.lengths))
  @property
  def width(self) -> int: return self.W or self.D
  @property
  def tokens(self) -> int: return self.T or 1

class _Heads:
  """Queries that are given, for keys and values that are in the pool."""
  def __init__(self, q: Tensor, width: int): self.q, self.value_dim = q, width
  def __call__(self, x: Tensor, rope: Tensor | None) -> tuple[Tensor, None, None]: return self.q, None, None
  def values(self, y: Tensor) -> Tensor: return y

class Problem:
  """
  A pool of numbers, shuffled tables, and queries. All memory of no sequence, or beyond a sequence's end, is NaN.

  So are the blocks below what a window leaves to the first query.
  """
  def __init__(self, case: Case):
    c, rng, B = case, np.random.default_rng(case.seed), len(case.lengths)
    latent = LatentConfig(0, c.W, c.W, c.W, True) if c.W else None
    self.case, self.config = case, AttentionConfig(c.KVH * c.G, c.KVH, c.D, 1 / math.sqrt(c.D), None, "", c.window,
                                                   c.softcap, latent, chunked=c.chunked)
    self.sizes = [-(-n // BLOCK) for n in c.lengths]
    blocks = 3 + sum(self.sizes)
    free = random.Random(c.seed).sample(range(1, blocks), blocks - 1)
    if c.T: free.sort()  # the blocks of a piece are neighbours
    self.table = np.zeros((B, c.most), np.int32)
    for row, size in zip(self.table, self.sizes): row[:size], free = free[:size], free[size:]
    parts = 1 if c.W else 2
    self.kv = [rng.standard_normal((parts, c.KVH, n, c.D)).astype(np.float16) for n in c.lengths]
    self.pool = np.full((parts, c.KVH, blocks, BLOCK, c.D), np.nan, np.float16)
    for kv, row in zip(self.kv, self.table):
      for at in range(self._first(kv.shape[2]) // BLOCK * BLOCK, kv.shape[2]):
        self.pool[:, :, row[at // BLOCK], at % BLOCK] = kv[:, :, at]
    self.q = rng.standard_normal((B, c.KVH * c.G, c.tokens, c.D)).astype(np.float32) * 2
    self.sinks = rng.standard_normal(c.KVH * c.G).astype(np.float32)

  def _first(self, n: int) -> int:
    """The first position that the first query of a sequence of n positions sees."""
    c, at = self.case, n - self.case.tokens
    return at // c.window * c.window if c.chunked else max(0, at - c.window + 1) if c.window else 0

  def tensor(self) -> Tensor:
    """The attention as a lazy tensor (B, T, heads * width)."""
    c, attention = self.case, Attention.__new__(Attention)
    cache = KVCache(self.config)
    fill(cache.make_pool(self.pool.shape[2]).kv, lambda memory: np.copyto(memory, self.pool))
    table = _held(self.table)
    place: Rows | Piece
    if c.T:
      start = UOp.variable("start", 0, c.most * BLOCK - 1).bind(c.lengths[0] - c.T)
      T: int | UOp = UOp.variable("length", 1, 2 * c.T).bind(c.T)
      at = UOp.variable("at0", 0, self.pool.shape[2] * BLOCK - 1).bind(0)
      place, asked = Piece(start, table, (at,), start + T), np.zeros((1, c.KVH * c.G, 2 * c.T, c.D), np.float32)
      asked[:, :, :c.T] = self.q
      q = Tensor(asked).realize()[:, :, :T]
    else:
      end, T, q = UOp.variable("end", 1, c.most * BLOCK).bind(max(c.lengths)), 1, Tensor(self.q).realize()
      place = Rows(_held(np.array(c.lengths, np.int32) - 1), table, (), end)
    attention.config, attention.cache, attention.heads = self.config, cache, _Heads(q, c.width)  # type: ignore
    attention.sinks, attention.out = Tensor(self.sinks).realize() if c.sink else None, lambda y: (y,)  # type: ignore
    return attention(q[:, 0], Step(place, (), 0))[0].contiguous()  # of its input, only the shape (B, T, ..) counts

  def wanted(self) -> np.ndarray:
    """float64 (B, T, heads * width)."""
    return np.stack([self._wanted(kv.astype(np.float64), q) for kv, q in zip(self.kv, self.q.astype(np.float64))])

  def _wanted(self, kv: np.ndarray, q: np.ndarray) -> np.ndarray:
    c, n = self.case, kv.shape[2]
    keys, values = (np.repeat(x, c.G, 0) for x in (kv[0], kv[-1, ..., :c.width]))
    scores = np.einsum("htd,hsd->hts", q, keys) / math.sqrt(c.D)
    if c.softcap: scores = np.tanh(scores / c.softcap) * c.softcap
    at, of = np.arange(n), np.arange(n - c.tokens, n)[:, None]
    hidden = at > of
    if c.chunked: hidden |= at < of // c.window * c.window
    elif c.window: hidden |= at <= of - c.window
    sinks = self.sinks.reshape(-1, 1, 1) if c.sink else np.full((c.KVH * c.G, 1, 1), -np.inf)
    scores = np.where(hidden, -np.inf, scores)
    top = np.maximum(scores.max(-1, keepdims=True), sinks)
    shares = np.exp(scores - top)
    shares /= shares.sum(-1, keepdims=True) + np.exp(sinks - top)
    return np.einsum("hts,hsd->thd", shares, values).reshape(c.tokens, -1)

def _held(x: np.ndarray) -> Tensor:
  fill(tensor := empty(x.shape, dtypes.int32), lambda memory: np.copyto(memory, x))
  return tensor

def error(found: np.ndarray, problem: Problem) -> float:
  """The largest absolute error, as a fraction of the expected values' root mean square; NaN if one of them is."""
  wanted = problem.wanted()
  return float(np.abs(found.ravel()[:wanted.size].reshape(wanted.shape) - wanted).max() / np.sqrt((wanted ** 2).mean()))
