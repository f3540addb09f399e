"""A step as the compiled kernels that it calls, and what can be read off each."""
from __future__ import annotations
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from tinygrad import Tensor, UOp
from tinygrad.codegen import to_program_cache
from tinygrad.engine import realize
from tinygrad.engine.realize import capturing, estimate_uop, get_call_arg_uops, pm_beam
from tinygrad.helpers import BEAM, Context, ansistrip, flatten, getenv
from tinygrad.nn.state import get_parameters
from tinygrad.uop.ops import Ops, graph_rewrite, sym_infer
from tinygrad_llm.target import resources
from tinygrad_llm.weight import Weight

class _Schedules:
  """Takes the schedules that tinygrad would run."""
  def __init__(self) -> None:
    self.linears: list[UOp] = []
    self.variables: dict[str, int] = {}

  def add_linear(self, linear: UOp, var_vals: dict[str, int]) -> None:
    self.linears.append(linear)
    self.variables |= var_vals

def capture(function: Callable[..., Any], *inputs: Tensor | UOp) -> tuple[UOp, dict[str, int]]:
  """
  The compiled linear schedule of what function(*inputs) returns, and the values of its variables. Nothing runs.

  Its kernels are those of a TinyJit of the function; its memory is not planned, its calls are not made into graphs.
  """
  capturing.append(schedules := _Schedules())
  try: Tensor.realize(*get_parameters(function(*inputs)))
  finally: capturing.clear()
  linear = UOp(Ops.LINEAR, src=tuple(flatten(x.src for x in schedules.linears)))
  if beam := getenv("JITBEAM", BEAM.value): linear = graph_rewrite(linear, pm_beam, ctx=beam, walk=True)
  with _from_scratch(): return realize.lower_and_compile(linear), schedules.variables

_lowered: dict[tuple, UOp] = {}

@contextmanager
def _from_scratch() -> Iterator[None]:
  """Kernels are lowered in here, unless that was done in here: others, known from a cache, may lack instructions."""
  kept = dict(to_program_cache)
  def known(programs: dict[tuple, UOp]) -> None:
    to_program_cache.clear()
    to_program_cache.update(programs)
  known(_lowered)
  try:
    with Context(CCACHE=0): yield
  finally:
    _lowered.update(to_program_cache)
    known(kept)

def programs(linear: UOp, variables: dict[str, int], weights: Sequence[Weight], caches: Sequence[Tensor]
             ) -> list[Program]:
  """The kernels that a schedule calls, in order."""
  owners = {w.stored.uop.base: w for w in weights}
  kv = {cache.uop.base for cache in caches}
  return [Program(call, variables, owners, kv) for call in linear.src if call.src[0].op is Ops.PROGRAM]

class Program:
  """
  A call of a compiled kernel.

  variables: what its sizes and estimates depend on; weights: by the buffer that holds them; caches: buffers.
  """
  def __init__(self, call: UOp, variables: dict[str, int], weights: dict[UOp, Weight], caches: set[UOp]):
    sink, self.linear, source = call.src[0].src[:3]
    self.program, self.variables, self.source, self.opts = call.src[0], variables, source.arg, sink.arg.applied_opts
    self.estimates, self.info = estimate_uop(call), call.src[0].arg
    bases = [next((u for u in arg.toposort() if u.op is Ops.BUFFER), arg) for arg in get_call_arg_uops(call)]
    read = {slot: weights[bases[slot]] for slot in self.info.ins if bases[slot] in weights}
    kv = {slot for slot in (*self.info.ins, *self.info.outs) if bases[slot] in caches}
    self.types = tuple(dict.fromkeys(w.qtype.name for w in read.values()))
    self.role = role(name for w in read.values() for name in w.names) or ("kv" if kv else "act")
    self.load_bytes = load_width(self.linear.src, set(read) or kv)

  @property
  def name(self) -> str:
    """By the sizes of its loops."""
    return ansistrip(self.info.name)

  def row(self) -> dict[str, Any]:
    """What the command prints of it."""
    sizes = self.info.launch_dims(self.variables)
    registers, stack = resources(self.program.src[-1].arg)
    return {
      "role": self.role, "bytes": int(sym_infer(self.estimates.mem, self.variables)),
      "ops": int(sym_infer(self.estimates.ops, self.variables)), "name": self.name, "types": self.types,
      "opts": [f"{opt.op.name}:{opt.axis}:{opt.arg}" for opt in self.opts], "global_size": sizes[0],
      "local_size": sizes[1], "registers": registers, "stack": stack, "load_bytes": self.load_bytes}

def role(names: Iterable[str]) -> str:
  """
  blk.3.attn_q.weight, blk.3.attn_k.weight -> blk.*.attn_q+attn_k

  Those outside of layers come first: token_embd+blk.*.attn_norm.
  """
  short = dict.fromkeys(re.sub(r"^blk\.\d+\.", "blk.*.", name).removesuffix(".weight") for name in names)
  layer = [name.removeprefix("blk.*.") for name in short if name.startswith("blk.*.")]
  rest = [name for name in short if not name.startswith("blk.*.")]
  return "+".join([*rest, *(["blk.*." + "+".join(layer)] if layer else [])])

def load_width(uops: Iterable[UOp], slots: set[int]) -> int | None:
  """In what width, in bytes, a kernel loads most bytes of the arguments `slots`; None if it loads none of them."""
  moved, trips = Counter[int](), [1]
  for u in uops:
    if u.op is Ops.RANGE: trips.append(trips[-1] * (int(u.vmax) + 1))
    elif u.op is Ops.END: trips.pop()
    elif u.op is Ops.LOAD and _argument(u) in slots:
      width = u.max_numel() * u.dtype.itemsize
      moved[width] += width * trips[-1]
  return moved.most_common(1)[0][0] if moved else None

def _argument(load: UOp) -> int | None:
  """The slot of the argument that a load reads, None if it reads memory of the kernel's own."""
  while load.op is not Ops.PARAM and load.src: load = load.src[0]
  return load.arg.slot if load.op is Ops.PARAM else None
