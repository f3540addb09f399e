"""The causal short convolution of recurrent layers: each channel by itself, over the last few tokens."""
from __future__ import annotations
import functools
from tinygrad import Tensor, UOp

def short_conv(x: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None = None, length: int | UOp | None = None
               ) -> tuple[Tensor, Tensor]:
  """
  x (B, N, channels), weight (channels, taps), bias (channels,) -> y (B, N, channels), the rows for what comes next.

  rows (B, taps - 1, channels): the inputs before x. The last tap is the token's own.
  length: how many rows of x are tokens, which may be symbolic; None: all N. The others are padding.
  """
  taps, N = weight.shape[-1], x.shape[1]
  inputs = rows.cat(x, dim=1)  # (B, taps - 1 + N, channels)
  y = functools.reduce(Tensor.__add__, [inputs[:, tap:tap + N] * weight[:, tap] for tap in range(taps)])
  first = N if length is None else length
  return y if bias is None else y + bias, inputs[:, first:first + (taps - 1)]
