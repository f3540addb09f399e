"""
Linear attention with a decay and the delta rule (Gated DeltaNet, https://arxiv.org/abs/2412.06464), in float32.

A head has a state S (d_v, d_k) instead of keys and values. A token decays S, corrects what S holds under its key k
towards its value v by the share beta, and reads S under its query q:

  S = exp(g) S;  S = S + beta (v - S k) k^T;  o = S q

- g is a number a head, or a number a channel of k (Kimi Delta Attention, https://arxiv.org/abs/2510.26692)
- beta=None adds v k^T without a correction (Mamba-2, https://arxiv.org/abs/2405.21060: k is its B, q its C)
"""
from __future__ import annotations
from tinygrad import Tensor, dtypes

def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, S: Tensor) -> tuple[Tensor, Tensor]:
  """
  One token: q, k (.., d_k), v (.., d_v), g (..) or (.., d_k), beta (..), S (.., d_v, d_k) -> o (.., d_v), the new S.

  Both sums over S are of the old S and one product, so that S is read once for them, and once for the new S.
  """
  per_channel = g.ndim == k.ndim
  a = (g if per_channel else g.unsqueeze(-1)).exp()  # (.., 1 or d_k)
  pair = Tensor.stack(k, q, dim=-2)
  # contiguous: the output reads one of the sums, and would compute both anew for it
  sums = ((pair * a.unsqueeze(-2) if per_channel else pair) @ S.transpose(-1, -2)).contiguous()  # (.., 2, d_v)
  of_k, of_q = (sums[..., i, :] if per_channel else sums[..., i, :] * a for i in range(2))
  delta = v if beta is None else beta.unsqueeze(-1) * (v - of_k)
  return of_q + (k * q).sum(-1, keepdim=True) * delta, S * a.unsqueeze(-2) + delta.unsqueeze(-1) * k.unsqueeze(-2)

def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, S: Tensor, C: int
            ) -> tuple[Tensor, Tensor]:
  """
  N tokens, N a multiple of C: q, k (.., N, d_k), v (.., N, d_v), g (.., N) or (.., N, d_k), beta (.., N),
  S (.., d_v, d_k) -> o (.., N, d_v), the new S.

  Rows with beta = 0 (without a correction: v = 0) and g = 0 leave S and the other rows alone: they pad a shorter text.
  The method (https://arxiv.org/abs/2406.06484): the corrections of C tokens solve a triangular system. Its inverse does
  not depend on S, so only products with S go chunk by chunk.
  """
  def chunks(x: Tensor) -> Tensor: return x.reshape(*x.shape[:-2], -1, C, x.shape[-1])  # (.., n, C, d)
  q, k, v, g = (chunks(x) for x in (q, k, v, g if g.ndim == k.ndim else g.unsqueeze(-1)))
  i, j = Tensor.arange(C).reshape(C, 1), Tensor.arange(C).reshape(1, C)
  # the sums of g since the chunk's start, (.., n, C, 1 or d_k)
  G = (i >= j).where(g.transpose(-1, -2).unsqueeze(-2), 0).sum(-1).transpose(-1, -2)
  P, qG = _decayed(q, k, G, i >= j), q * G.exp()
  last = G[..., -1:, :]  # (.., n, 1, 1 or d_k)
  kG, kept = k * (last - G).exp(), last.exp()
  if beta is not None:
    beta = chunks(beta.unsqueeze(-1))
    X = _inverse(_decayed(k * beta, k, G, i > j).contiguous(), i, j)
    W, v = X @ (k * beta * G.exp()), X @ (v * beta)
  outputs = []
  for c in range(k.shape[-3]):
    new, ST = v[..., c, :, :], S.transpose(-1, -2)
    if beta is not None: new = new - W[..., c, :, :] @ ST
    outputs.append(qG[..., c, :, :] @ ST + P[..., c, :, :] @ new)
    S = kept[..., c, :, :] * S + new.transpose(-1, -2) @ kG[..., c, :, :]
  return Tensor.cat(*outputs, dim=-2), S

def _decayed(x: Tensor, k: Tensor, G: Tensor, seen: Tensor) -> Tensor:
  """
  x_i . k_j, decayed from row j to row i, where seen (C, C), else 0.

  x, k (.., C, d), G (.., C, 1 or d) -> (.., C, C).
  """
  # one exponent: exp(G_i) exp(-G_j) would overflow
  decay = seen.unsqueeze(-1).where(G.unsqueeze(-2) - G.unsqueeze(-3), float("-inf")).exp()  # (.., C, C, 1 or d)
  if G.shape[-1] == 1: return (x @ k.transpose(-1, -2)) * decay.squeeze(-1)
  return (x.unsqueeze(-2) * k.unsqueeze(-3) * decay).sum(-1)

def _inverse(A: Tensor, i: Tensor, j: Tensor) -> Tensor:
  """
  (I + A)^-1 for a strictly lower triangular A (.., C, C), C a power of two; i (C, 1) and j (1, C) count rows, columns.

  By blocks: from the inverses of a matrix's diagonal blocks to the inverse of blocks of twice the size. The powers of A
  give the same in as many products, but cancel: with equal keys nothing of float32 is left.
  """
  X = (i == j).cast(dtypes.float32) - _below(A, i, j, 1)
  b = 2
  while b < A.shape[-1]:
    X = (X - X @ _below(A, i, j, b) @ X).contiguous()
    b *= 2
  return X

def _below(A: Tensor, i: Tensor, j: Tensor, b: int) -> Tensor:
  """The lower left b x b block of each diagonal block of 2b x 2b."""
  return ((i // b == j // b + 1) & (i // b % 2 == 1)).where(A, 0)
