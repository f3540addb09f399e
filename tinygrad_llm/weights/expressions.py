"""Expressions of a tensor that are made once for each shape, not by hundreds of operations on tensors each time."""
from __future__ import annotations
import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec
from tinygrad import Tensor, UOp
from tinygrad.dtype import DType

P = ParamSpec("P")
SLOT = 1 << 20  # of the tensor that stands for any: no graph has so many

def made_once(make: Callable[Concatenate[Tensor, P], Tensor]) -> Callable[Concatenate[Tensor, P], Tensor]:
  """
  A function of a tensor, and of what can be hashed, whose graph is made once for each shape, dtype and device, and put
  on each tensor then. It may not depend on anything else: not on the environment, nor on what the tensor holds.
  """
  @functools.lru_cache(256)
  def graph(shape: tuple[Any, ...], dtype: DType, device: Any, args: tuple[Any, ...]) -> tuple[UOp, UOp]:
    own = UOp.param(SLOT, dtype, shape, device)
    return own, make(Tensor(own), *args).uop  # type: ignore[call-arg]
  @functools.wraps(make)
  def of(x: Tensor, *args: P.args, **options: P.kwargs) -> Tensor:
    assert not options, "by position"
    own, made = graph(x.shape, x.dtype, x.device, args)
    return Tensor(made.substitute({own: x.uop}, walk=True))
  return of
