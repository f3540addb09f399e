"""A step's compiled kernels, and the properties that can be read off each one."""
from __future__ import annotations
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple
from tinygrad import Tensor, UOp, codegen
from tinygrad.codegen import to_program_cache
from tinygrad.engine import realize
from tinygrad.engine.realize import estimate_uop, get_call_arg_uops
from tinygrad.helpers import Context, ansistrip
from tinygrad.uop.ops import Ops, sym_infer
from tinygrad_llm.analysis.live_values import most_alive
from tinygrad_llm.device.captured import scheduled
from tinygrad_llm.device.cuda import resources, sass
from tinygrad_llm.patches.ir.labels import label
from tinygrad_llm.patches.search.cost import cost_model
from tinygrad_llm.patches.search.cost.hardware import CPU, GPU
from tinygrad_llm.patches.search.cost.instructions import serial_steps
from tinygrad_llm.patches.search.cost.memory_access import Access, accesses, local_size

def compiled(linear: UOp) -> UOp:
  """The schedule with its kernels lowered and compiled here, without any cache."""
  with from_scratch(): return realize.lower_and_compile(linear)

def capture(function: Callable[..., Any], *inputs: Tensor | UOp) -> tuple[UOp, dict[str, int]]:
  """The compiled linear schedule of function(*inputs)'s result, and the values of its variables. Nothing runs."""
  linear, variables = scheduled(function, *inputs)
  return compiled(linear), variables

_lowered: dict[tuple, UOp] = {}

@contextmanager
def from_scratch(known_here: bool = True) -> Iterator[None]:
  """
  Inside, kernels are lowered anew: those from a cache may lack instructions.

  A kernel that was lowered inside before is not lowered again, unless known_here is False.
  """
  kept = dict(to_program_cache)
  def known(programs: dict[tuple, UOp]) -> None:
    to_program_cache.clear()
    to_program_cache.update(programs)
  known(_lowered if known_here else {})
  try:
    with Context(CCACHE=0): yield
  finally:
    _lowered.update(to_program_cache)
    known(kept)

def programs(linear: UOp, variables: dict[str, int], weights: Mapping[UOp, Rows], caches: Sequence[Tensor]
             ) -> list[Program]:
  """The kernels that a schedule calls, in order. caches: tensors of the KV cache; for the rest see Program."""
  kv = {cache.uop.base for cache in caches}
  return [Program(call, variables, weights, kv) for call in linear.src if call.src[0].op is Ops.PROGRAM]

def lowered(call: UOp) -> UOp:
  """A schedule's call with its kernel lowered and compiled anew in this process."""
  found = realize._get_call_to_compile(call)
  assert found is not None
  with from_scratch(known_here=False): return call.replace(src=(codegen.to_program(*found), *call.src[1:]))

class Rows(NamedTuple):
  """The contents of a weight buffer: the quantised type, and the names of the file's tensors, in order."""
  type: str
  names: tuple[str, ...]

class Reads(NamedTuple):
  """The weights and KV caches among a kernel's arguments, by argument index."""
  weights: dict[int, Rows]
  caches: set[int]

  @classmethod
  def of(cls, call: UOp, weights: Mapping[UOp, Rows], caches: set[UOp], slots: Iterable[int] | None = None) -> Reads:
    """The weights and caches of a call. slots: indices of the arguments that its kernel uses (default: all)."""
    bases = [next((u for u in arg.toposort() if u.op is Ops.BUFFER), arg) for arg in get_call_arg_uops(call)]
    used = range(len(bases)) if slots is None else slots
    return cls({i: weights[bases[i]] for i in used if bases[i] in weights}, {i for i in used if bases[i] in caches})

  @property
  def types(self) -> tuple[str, ...]: return tuple(dict.fromkeys(w.type for w in self.weights.values()))

  @property
  def role(self) -> str:
    return role(name for w in self.weights.values() for name in w.names) or ("kv" if self.caches else "act")

class Program:
  """
  A call of a compiled kernel.

  - part: its part of the step, once roles.py has set it.
  - variables: values of the variables in its sizes and estimates.
  - weights: by the buffer that holds them. caches: buffers of the KV cache.
  - schedule: name of the pass that chose its schedule (patches/hooks.py).
  - nodes: size of its graph once scheduled, once the loops are expanded, and in the end.
  - live: the most bytes of vectors that are live at once; None on GPUs, whose compilers report registers.
  """
  def __init__(self, call: UOp, variables: dict[str, int], weights: Mapping[UOp, Rows], caches: set[UOp]):
    self.call, self.part = call, ""
    sink, self.linear, source = call.src[0].src[:3]
    self.program, self.variables, self.source, self.opts = call.src[0], variables, source.arg, sink.arg.applied_opts
    self.estimates, self.info = estimate_uop(call), call.src[0].arg
    reads = Reads.of(call, weights, caches, (*self.info.ins, *self.info.outs))
    read, kv, self.types, self.role = reads.weights, reads.caches, reads.types, reads.role
    self.load_bytes = load_width(self.linear.src, set(read) or kv)
    self.schedule, *nodes = label(sink) or (None,)
    self.nodes = [*nodes, len(self.linear.src)] if nodes else None

  @property
  def live(self) -> int | None: return _live(self.linear) if str(self.call.src[1].device).startswith("CPU") else None

  @property
  def name(self) -> str:
    """tinygrad's name for the kernel, made of the sizes of its loops."""
    return ansistrip(self.info.name)

  def row(self) -> dict[str, Any]:
    """The fields that the command `kernels` prints."""
    sizes = self.info.launch_dims(self.variables)
    registers, stack = resources(self.program.src[-1].arg)
    return {
      "role": self.role, "part": self.part, "bytes": self.nbytes,
      "ops": int(sym_infer(self.estimates.ops, self.variables)), "name": self.name,
      "types": self.types, "schedule": self.schedule,
      "opts": [f"{opt.op.name}:{opt.axis}:{opt.arg}" for opt in self.opts],
      "global_size": sizes[0], "local_size": sizes[1], "serial": serial_steps(self.linear.src, self.variables),
      "registers": registers, "stack": stack, "load_bytes": self.load_bytes,
      "lines": _lines(self.linear, *self.variables.items()), "nodes": self.nodes, "live": self.live}

  @property
  def nbytes(self) -> int:
    """Bytes that the kernel moves, by tinygrad's estimate."""
    return int(sym_infer(self.estimates.mem, self.variables))

  def estimate(self, card: GPU | CPU) -> cost_model.Estimate:
    """The cost model's estimate of the kernel's time on a card."""
    binary = self.program.src[-1].arg
    (registers, _), code = resources(binary), sass(binary)
    return cost_model.estimate(cost_model.work(self.linear.src, self.nbytes, self.variables, registers, code), card)

@cache
def _live(linear: UOp) -> int: return most_alive(linear.src)

@cache
def _lines(linear: UOp, *variables: tuple[str, int]) -> list[float | None] | None:
  """
  Cache lines that a warp's load touches, on average: for the largest loaded argument, and for all others.

  None where there are no warps.
  """
  if local_size(linear.src, at := dict(variables)) == 1: return None
  loads = [a for a in accesses(linear.src, at) if not a.store]
  sizes = {u.arg.slot: u.max_numel() * u.dtype.itemsize for u in linear.src if u.op is Ops.PARAM}
  largest = max((a.slot for a in loads), key=lambda slot: (sizes[slot], slot), default=None)
  return [_mean_lines([a for a in loads if (a.slot == largest) is main]) for main in (True, False)]

def _mean_lines(loads: Sequence[Access]) -> float | None:
  trips = sum(a.trips for a in loads)
  return round(sum(a.lines * a.trips for a in loads) / trips, 2) if trips else None

def role(names: Iterable[str]) -> str:
  """
  blk.3.attn_q.weight, blk.3.attn_k.weight -> blk.*.attn_q+attn_k

  Tensors outside of layers come first: token_embd+blk.*.attn_norm.
  """
  short = dict.fromkeys(re.sub(r"^blk\.\d+\.", "blk.*.", name).removesuffix(".weight") for name in names)
  layer = [name.removeprefix("blk.*.") for name in short if name.startswith("blk.*.")]
  rest = [name for name in short if not name.startswith("blk.*.")]
  return "+".join([*rest, *(["blk.*." + "+".join(layer)] if layer else [])])

def load_width(uops: Iterable[UOp], slots: set[int]) -> int | None:
  """The load width, in bytes, that moves most bytes of the arguments `slots`; None if none of them is loaded."""
  moved, trips = Counter[int](), [1]
  for u in uops:
    if u.op is Ops.RANGE: trips.append(trips[-1] * (int(u.vmax) + 1))
    elif u.op is Ops.END: trips.pop()
    elif u.op is Ops.LOAD and _argument(u) in slots:
      width = u.max_numel() * u.dtype.itemsize
      moved[width] += width * trips[-1]
  return moved.most_common(1)[0][0] if moved else None

def _argument(load: UOp) -> int | None:
  """The slot of the argument that a load reads; None if it reads the kernel's own memory."""
  while load.op is not Ops.PARAM and load.src: load = load.src[0]
  return load.arg.slot if load.op is Ops.PARAM else None
