"""Linear attention, in chunks and token by token, and the short convolution: against float64, token by token."""
import numpy as np
import pytest
from tests.support.extended import sample, some
from tinygrad import Tensor, UOp
from tinygrad_llm.nn.mixers.conv import short_conv
from tinygrad_llm.nn.mixers.linear_attention import chunked, recurrent

H, D, DV = 2, 32, 24
KINDS = ("random", "correlated", "repeated")

def token_by_token(q, k, v, g, beta, S):
  """float64: q, k (H, N, d), v (H, N, d_v), g (H, N) or (H, N, d), beta (H, N) or None, S (H, d_v, d)."""
  S, out = S.astype(np.float64), []
  for t in range(q.shape[1]):
    decay = np.exp(g[:, t].astype(np.float64))
    S = S * (decay[:, None, None] if decay.ndim == 1 else decay[:, None, :])
    new = v[:, t].astype(np.float64)
    if beta is not None: new = beta[:, t, None] * (new - np.einsum("hvk,hk->hv", S, k[:, t]))
    S = S + np.einsum("hv,hk->hvk", new, k[:, t])
    out.append(np.einsum("hvk,hk->hv", S, q[:, t]))
  return np.stack(out, 1), S

def inputs(N, kind="random", decay=(0.5, 1), most=1.9, per_channel=False, seed=0):
  rng = np.random.default_rng(seed)
  def normal(*shape): return rng.standard_normal(shape).astype(np.float32)
  def unit(x): return x / np.sqrt((x * x).sum(-1, keepdims=True))
  q, k = unit(normal(H, N, D)) / np.float32(D ** 0.5), normal(H, N, D)
  if kind == "correlated": k = normal(H, 1, D) + 0.1 * k
  if kind == "repeated": k = np.broadcast_to(k[:, :1], k.shape)
  g = np.log(rng.uniform(*decay, (H, N, D) if per_channel else (H, N))).astype(np.float32)
  return q, unit(k), normal(H, N, DV), g, rng.uniform(0, most, (H, N)).astype(np.float32), normal(H, DV, D)

def of_app(function, *arrays, **kw):
  return [x.numpy() for x in function(*(None if x is None else Tensor(np.ascontiguousarray(x)) for x in arrays), **kw)]

def close(found, wanted, bound=2e-5):
  assert found.shape == wanted.shape
  error = np.abs(found - wanted).max() / wanted.std()
  assert error <= bound, error

def all_close(found, wanted):
  for x, y in zip(found, wanted, strict=True): close(x, y)

@pytest.mark.parametrize("decay", [(0.5, 1), (1, 1)])
@pytest.mark.parametrize("C", sample([16, 32, 64], [32]))
@pytest.mark.parametrize("kind", sample(KINDS, ("correlated",)))
def test_chunks(kind, C, decay):
  given = inputs(64, kind, decay)
  all_close(of_app(chunked, *given, C=C), token_by_token(*given))

@pytest.mark.parametrize("kind", KINDS)
def test_one_token(kind):
  given = inputs(40, kind)
  *rows, S = given
  outputs = []
  for t in range(40):
    o, S = of_app(recurrent, *(x[:, t] for x in rows), S)
    outputs.append(o)
  all_close((np.stack(outputs, 1), S), token_by_token(*given))

@pytest.mark.parametrize("decay", [(0.5, 1), (1e-9, 1)])
@pytest.mark.parametrize("kind", sample(KINDS, ("correlated",)))
def test_decay_per_channel(kind, decay):
  given = inputs(48, kind, decay, per_channel=True)
  wanted = token_by_token(*given)
  all_close(of_app(chunked, *given, C=16), wanted)
  *rows, S = given
  o, S = of_app(recurrent, *(x[:, 0] for x in rows), S)
  all_close((o[:, None], S), token_by_token(*(x[:, :1] for x in rows), given[-1]))

@pytest.mark.parametrize("per_channel", [False, True])
def test_no_correction(per_channel):
  """beta=None: values are added, as in Mamba-2."""
  q, k, v, g, _, S = inputs(64, per_channel=per_channel)
  wanted = token_by_token(q, k, v, g, None, S)
  all_close(of_app(chunked, q, k, v, g, None, S, C=16), wanted)
  outputs = []
  for t in range(64):
    o, S = of_app(recurrent, q[:, t], k[:, t], v[:, t], g[:, t], None, S)
    outputs.append(o)
  all_close((np.stack(outputs, 1), S), wanted)

def test_strong_decays_beside_weak_ones():
  """A chunk's sum of logarithms is far from 0 then, and the later differences of it are small."""
  *given, S = inputs(64, "correlated", decay=(0.9, 1))
  given[3][:, ::7] = -30
  all_close(of_app(chunked, *given, S, C=32), token_by_token(*given, S))

@pytest.mark.parametrize("T", some([1, 15, 33, 64], 1, 3))
def test_padding(T):
  """Rows with beta = 0 and g = 0 leave the state and the other rows alone, whatever their keys and values are."""
  *given, S = inputs(64, "correlated")
  wanted = token_by_token(*(x[:, :T] for x in given), S)
  given[3][:, T:] = given[4][:, T:] = 0
  found = of_app(chunked, *given, S, C=32)
  all_close((found[0][:, :T], found[1]), wanted)

def test_the_state_is_carried():
  *given, S = inputs(96, "correlated")
  first, S1 = of_app(chunked, *(x[:, :64] for x in given), S, C=32)
  second, S2 = of_app(chunked, *(x[:, 64:] for x in given), S1, C=16)
  all_close((np.concatenate((first, second), 1), S2), token_by_token(*given, S))

def test_a_batch_of_sequences():
  pair = [inputs(32, seed=seed) for seed in (1, 2)]
  found = of_app(chunked, *(np.stack(x) for x in zip(*pair)), C=16)
  for b, given in enumerate(pair): all_close([x[b] for x in found], token_by_token(*given))

# *** the short convolution
CHANNELS, TAPS = 24, 4

def conv_inputs(T):
  rng = np.random.default_rng(T)
  return (rng.standard_normal(shape).astype(np.float32) for shape in
          ((1, T, CHANNELS), (1, TAPS - 1, CHANNELS), (CHANNELS, TAPS), (CHANNELS,)))

def convolved(x, rows, weight, bias):
  inputs = np.concatenate((rows, x), 1).astype(np.float64)
  y = [(inputs[:, t:t + TAPS] * weight.T).sum(1) + bias for t in range(x.shape[1])]
  return np.stack(y, 1), inputs[:, -(TAPS - 1):]

@pytest.mark.parametrize("T", [1, 2, 3, 7])
def test_short_conv(T):
  given = list(conv_inputs(T))
  all_close(of_app(short_conv, *given), convolved(*given))
  given[3] = None
  all_close(of_app(short_conv, *given), convolved(*given[:3], 0))

@pytest.mark.parametrize("T", [1, 2, 5, 16])
def test_short_conv_of_a_symbolic_length(T):
  x, *given = conv_inputs(16)
  length = UOp.variable("length", 1, 16).bind(T)
  padded = Tensor(x)[:, :length].pad_to(None, 16, None)
  y, rows = short_conv(padded, *(Tensor(a) for a in given), length)
  wanted = convolved(x[:, :T], *given)
  all_close((y.numpy()[:, :T], rows.numpy()), wanted)
