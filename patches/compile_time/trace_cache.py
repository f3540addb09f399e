"""
Trace cache: a function of tensors is traced once for arguments that are alike.

Why: a model's layers are calls of one tinygrad.function, which schedules calls with the same graph once. But it traces
  each call to see that the graph is the same: two thirds of the seconds until a step of 16 layers is scheduled.
How: the key holds all that a trace depends on. These are the function, a description of its arguments
  (captures.Description), the parameters that stand for their tensors, and the settings that kernels depend on. For a
  known key, the body of its trace is called with the new tensors. A trace that found tensors beyond its arguments,
  except values of variables, is not kept. The cache holds the KEPT traces used last.
Numbers: CPU seconds until the steps of a prompt of a 1B model, 16 layers, are scheduled 5.3 -> 2.5 (2-core AMD EPYC)
Upstream: not sent; function would have to ask its user what else a trace depends on.
"""
from __future__ import annotations
import importlib
from collections.abc import Callable
from typing import Any
from tinygrad import Device, Tensor
from tinygrad.helpers import dedup
from tinygrad.nn.state import get_state_dict
from tinygrad.uop.ops import UOp
from tinygrad_llm.patches import places
from tinygrad_llm.patches.cache import disk_cache
from tinygrad_llm.patches.cache.captures import Description, Unknown

SEAMS = {
  "tinygrad.function:_function": "3aa3fffe128c",
  "tinygrad.uop.ops:UOp.param_like": "5fd811d67853",
  "tinygrad.nn.state:get_state_dict": "00155faac0e1",
}

KEPT = 16
_function = importlib.import_module("tinygrad.function")._function  # plain tinygrad.function is a class in it
_call: Callable[..., Any]
traces: dict[tuple|None, UOp] = {}  # {key: first call's result, which holds its tensors}; any thread may clear it

class Arguments(Description):
  """
  Arguments as text, with a place for each tensor. others: nodes that are no tensor of a device, such as variables.
  """
  def __init__(self, places: dict[UOp, int]):
    super().__init__()
    self.places, self.others = places, dict[UOp, None]()

  def uop(self, u: UOp) -> str:
    if (place := self.places.get(u)) is not None: return f"place {place}"
    self.others.setdefault(u)
    return f"other {list(self.others).index(u)}"

def _key(self: Any, args: tuple, kwargs: dict[str, Any], uops: list[UOp]) -> tuple | None:
  described = Arguments({u: i for i, u in enumerate(uops)})
  try: text = described.text((args, sorted(kwargs.items())))
  except Unknown: return None
  seen = tuple((u.param_like(i), u.op, u.base.op) for i, u in enumerate(uops))
  renderer = Device[Device.DEFAULT].renderer
  return (self.fxn, text, *described.others, seen, Device.DEFAULT, type(renderer), renderer.target,
          disk_cache.surroundings())

def call(self: Any, *args: Any, **kwargs: Any) -> Any:
  found = get_state_dict((args, kwargs), tensor_type=(Tensor, UOp)).values()
  uops = dedup([u for t in found if (u := t._uop).device is not None])
  if (key := _key(self, args, kwargs, uops)) is None: return _call(self, *args, **kwargs)
  if (known := traces.get(key)) is not None:
    traces.pop(key, None)
    traces[key] = known  # dropped last
    body, *bound = known.src[0].src[:1] + known.src[0].src[1 + len(uops):]
    return Tensor(known.replace(src=(known.src[0].replace(src=(body, *uops, *bound)),)))
  ret = _call(self, *args, **kwargs)
  if isinstance(ret, Tensor) and all(u.is_bound_var for u in ret.uop.src[0].src[1 + len(uops):]):
    traces[key] = ret.uop
    if len(traces) > KEPT: traces.pop(next(iter(traces), None), None)
  return ret

def install() -> None:
  global _call
  _call = places.wrap(_function, "__call__", call)
