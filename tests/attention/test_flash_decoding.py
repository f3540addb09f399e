"""attention/flash_decoding: splits a softmax over positions into parts; graphs before and after, evaluated by numpy."""
import numpy as np
import pytest
from tests.support.interpret import Interpreter
from tests.support.softmax import COLUMN, DEPTH, G, H, HEADS, QUERIES, WIDTH, attention, numbers, split
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.attention import flash_decoding
from tinygrad_llm.patches.attention.flash_decoding import EXTRA, PART
from tinygrad_llm.patches.hooks import PARTS

def value(sink: UOp, n: int) -> np.ndarray:
  of = Interpreter(numbers(sink, n), read := sink.src[0].index(H, G, COLUMN))
  first = [of.axes[r] for r in (H, G, COLUMN)]
  found = of.value(read).transpose([*first, *(i for i in of.axes.values() if i not in first)])
  return found.reshape(HEADS, QUERIES, WIDTH)

def parts(sink: UOp) -> UOp:
  found, = {u for u in sink.toposort() if u.op is Ops.STAGE and u.tag == PARTS}
  return found

def wanted(n: int, hidden: int) -> np.ndarray:
  """The attention computed by numpy directly."""
  q, k, v = numbers(attention(n), n).values()
  s = q.reshape(HEADS, QUERIES, DEPTH) @ k.reshape(HEADS, n, DEPTH).transpose(0, 2, 1)
  s[..., :hidden] = -np.inf
  e = np.exp2((s - s.max(-1, keepdims=True)) * 0.5)
  return (e / e.sum(-1, keepdims=True)) @ v.reshape(HEADS, n, WIDTH)

@pytest.mark.parametrize(("n", "hidden"), [(1, 0), (PART, 0), (PART + 1, 0), (150, 0), (150, PART + 6)])
def test_softmax_is_split_into_parts(on_a_gpu, n, hidden):
  """
  m = max n: s; y = (sum n: exp(s - m) * v) / (sum n: exp(s - m))
  --> m[p], l[p], o[p] of each part; m = max p: m[p]; y = (sum p: exp(m[p] - m) * o[p]) / (sum p: exp(m[p] - m) * l[p])
  """
  made = split(sink := attention(n, hidden=hidden))
  count = -(-n // PART)
  assert [int(r.vmax) + 1 for r in parts(made).src[1:]] == [HEADS, QUERIES, *[count] * (count > 1), WIDTH + EXTRA]
  assert np.allclose(value(made, n), value(sink, n)) and np.allclose(value(sink, n), wanted(n, hidden))
  stored = [u for u in made.toposort() if u.op is Ops.STAGE]
  assert len(stored) == 2  # scores, maxima and sums of exponentials are not materialised

@pytest.mark.parametrize("n", [16, 150])
def test_cpu_uses_one_part(n):
  """On a CPU a thread has all positions; the factor exp(m - m) = 1 is left out."""
  made = split(sink := attention(n))
  assert np.allclose(value(made, n), value(sink, n))
  assert len([u for u in made.toposort() if u.op is Ops.REDUCE and u.arg[0] is Ops.MAX]) == 1
  outside = made.toposort(lambda u: u.tag != PARTS)
  assert not any(u.op in (Ops.EXP2, Ops.REDUCE) for u in outside)

def test_independent_softmaxes_are_split_separately(on_a_gpu):
  """Two softmaxes of one graph are split separately. A softmax whose scores have other readers is not split."""
  one, two = attention(100).src[0], attention(90).src[0]
  made = split(UOp.sink(one, two))
  assert len({u for u in made.toposort() if u.op is Ops.STAGE and u.tag == PARTS}) == 2
  assert split(attention(100, again=True)) is None

@pytest.mark.parametrize("slopes", [(0.5, 0.25), (-0.5, -0.5)])
def test_rejects_other_exponentials(on_a_gpu, slopes):
  """Exponentials with two different slopes, or with negative slopes, are no softmax."""
  assert split(attention(100, slopes=slopes)) is None

def test_no_split_for_unsupported_shapes(monkeypatch):
  """No split for keys that vectors do not divide, or for more queries than a thread block holds."""
  assert split(attention(16)) is not None
  monkeypatch.setattr(flash_decoding, "LANES", 32)  # a key has 16 elements
  assert split(attention(16)) is None
  monkeypatch.setattr(flash_decoding, "has_vectors", lambda ren: False)
  monkeypatch.setattr(flash_decoding, "fits", lambda *_: True)
  assert split(attention(16)) is not None
  monkeypatch.setattr(flash_decoding, "QUERIES", HEADS * QUERIES - 1)
  assert split(attention(16)) is None
