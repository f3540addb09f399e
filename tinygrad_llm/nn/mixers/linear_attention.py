"""
Linear attention with a decay and the delta rule (Gated DeltaNet, https://arxiv.org/abs/2412.06464), in float32.

A head has a state S (d_v, d_k) instead of keys and values. A token decays S, corrects what S holds under its key k
towards its value v by the share beta, and reads S under its query q:

  S = exp(g) S;  S = S + beta (v - S k) k^T;  o = S q

- g is a number a head, or a number a channel of k (Kimi Delta Attention, https://arxiv.org/abs/2510.26692)
- beta=None adds v k^T without a correction (Mamba-2, https://arxiv.org/abs/2405.21060: k is its B, q its C)
"""
from __future__ import annotations
import functools
from tinygrad import Tensor

BLOCK = 16  # rows of a triangular system that are solved by substitution; the kernel has BLOCK^2 / 2 products in a row

def attended(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, S: Tensor, C: int
             ) -> tuple[Tensor, Tensor]:
  """chunked() for N tokens; if N is 1, the same by recurrent()."""
  if v.shape[-2] != 1: return chunked(q, k, v, g, beta, S, C)
  axis = v.ndim - 2  # all have the tokens there
  q, k, v, g = (y.squeeze(axis) for y in (q, k, v, g))
  o, S = recurrent(q, k, v, g, None if beta is None else beta.squeeze(axis), S)
  return o.unsqueeze(-2), S

def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None, S: Tensor) -> tuple[Tensor, Tensor]:
  """
  One token: q, k (.., d_k), v (.., d_v), g (..) or (.., d_k), beta (..), S (.., d_v, d_k) -> o (.., d_v), the new S.

  Both sums over S are of the old S and one product, so that S is read once for them, and once for the new S.
  """
  per_channel = g.ndim == k.ndim
  a = (g if per_channel else g.unsqueeze(-1)).exp()  # (.., 1 or d_k)
  if beta is None:
    # a sum of the old S: if it read the new one, that would be stored twice
    o = (S * (a * q).unsqueeze(-2) + v.unsqueeze(-1) * (k * q).unsqueeze(-2)).sum(-1)
    return o, S * a.unsqueeze(-2) + v.unsqueeze(-1) * k.unsqueeze(-2)
  pair = Tensor.stack(k, q, dim=-2)
  # contiguous: the output reads one of the sums, and would compute both anew for it
  sums = ((pair * a.unsqueeze(-2) if per_channel else pair) @ S.transpose(-1, -2)).contiguous()  # (.., 2, d_v)
  of_k, of_q = (sums[..., i, :] if per_channel else sums[..., i, :] * a for i in range(2))
  delta = beta.unsqueeze(-1) * (v - of_k)
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
  # contiguous: several products read each of these. Fused into them, 256 tokens took 2,009 ms instead of 76
  def chunks(x: Tensor) -> Tensor: return x.reshape(*x.shape[:-2], -1, C, x.shape[-1])  # (.., n, C, d)
  q, k, v, g = (chunks(x) for x in (q, k, v, g if g.ndim == k.ndim else g.unsqueeze(-1)))
  i, j = Tensor.arange(C).reshape(C, 1), Tensor.arange(C).reshape(1, C)
  # the sums of g since the chunk's start, (.., n, C, 1 or d_k)
  G = (i >= j).where(g.transpose(-1, -2).unsqueeze(-2), 0).sum(-1).transpose(-1, -2).contiguous()
  later = (i < j).where(float("-inf"), 0.0)
  P, qG = _decayed(q, k, G, later).contiguous(), (q * G.exp()).contiguous()
  last = G[..., -1:, :]  # (.., n, 1, 1 or d_k)
  kG, kept = (k * (last - G).exp()).contiguous(), last.exp()
  if beta is not None:
    beta = chunks(beta.unsqueeze(-1)).contiguous()
    X = _inverse((_decayed(k, k, G, later) * beta).contiguous())
    W, v = ((X @ x.contiguous()).contiguous() for x in (k * (beta * G.exp()), v * beta))
  outputs = []
  for c in range(k.shape[-3]):
    if c: S = S.contiguous()
    new, ST = v[..., c, :, :], S.transpose(-1, -2)
    if beta is not None: new = (new - W[..., c, :, :] @ ST).contiguous()
    # contiguous: two products in one kernel have tinygrad's own schedule on GPUs, with 784 bytes of stack a thread
    outputs.append(((qG[..., c, :, :] @ ST).contiguous() + P[..., c, :, :] @ new).contiguous())
    S = kept[..., c, :, :] * S + new.transpose(-1, -2) @ kG[..., c, :, :]
  return Tensor.cat(*outputs, dim=-2), S

def _decayed(x: Tensor, k: Tensor, G: Tensor, later: Tensor) -> Tensor:
  """
  x_i . k_j, decayed from row j to row i: x, k (.., C, d), G (.., C, 1 or d) -> (.., C, C).

  later (C, C): -inf where j is after i, which makes the result 0, and 0 elsewhere.
  """
  # one exponent: exp(G_i) exp(-G_j) would overflow
  decay = (G.unsqueeze(-2) - G.unsqueeze(-3) + later.unsqueeze(-1)).exp()  # (.., C, C, 1 or d)
  if G.shape[-1] == 1: return (x @ k.transpose(-1, -2)) * decay.squeeze(-1)
  return (x.unsqueeze(-2) * k.unsqueeze(-3) * decay).sum(-1)

def _inverse(A: Tensor) -> Tensor:
  """
  (I + A)^-1 of A's part below the diagonal, A (.., C, C), C up to BLOCK or BLOCK times a power of two.

  Blocks on the diagonal are inverted by substitution. Two of them then give the inverse of a block of twice the size:
  (L 0; B R)^-1 = (L^-1 0; -R^-1 B L^-1 R^-1). Powers of A would cancel: of equal keys they leave nothing of float32.
  """
  C = int(A.shape[-1])
  X = _substituted(_diagonal(A, b := min(BLOCK, C))).contiguous()  # (.., C / b, b, b)
  while b < C:
    left, right = (X.reshape(*A.shape[:-2], C // (2 * b), 2, b, b)[..., i, :, :] for i in range(2))
    corner = -(right @ _diagonal(A, 2 * b)[..., b:, :b] @ left)
    X = left.cat(left.zeros_like(), dim=-1).cat(corner.cat(right, dim=-1), dim=-2).contiguous()
    b *= 2
  return X.squeeze(-3)

def _substituted(A: Tensor) -> Tensor:
  """The inverses of I + A for a few rows, by forward substitution; without a loop, all rows stay in registers."""
  n, rows = A.shape[-1], list[Tensor]()
  for i in range(n):
    unit = (Tensor.arange(n) == i).cast(A.dtype).expand(*A.shape[:-2], n)
    rows.append(functools.reduce(Tensor.__sub__, [A[..., i, j:j + 1] * row for j, row in enumerate(rows)], unit))
  return Tensor.stack(*rows, dim=-2)

def _diagonal(A: Tensor, b: int) -> Tensor:
  """The blocks b x b on the diagonal of A (.., C, C) -> (.., C / b, b, b)."""
  rest, n = A.shape[:-2], A.shape[-1] // b
  blocks = A.reshape(*rest, n, b, n, b).transpose(-3, -2).reshape(*rest, n * n, b, b)
  every = (None,) * len(rest)
  return blocks.pad_to(*every, n * (n + 1), b, b).reshape(*rest, n, n + 1, b, b)[..., 0, :, :]
