"""Builds a tensor expression's graph once for each shape, instead of by hundreds of Tensor operations every time."""
from __future__ import annotations
import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec
from tinygrad import Tensor, UOp
from tinygrad.dtype import DType

P = ParamSpec("P")
SLOT = 1 << 20  # parameter slot of the placeholder tensor: no graph has so many

def made_once(make: Callable[Concatenate[Tensor, P], Tensor]) -> Callable[Concatenate[Tensor, P], Tensor]:
  """
  Decorator: builds the graph of `make` once for each shape, dtype, device and arguments.

  Later calls substitute their tensor into that graph. `make` takes a tensor and hashable positional arguments. It may
  depend on nothing else: neither on the environment nor on the tensor's contents.
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
