"""What a lowered kernel says of itself, by its SINK's tag: (who chose its schedule, nodes on the way, ..)."""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad.uop.ops import UOp

Label = tuple[str | int, ...]

def labelled(sink: UOp, schedule: str, nodes: Sequence[int]) -> UOp:
  """nodes: how many the kernel had after each step that counts them."""
  return sink.replace(tag=(schedule, *nodes))

def renamed(sink: UOp, schedule: str) -> UOp:
  """Another one chose. Kernels without a label, as those whose tags are registers, stay as they are."""
  return sink.replace(tag=(schedule, *sink.tag[1:])) if isinstance(sink.tag, tuple) else sink

def joined(stages: Sequence[UOp]) -> Label|None:
  """The label of a kernel of several stages: all schedules, the nodes added up; None if a stage has none."""
  labels = [stage.tag for stage in stages if isinstance(stage.tag, tuple)]
  if len(labels) != len(stages): return None
  names = dict.fromkeys(str(name) for name, *_ in labels)
  return "+".join(names), *map(sum, zip(*(nodes for _, *nodes in labels)))
