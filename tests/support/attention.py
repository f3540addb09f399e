"""Decode attention (few queries) in the forms that models use: a tinygrad expression, and numpy's float64 result."""
import math
from dataclasses import dataclass

import numpy as np
from tests.support import symbolic
from tinygrad import Tensor, UOp
from tinygrad.uop.ops import Ops
from tinygrad_llm.patches.attention.part import Part

BLOCK = 16  # positions of a block of the paged cache (Case.table)

@dataclass(frozen=True)
class Case:
  """
  One attention: B sequences, T tokens, KVH key heads of D elements with G queries each, n of S cached positions.

  `W`: elements of a value (0: D). `packed`: bits of a quantised cache, with a scale for 32 elements (0: fp16).
  `table`: the cache is paged and its blocks are shuffled. `lengths`: sequence b sees only n - 7 * b positions.
  `latent`: the values are a slice of the keys. `symbolic`: n is a variable. `prompt`: T is one, too, of at most prompt.
  """
  KVH: int
  G: int
  D: int
  n: int
  S: int = 0
  W: int = 0
  B: int = 1
  T: int = 1
  sink: bool = False
  softcap: float = 0
  window: int = 0
  latent: bool = False
  packed: int = 0
  table: bool = False
  lengths: bool = False
  symbolic: bool = True
  prompt: int = 0
  seed: int = 0

  @property
  def positions(self) -> int: return -(-max(self.S, self.n) // BLOCK) * BLOCK
  @property
  def width(self) -> int: return self.W or self.D

def random_case(seed: int) -> Case:
  """Random sizes and forms, most of them typical of models."""
  rng = np.random.default_rng(seed)
  D = int(rng.choice([32, 64, 64, 80, 96, 128, 128, 192, 256]))
  n = int(rng.integers(1, 400))
  return Case(int(rng.integers(1, 9)), int(rng.integers(1, 9)), D, n, n + int(rng.integers(0, 100)),
              T=int(rng.choice([1, 1, 1, min(2, n)])), B=int(rng.choice([1, 1, 2])), sink=bool(rng.integers(2)),
              softcap=float(rng.choice([0, 0, 20])), window=int(rng.choice([0, 0, 50])),
              packed=int(rng.choice([0, 0, 8, 4])) if D % 32 == 0 else 0, table=bool(rng.integers(4) == 0),
              lengths=bool(rng.integers(4) == 0), seed=seed)

class Problem:
  """The tensors of a case, and the same numbers in float64."""
  def __init__(self, case: Case):
    self.case, rng, c = case, np.random.default_rng(case.seed), case
    self.q = rng.standard_normal((c.B, max(c.T, c.prompt), c.KVH, c.G, c.D)).astype(np.float32) * 2
    shape = (1 if c.latent else 2, c.B, c.KVH, c.positions, c.D)
    if c.packed:
      most = 1 << (c.packed - 1)
      codes = rng.integers(-most, most, shape).astype(np.int8)
      scales = (rng.random((*shape[:-1], c.D // 32)) / most * 2).astype(np.float16)
      self.kv = codes * np.repeat(scales.astype(np.float64), 32, -1)
      self.stored = [Tensor(codes).realize(), Tensor(scales).realize()]
    else:
      kv = rng.standard_normal(shape).astype(np.float16)
      self.kv, self.stored = kv.astype(np.float64), [Tensor(kv).realize()]
    self.order = rng.permutation(c.positions // BLOCK)
    self.sinks = rng.standard_normal((c.KVH, c.G)).astype(np.float32)
    self.seen = np.array([max(1, c.n - 7 * b) for b in range(c.B)]) if c.lengths else np.full(c.B, c.n)

  def _kv(self) -> Tensor:  # (parts, B, KVH, positions, D)
    stored = [self._in_order(x).float() for x in self.stored]
    if not self.case.packed: return stored[0]
    codes, scales = stored
    return (codes.reshape(*codes.shape[:-1], -1, 32) * scales.unsqueeze(-1)).reshape(codes.shape)

  def _in_order(self, x: Tensor) -> Tensor:
    """The blocks of a paged cache in the order of the sequence, gathered by the block table."""
    if not self.case.table: return x
    table = Tensor(np.argsort(self.order).astype(np.int32)).realize()
    return x.reshape(*x.shape[:3], -1, BLOCK, x.shape[-1])[:, :, :, table].reshape(x.shape)

  def tensor(self) -> Tensor:
    """The attention as a lazy tensor (B, T, KVH, G, W)."""
    c, start = self.case, self.case.n - self.case.T
    first: UOp | int = UOp.variable("start", 0, c.positions - c.T).bind(start) if c.symbolic else start
    T: int | UOp = UOp.variable("tokens", 1, c.prompt).bind(c.T) if c.prompt else c.T
    n = first + T
    kv = self._kv()[:, :, :, :n].transpose(2, 3)
    keys, values = kv[0], kv[-1, ..., :c.width]
    q = Tensor(self.q).realize()[:, :T]
    scores = (q.unsqueeze(1) * keys.unsqueeze(2).unsqueeze(4)).sum(-1) / math.sqrt(c.D)  # (B, S, T, KVH, G)
    if c.softcap: scores = (scores / c.softcap).tanh() * c.softcap
    positions = Tensor.arange(c.positions)
    at, of = positions[:n].reshape(1, n, 1, 1, 1), positions[first:n].reshape(1, 1, T, 1, 1)
    if c.prompt or c.T > 1: scores = (at > of).where(float("-inf"), scores)
    if c.window: scores = (at <= of - c.window).where(float("-inf"), scores)
    if c.lengths:
      seen = Tensor(self.seen.astype(np.int32)).realize().reshape(-1, 1, 1, 1, 1)
      scores = (at >= seen).where(float("-inf"), scores)
    sinks = Tensor(self.sinks).realize().reshape(1, 1, c.KVH, c.G)
    top = scores.max(1).maximum(sinks) if c.sink else scores.max(1)
    shares = (scores - top.unsqueeze(1)).exp()
    total = shares.sum(1) + (sinks - top).exp() if c.sink else shares.sum(1)
    return (shares.unsqueeze(-1) * values.unsqueeze(2).unsqueeze(4)).sum(1) / total.unsqueeze(-1)

  def wanted(self) -> np.ndarray:
    c = self.case
    kv = self.kv
    if c.table:
      blocks = kv.reshape(*kv.shape[:3], -1, BLOCK, c.D)
      kv = blocks[:, :, :, np.argsort(self.order)].reshape(kv.shape)
    kv = kv[:, :, :, :c.n]
    scores = np.einsum("btkgd,bksd->btkgs", self.q[:, :c.T].astype(np.float64), kv[0]) / math.sqrt(c.D)
    if c.softcap: scores = np.tanh(scores / c.softcap) * c.softcap
    at, of = np.arange(c.n), np.arange(c.n - c.T, c.n).reshape(1, -1, 1, 1, 1)
    hidden = at > of
    if c.window: hidden = hidden | (at <= of - c.window)
    if c.lengths: hidden = hidden | (at >= self.seen.reshape(-1, 1, 1, 1, 1))
    scores = np.where(hidden, -np.inf, scores)
    sinks = self.sinks[..., None] if c.sink else np.full((c.KVH, c.G, 1), -np.inf)
    top = np.maximum(scores.max(-1, keepdims=True), sinks)
    shares = np.exp(scores - top)
    total = shares.sum(-1, keepdims=True) + np.exp(sinks - top)
    return np.einsum("btkgs,bksd->btkgd", shares / total, kv[-1, ..., :c.width])

def kernels(linear: UOp) -> UOp:
  """The kernels of a schedule that compute parts, and the kernel after each."""
  is_part = [call.op is Ops.CALL and call.src[0].op is Ops.SINK and Part.of(call.src[0]) is not None
             for call in linear.src]
  return linear.replace(src=tuple(call for call, *of in zip(linear.src, is_part, [False, *is_part]) if any(of)))

def values(y: Tensor, case: Case) -> np.ndarray:
  """The computed attention (B, T, KVH, G, W); a symbolic T is cut to the tokens of the case."""
  shape = (case.B, case.T, case.KVH, case.G, case.width)
  if not case.prompt: return y.numpy().reshape(shape)
  return symbolic.values(y, shape)  # B is 1, so the tokens are the outermost axis

def error(found: np.ndarray, case: Case) -> float:
  """The largest absolute error, as a fraction of the expected values' root mean square."""
  wanted = Problem(case).wanted()
  return float(np.abs(found.reshape(wanted.shape) - wanted).max() / np.sqrt((wanted ** 2).mean()))
