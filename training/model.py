"""The llama network that train.py trains: RMS norms, interleaved rotary embeddings, grouped-query attention, SwiGLU."""
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
  """Sizes of the network. Every matrix has an input size that is a multiple of 256, as Q4_K and Q6_K require."""
  vocab: int = 4096
  dim: int = 256
  ffn: int = 768
  layers: int = 5
  heads: int = 4
  kv_heads: int = 2
  context: int = 512
  rope_base: float = 500000.0
  eps: float = 1e-5

  @property
  def head_dim(self) -> int:
    return self.dim // self.heads


def rotary(shape: Shape) -> tuple[Tensor, Tensor]:
  """cos and sin, each (context, head_dim/2), of the angle position * base^(-2i/head_dim) of the pair (2i, 2i+1)."""
  rate = shape.rope_base ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
  angle = torch.arange(shape.context).float()[:, None] * rate
  return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
  """Turns each pair of neighbours (2i, 2i+1) of x (batch, heads, time, head_dim) by its angle."""
  even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
  return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


class Block(nn.Module):
  """One layer: attention and feed-forward, each with a norm before it and added to the residual stream."""

  def __init__(self, shape: Shape) -> None:
    super().__init__()
    self.shape = shape
    kv = shape.kv_heads * shape.head_dim
    self.attn_norm = nn.RMSNorm(shape.dim, shape.eps)
    self.attn_q = nn.Linear(shape.dim, shape.dim, bias=False)
    self.attn_k = nn.Linear(shape.dim, kv, bias=False)
    self.attn_v = nn.Linear(shape.dim, kv, bias=False)
    self.attn_output = nn.Linear(shape.dim, shape.dim, bias=False)
    self.ffn_norm = nn.RMSNorm(shape.dim, shape.eps)
    self.ffn_gate = nn.Linear(shape.dim, shape.ffn, bias=False)
    self.ffn_up = nn.Linear(shape.dim, shape.ffn, bias=False)
    self.ffn_down = nn.Linear(shape.ffn, shape.dim, bias=False)

  def forward(self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    batch, time, _ = x.shape
    h = self.attn_norm(x)
    q, k, v = (layer(h).view(batch, time, -1, self.shape.head_dim).transpose(1, 2)
               for layer in (self.attn_q, self.attn_k, self.attn_v))
    group = self.shape.heads // self.shape.kv_heads
    k = rotate(k, cos, sin).repeat_interleave(group, 1)
    out = F.scaled_dot_product_attention(rotate(q, cos, sin), k, v.repeat_interleave(group, 1), attn_mask=mask)
    x = x + self.attn_output(out.transpose(1, 2).reshape(batch, time, -1))
    h = self.ffn_norm(x)
    return x + self.ffn_down(F.silu(self.ffn_gate(h)) * self.ffn_up(h))


class Llama(nn.Module):
  """The network. The output matrix is the token table (tied)."""

  def __init__(self, shape: Shape) -> None:
    super().__init__()
    self.shape = shape
    self.token_embd = nn.Embedding(shape.vocab, shape.dim)
    self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
    self.output_norm = nn.RMSNorm(shape.dim, shape.eps)
    cos, sin = rotary(shape)
    self.register_buffer("cos", cos, persistent=False)
    self.register_buffer("sin", sin, persistent=False)
    for name, p in self.named_parameters():
      if name == "token_embd.weight":
        nn.init.normal_(p, std=1.0)
      elif name.endswith(("attn_output.weight", "ffn_down.weight")):
        nn.init.zeros_(p)
      elif p.ndim == 2:
        nn.init.normal_(p, std=0.7 * p.shape[1] ** -0.5)
    self.begin_with_copying()
    nn.init.constant_(self.output_norm.weight, 0.015)

  @torch.no_grad()
  def begin_with_copying(self) -> None:
    """
    Initialises rough induction heads (Olsson et al. 2022, https://arxiv.org/abs/2209.11895).

    A network of this size learns to copy a topic or a name from the question last, if at all. So it gets the circuit
    and learns when to use it. A head of layer 0 writes the previous token into each position. In later layers, one
    head of each group looks for positions whose previous token is the current one, and copies the token there.
    """
    shape, size = self.shape, self.shape.head_dim
    group = shape.heads // shape.kv_heads

    def directions() -> Tensor:
      """Orthonormal rows, (head_dim, dim)."""
      return torch.linalg.qr(torch.randn(shape.dim, size))[0].t()

    self.token_embd.weight[:, 0] = 3.0  # the same in every token: a head that reads only this attends by position
    seen, written = directions(), directions()
    seen[:, 0] = 0
    rate = shape.rope_base ** (-torch.arange(0, size, 2).float() / size)
    fast = 2.5 * (torch.arange(size // 2) < 16).float()  # the pairs that tell neighbouring positions apart
    first = self.blk[0]
    first.attn_q.weight[:size], first.attn_k.weight[:size] = 0, 0
    first.attn_q.weight[:size, 0] = torch.stack((fast, torch.zeros_like(fast)), -1).flatten()
    first.attn_k.weight[:size, 0] = torch.stack((fast * rate.cos(), fast * rate.sin()), -1).flatten()  # one step back
    first.attn_v.weight[:size] = seen
    first.attn_output.weight[:, :size] = 1.5 * written.t()
    slow = 3.5 * (rate < 2e-3).repeat_interleave(2).float()[:, None]  # the pairs that hardly turn with distance
    for block in self.blk[1:]:
      for kv in range(shape.kv_heads):
        query, key = slice(kv * group * size, (kv * group + 1) * size), slice(kv * size, (kv + 1) * size)
        copied = directions()
        block.attn_q.weight[query] = slow * seen
        block.attn_k.weight[key] = slow * written
        block.attn_v.weight[key] = copied
        block.attn_output.weight[:, query] = 2.0 * copied.t()

  def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
    """tokens (batch, time), mask (batch, 1, time, time), true where a token may attend -> hidden (batch, time, dim)."""
    x = self.token_embd(tokens)
    time = tokens.shape[1]
    for block in self.blk:
      x = block(x, mask, self.cos[:time], self.sin[:time])
    return self.output_norm(x)
