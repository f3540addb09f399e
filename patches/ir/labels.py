"""What a lowered kernel says of itself, by its SINK's tag: (who chose its schedule, nodes on the way, ..)."""
from __future__ import annotations
from collections.abc import Sequence
from typing import Any
from tinygrad.uop.ops import KernelInfo, UOp

Label = tuple[Any, ...]

def label(sink: UOp) -> Label|None:
  """None: it has no label, as without patches, or where tags are registers."""
  return sink.tag if isinstance(sink.tag, tuple) else None

def labelled(sink: UOp, schedule: str, nodes: Sequence[int]) -> UOp:
  """nodes: how many the kernel had after each step that counts them."""
  return sink.replace(tag=(schedule, *nodes))

def renamed(sink: UOp, schedule: str) -> UOp:
  """Another one chose. Kernels without a label stay as they are."""
  return sink if (found := label(sink)) is None else labelled(sink, schedule, found[1:])

def joined(stages: Sequence[UOp]) -> Label|None:
  """The label of a kernel of several stages: all schedules, the nodes added up; None if a stage has none."""
  labels = [found for stage in stages if (found := label(stage)) is not None]
  if len(labels) != len(stages): return None
  return "+".join(dict.fromkeys(name for name, *_ in labels)), *map(sum, zip(*(nodes for _, *nodes in labels)))

def of_stages(kind: str, stages: Sequence[UOp], ends: Sequence[UOp]) -> UOp:
  """The kernel of lowered stages, named by its kind, their number and the longest name; ends: what they do together."""
  infos = [stage.arg for stage in stages]
  info = KernelInfo(f"{kind}{len(stages)}_{max(infos, key=lambda info: len(info.name)).name}",
                    applied_opts=tuple(o for info in infos for o in info.applied_opts))
  return UOp.sink(*ends, arg=info).replace(tag=joined(stages))
