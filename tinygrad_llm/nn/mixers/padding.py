"""Padding of a chunk of tokens, whose number is symbolic, to a constant number of rows."""
from __future__ import annotations
from tinygrad import Tensor, UOp

def rows_for(T: int | UOp, C: int) -> int:
  """The smallest multiple of C that T never exceeds."""
  most = int(T.vmax) if isinstance(T, UOp) else T
  return -(-most // C) * C

def padded(x: Tensor, N: int) -> Tensor:
  """x (B, T, ..) -> (B, N, ..), with zeros after the T rows."""
  return x.pad_to(None, N, *(None,) * (x.ndim - 2))
