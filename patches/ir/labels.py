"""Labels of lowered kernels, kept in the SINK's tag: (the schedule's author, node counts after lowering steps ..)."""
from __future__ import annotations
from collections.abc import Sequence
from typing import Any
from tinygrad.uop.ops import KernelInfo, UOp

Label = tuple[Any, ...]

def label(sink: UOp) -> Label|None:
  """The label of a kernel; None without patches, or with an ISA renderer, whose tags are registers."""
  return sink.tag if isinstance(sink.tag, tuple) else None

def labelled(sink: UOp, schedule: str, nodes: Sequence[int]) -> UOp:
  """Adds a label. schedule: who chose the loops; nodes: the graph's size after each step that counts it."""
  return sink.replace(tag=(schedule, *nodes))

def renamed(sink: UOp, schedule: str) -> UOp:
  """Changes the schedule's author. Kernels without a label stay as they are."""
  return sink if (found := label(sink)) is None else labelled(sink, schedule, found[1:])

def joined(stages: Sequence[UOp]) -> Label|None:
  """The label of a kernel of several stages: all schedules, and the sums of node counts; None if a stage has none."""
  labels = [found for stage in stages if (found := label(stage)) is not None]
  if len(labels) != len(stages): return None
  return "+".join(dict.fromkeys(name for name, *_ in labels)), *map(sum, zip(*(nodes for _, *nodes in labels)))

def of_stages(kind: str, stages: Sequence[UOp], ends: Sequence[UOp]) -> UOp:
  """
  The kernel of lowered stages, named by its kind, their number and the longest name.

  ends: the sources of its SINK, that is, the effects of all stages.
  """
  infos = [stage.arg for stage in stages]
  info = KernelInfo(f"{kind}{len(stages)}_{max(infos, key=lambda info: len(info.name)).name}",
                    applied_opts=tuple(o for info in infos for o in info.applied_opts))
  return UOp.sink(*ends, arg=info).replace(tag=joined(stages))
