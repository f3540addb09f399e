"""
Random tensor expressions with their float64 values, to find miscompiled kernels.

Each expression carries a magnitude: its value if nothing cancelled. Errors are fractions of this magnitude. Rounding of
float32 stays small in any order of the sums; a term that is lost or misread gives an error orders larger.

  python tests/support/random_graphs.py --count 1000 --seed 1     compares and prints the worst
"""
from __future__ import annotations
import argparse
import math
from dataclasses import dataclass

import numpy as np

import tinygrad_llm  # noqa: F401  applies the patches
from tinygrad import Tensor, UOp, dtypes

SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96)
LONG = (128, 160, 256, 288, 576, 640)
LIMIT = 1 << 16  # elements of a value, at most

@dataclass(frozen=True)
class Value:
  """A lazy tensor with its float64 value `exact` and its magnitude `size`."""
  lazy: Tensor
  exact: np.ndarray
  size: np.ndarray

  @property
  def shape(self) -> tuple[int, ...]: return self.exact.shape

def _movement(op: str, *arg):
  def of(v: Value) -> Value:
    np_op = {"reshape": lambda a: a.reshape(arg), "permute": lambda a: a.transpose(arg),
             "expand": lambda a: np.broadcast_to(a, arg), "flip": lambda a: np.flip(a, arg),
             "shrink": lambda a: a[tuple(slice(*p) for p in arg)], "pad": lambda a: np.pad(a, arg)}[op]
    lazy = getattr(v.lazy, op)(*([arg] if op in ("shrink", "pad") else arg))
    return Value(lazy, np_op(v.exact), np_op(v.size))
  return of

class Graph:
  """A generator of random expressions from one seeded stream."""
  def __init__(self, seed: int): self.rng = np.random.default_rng(seed)

  def pick(self, options): return options[int(self.rng.integers(len(options)))]
  def chance(self, p: float) -> bool: return self.rng.random() < p

  def value(self, array: np.ndarray) -> Value:
    return Value(Tensor(array).realize(), array.astype(np.float64), np.abs(array.astype(np.float64)))

  # *** leaves

  def floats(self, shape: tuple[int, ...]) -> Value:
    x = self.rng.standard_normal(shape).astype(np.float32)
    if not self.chance(0.2): return self.value(x)
    half = self.value(x.astype(np.float16))
    return Value(half.lazy.float(), half.exact, half.size)

  def fields(self, shape: tuple[int, ...]) -> Value:
    """Floats (.., n) unpacked from (.., n/k) words of k bit fields, in some order, with random scales and minima."""
    n, bits = shape[-1], self.pick((2, 4, 8))
    per = math.gcd(n, 32 // bits)
    words = self.rng.integers(0, 2**32, (*shape[:-1], n // per), np.uint32)
    shift = np.arange(per, dtype=np.uint32) * bits
    lazy = (Tensor(words).realize().unsqueeze(-1) >> Tensor.arange(per).cast(dtypes.uint32) * bits) & ((1 << bits) - 1)
    exact = ((words[..., None] >> shift) & ((1 << bits) - 1)).astype(np.float64)
    if self.chance(0.5): lazy, exact = lazy.transpose(-1, -2), exact.swapaxes(-1, -2)
    v = Value(lazy.reshape(shape).float(), exact.reshape(shape), np.abs(exact.reshape(shape)))
    if self.chance(0.4): v = self.add(v, self.constant(-float(1 << bits - 1)))
    group = self.pick([g for g in (4, 8, 12, 16, 32, 64, n) if n % g == 0])
    split = (*shape[:-1], n // group, group)
    if self.chance(0.7): v = self.mul(_movement("reshape", *split)(v), self.floats((*split[:-1], 1)))
    if self.chance(0.5): v = self.add(_movement("reshape", *split)(v), self.floats((*split[:-1], 1)))
    return _movement("reshape", *shape)(v)

  def gathered(self, shape: tuple[int, ...]) -> Value:
    rows = int(self.rng.integers(1, 50))
    table, index = self.floats((rows, *shape[1:])), self.rng.integers(0, rows, shape[0]).astype(np.int32)
    return Value(table.lazy[Tensor(index).realize()], table.exact[index], table.size[index])

  def constant(self, c: float) -> Value: return Value(Tensor(c), np.array(c), np.array(abs(c)))

  def leaf(self, shape: tuple[int, ...]) -> Value:
    if not shape: return self.constant(round(float(self.rng.standard_normal()), 2))
    return self.pick((self.floats, self.floats, self.fields, self.fields, self.gathered))(shape)

  # *** operations

  def add(self, a: Value, b: Value) -> Value: return Value(a.lazy + b.lazy, a.exact + b.exact, a.size + b.size)
  def mul(self, a: Value, b: Value) -> Value: return Value(a.lazy * b.lazy, a.exact * b.exact, a.size * b.size)

  def sum(self, v: Value, axes: tuple[int, ...]) -> Value:
    return Value(v.lazy.sum(axes), v.exact.sum(axes), v.size.sum(axes))

  def max(self, v: Value, axes: tuple[int, ...]) -> Value:
    return Value(v.lazy.max(axes), v.exact.max(axes), v.size.max(axes))

  def softmax(self, v: Value) -> Value:
    v = self.squashed(v)
    e = np.exp(v.exact)
    out = e / e.sum(-1, keepdims=True)
    return Value(v.lazy.softmax(-1), out, out * (4 + 2 * v.size.max(-1, keepdims=True)))

  def squashed(self, v: Value) -> Value:
    """2 * v / (1 + v * v), which lies within -1 and 1."""
    out = 2 * v.exact / (1 + v.exact * v.exact)
    return Value(v.lazy * 2 / (1 + v.lazy * v.lazy), out, (1 + v.size) * (1 + v.size * v.size) / (1 + v.exact ** 2))

  def normed(self, v: Value) -> Value:
    """RMS norm over the last axis with a weight."""
    rms = np.sqrt((v.exact ** 2).mean(-1, keepdims=True) + 1e-1)
    lazy = v.lazy * (v.lazy.square().mean(-1, keepdim=True) + 1e-1).rsqrt()
    blown = np.sqrt((v.size ** 2).mean(-1, keepdims=True) + 1e-1) / rms
    return self.mul(Value(lazy, v.exact / rms, v.size / rms * blown ** 2), self.floats(v.shape[-1:]))

  def chosen(self, v: Value) -> Value:
    other = self.floats(v.shape)
    cond = other.exact > 0.3
    return Value((other.lazy > 0.3).where(v.lazy, other.lazy), np.where(cond, v.exact, other.exact),
                 np.where(cond, v.size, other.size))

  def broadcast(self, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts with `shape`."""
    if self.chance(0.3): shape = shape[int(self.rng.integers(len(shape) + 1)):]
    return tuple(1 if self.chance(0.3) else s for s in shape)

  def dot(self, v: Value) -> Value:
    """v @ w.T for a random w; of a vector v, as a sum of products."""
    rows, lead = self.pick(SIZES), v.shape[:-1]
    if math.prod(lead) * rows * v.shape[-1] > 8 * LIMIT: rows = 1
    w = self.leaf((rows, v.shape[-1])) if self.chance(0.8) else self.normed(self.leaf((rows, v.shape[-1])))
    lazy = v.lazy @ w.lazy.transpose(-1, -2)
    return Value(lazy, v.exact @ w.exact.T, v.size @ w.size.T) if len(lead) else self.sum(self.mul(w, v), (1,))

  def reduced(self, v: Value) -> Value:
    axes = tuple(i for i in range(len(v.shape)) if self.chance(0.5)) or (int(self.rng.integers(len(v.shape))),)
    return (self.sum if self.chance(0.8) else self.max)(v, axes)

  def moved(self, v: Value) -> Value:
    kind = self.pick(("permute", "flip", "shrink", "pad", "merge", "split"))
    if kind == "permute": return _movement("permute", *map(int, self.rng.permutation(len(v.shape))))(v)
    if kind == "flip": return _movement("flip", int(self.rng.integers(len(v.shape))))(v)
    if kind == "shrink":
      ends = [sorted(map(int, self.rng.integers(0, s + 1, 2))) if self.chance(0.4) else (0, s) for s in v.shape]
      return _movement("shrink", *[(a, b) if a < b else (0, s) for (a, b), s in zip(ends, v.shape)])(v)
    if kind == "pad":
      widths = [(self.pick((0, 1, 4)), self.pick((0, 2, 3))) if self.chance(0.4) else (0, 0) for _ in v.shape]
      return _movement("pad", *widths)(v)
    if kind == "merge":
      i = int(self.rng.integers(len(v.shape)))
      return _movement("reshape", *v.shape[:i], math.prod(v.shape[i:i + 2]), *v.shape[i + 2:])(v)
    i, n = int(self.rng.integers(len(v.shape))), self.pick((2, 3, 4, 8, 16, 24))
    if v.shape[i] % n: return v
    return _movement("reshape", *v.shape[:i], v.shape[i] // n, n, *v.shape[i + 1:])(v)

  def step(self, v: Value) -> Value:
    if not v.shape: return self.mul(v, self.floats((self.pick(SIZES),)))
    kind = self.pick(("mul", "mul", "add", "dot", "dot", "reduced", "reduced", "moved", "moved", "chosen", "softmax",
                      "normed", "squashed", "outer"))
    if kind == "mul": return self.mul(v, self.leaf(self.broadcast(v.shape)))
    if kind == "add":
      return self.add(v, self.mul(self.leaf(self.broadcast(v.shape)), self.constant(self.pick((-1., .5)))))
    if kind == "outer":
      w = self.leaf((self.pick(SIZES), *[1] * len(v.shape)))
      return self.mul(v, w) if v.exact.size * w.shape[0] <= LIMIT else v
    return getattr(self, kind)(v)

  def shape(self) -> tuple[int, ...]:
    while True:
      shape = tuple(self.pick(SIZES + LONG) for _ in range(int(self.rng.integers(1, 5))))
      if math.prod(shape) <= LIMIT: return shape

  def expression(self) -> Value:
    v = self.leaf(self.shape())
    for _ in range(int(self.rng.integers(2, 7))):
      new = self.step(v)
      if new.exact.size <= LIMIT and len(new.shape) <= 5 and new.exact.size: v = new
    if v.exact.size > 4096: v = self.sum(v, (len(v.shape) - 1,))
    return v

  # *** symbolic lengths

  def bound(self, most: int) -> tuple[UOp, int]:
    n = int(self.rng.integers(1, most + 1))
    return UOp.variable(f"n{most}", 1, most).bind(n), n

  def attention(self) -> Value:
    """softmax(q @ k) @ v over the first n positions of an fp16 cache; queries (kv_heads, group, dim)."""
    heads, group = self.pick((1, 2, 3)), self.pick((1, 2, 4))
    dim, most = self.pick((16, 24, 32, 64)), self.pick((17, 64, 100))
    q, cache = self.floats((heads, group, dim)), self.rng.standard_normal((2, heads, most, dim)).astype(np.float16)
    symbol, n = self.bound(most)
    lazy = Tensor(cache).realize()[:, :, :symbol]
    if to_float := self.chance(0.7): lazy = lazy.float()
    k, v = cache.astype(np.float64)[:, :, :n]
    scores = q.exact @ k.swapaxes(-1, -2) / math.sqrt(dim)
    size = 1 + (q.size @ np.abs(k).swapaxes(-1, -2) / math.sqrt(dim)).max(-1, keepdims=True)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    weights = (q.lazy @ lazy[0].transpose(-1, -2) / math.sqrt(dim)).softmax(-1)
    if not to_float: weights = weights.float()
    return Value((weights @ lazy[1]), p @ v, (p @ np.abs(v)) * size * 4)

  def symbolic(self) -> Value:
    """A sum or maximum over the symbolic n of x[:n] @ w.T, or of x[:n] itself."""
    most, dim = self.pick((9, 32, 50)), self.pick((16, 40, 64, 96, 256))
    x = self.floats((most, dim))
    symbol, n = self.bound(most)
    first = Value(x.lazy[:symbol], x.exact[:n], x.size[:n])
    if self.chance(0.3): first = self.normed(first)
    if self.chance(0.7):
      w = self.leaf((self.pick(SIZES), dim))
      first = Value(first.lazy @ w.lazy.transpose(-1, -2), first.exact @ w.exact.T, first.size @ w.size.T)
    return self.sum(first, (0,)) if self.chance(0.7) else self.max(first, (0,))

  def integers(self) -> Value:
    """Integer dot products and maxima, which are exact."""
    rows, n = self.pick(SIZES), self.pick(SIZES + LONG)
    a, b = (self.rng.integers(-100, 100, shape).astype(self.pick((np.int32, np.int8))) for shape in ((rows, n), (n,)))
    lazy = (Tensor(a).realize().int() * Tensor(b).realize().int()).sum(-1) * 2 - Tensor(a).realize().int().max(-1)
    exact = (a.astype(np.int64) * b.astype(np.int64)).sum(-1) * 2 - a.max(-1)
    return Value(lazy, exact.astype(np.float64), np.zeros(rows))

  def any(self) -> Value:
    return self.pick((*[self.expression] * 6, self.attention, self.symbolic, self.integers))()

def error(v: Value) -> float:
  """The largest error as a fraction of the magnitude; infinite if the magnitude is 0 and the value is not."""
  got = v.lazy.numpy().astype(np.float64)
  assert got.shape == v.shape, f"{got.shape} instead of {v.shape}"
  off = np.abs(got - v.exact)
  if not np.isfinite(off).all(): return math.inf
  return float(np.max(np.divide(off, v.size, out=np.where(off > 0, math.inf, 0.0), where=v.size > 0), initial=0))

def errors(seed: int, count: int) -> list[float]:
  """The errors of the expressions with seeds seed, seed + 1, .."""
  return [error(Graph(seed + i).any()) for i in range(count)]

def main() -> None:
  parser = argparse.ArgumentParser(description="Random expressions against float64.")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--count", type=int, default=100)
  args = parser.parse_args()
  found = []
  for seed in range(args.seed, args.seed + args.count):
    try: found.append((error(Graph(seed).any()), seed, ""))
    except Exception as e: found.append((math.inf, seed, f"{type(e).__name__}: {str(e)[:300]}"))
    if found[-1][0] > 1e-6: print(f"seed {seed}: {found[-1][0]:.1e} {found[-1][2]}", flush=True)
  print("worst:", *(f"{e:.1e} (seed {s})" for e, s, _ in sorted(found, reverse=True)[:8]))

if __name__ == "__main__": main()
