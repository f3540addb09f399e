"""
Small kernels that follow each other are one: a launch for a chain of them, stage by stage.

Why: routing to experts is seven kernels of a few hundred elements, a norm is two: each costs a launch, on a GPU a few
  microseconds, which is more than it computes for.
How: kernels of little work, and of sizes that are known, become the stages of one, where nothing between them depends
  on it. Each is lowered by itself, then a stage begins where the one before has stored all. On a GPU all is done by one
  group of threads, which waits between stages; on a CPU by one thread.
Rewrite:
  launch a; launch b; launch c, each a few hundred elements
  --> launch (a; barrier; b; barrier; c) with one group of threads
Numbers: kernels of a decode step, on CPU and for sm_90: qwen3moe, 2 layers, 62 -> 41 and 53 -> 37; its decode on the
  CPU 98 -> 101 tok/s (AMD EPYC with AVX-512, 2 threads, medians of 4 rounds in turns)
Upstream: not sent; it wants an answer to which kernels are small on a device, which BEAM could time.
"""
from __future__ import annotations
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from tinygrad import Device, codegen, schedule
from tinygrad.codegen.opt import KernelOptError, Opt, OptOps
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import AddrSpace, dtypes
from tinygrad.helpers import NOOPT, dedup, prod
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import MetalRenderer, OpenCLRenderer
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, PatternMatcher, UOp, UPat
from tinygrad_llm.patches import hooks, places
from tinygrad_llm.patches.ir import labels
from tinygrad_llm.patches.ir.targets import has_vectors
from tinygrad_llm.patches.isa.shuffle_reduce import exchanges
from tinygrad_llm.patches.schedule.choose import choosers
from tinygrad_llm.patches.schedule.cpu_threads import WORK

SEAMS = {
  "tinygrad.schedule:create_schedule": "6d62571e1f8d",
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
}

THREADS, GROUP = 256, 32  # of the group; of those, for one sum, if they share memory: else all
STEPS = 1 << 18           # of a stage at most, where it reads less than this: a GPU, a CPU
GPU_BYTES, CPU_BYTES = 1 << 16, 1 << 14
# their barriers are for buffers, too
GPUS = {"CUDARenderer", "HIPRenderer", "MetalRenderer", "OpenCLRenderer", "PTXRenderer"}
BUFFERS = 24              # of a kernel: Metal has 31
APART = 1 << 16           # between the numbers of the loops and buffers of two stages

# what they were before this patch
_create_schedule: Callable[[UOp], UOp]
_full_rewrite_to_sink: Callable[..., UOp]

# *** which

@dataclass
class Chain:
  """Calls that are one kernel, if `small`. uses, writes: their buffers."""
  calls: list[UOp]
  uses: set[UOp]
  writes: set[UOp]
  small: bool

  def conflicts(self, other: Chain) -> bool:
    return bool(self.writes & other.uses or self.uses & other.writes)

  def add(self, other: Chain) -> None:
    self.calls += other.calls
    self.uses |= other.uses
    self.writes |= other.writes

def _buffers(args: Iterable[UOp]) -> set[UOp]:
  """Those of several devices each."""
  return {u for b in args for u in b.toposort() if u.op in (Ops.BUFFER, Ops.PARAM)}

def _params(ast: UOp) -> list[UOp]: return [u for u in ast.toposort() if u.op is Ops.PARAM]

def _is_small(call: UOp) -> bool:
  ast, buffers = call.src[0], call.src[1:]
  if ast.op is not Ops.SINK or not isinstance(ast.arg, KernelInfo) or ast.arg.opts_to_apply is not None: return False
  if ast.tag is not None or len({b.device for b in buffers}) != 1: return False
  if not isinstance(device := buffers[0].device, str): return False
  ops = ast.toposort()
  if any(u.op in (Ops.CUSTOM, Ops.CUSTOMI, Ops.SPECIAL, Ops.WMMA, Ops.BARRIER, Ops.STAGE) for u in ops): return False
  if any(u.op is Ops.PARAM and u.addrspace is not AddrSpace.GLOBAL or u.op is Ops.BUFFER for u in ops): return False
  loops = [u for u in ops if u.op is Ops.RANGE]
  if not all(r.src[0].op is Ops.CONST and r.arg[-1] in (AxisType.WEAK, AxisType.REDUCE) for r in loops): return False
  work, ren = prod(int(r.vmax) + 1 for r in loops), Device[device].renderer
  vectors = has_vectors(ren)
  if vectors and work < 2 * WORK: return True  # larger ones are shared by threads
  if not vectors and not any(kind.__name__ in GPUS for kind in type(ren).__mro__): return False
  read = sum(_read(u) for u in ops if u.op is Ops.INDEX)
  return work <= STEPS and read <= (CPU_BYTES if vectors else GPU_BYTES)

def _read(index: UOp) -> int:
  return prod(int(r.vmax) + 1 for r in {r for s in index.src[1:] for r in s.ranges}) * index.dtype.itemsize

def chain_of(call: UOp) -> Chain:
  ops = call.src[0].toposort() if call.src[0].op is Ops.SINK else {}
  slots = {u.src[0].buf_uop.arg.slot for u in ops if u.op is Ops.STORE and u.src[0].buf_uop.op is Ops.PARAM}
  writes = [b for i, b in enumerate(call.src[1:]) if not slots or i in slots]
  return Chain([call], _buffers(call.src[1:]), _buffers(writes), _is_small(call))

def fits(a: Chain, b: Chain) -> bool:
  """Whether two chains can be one: on one device, buffers are of the same type in both."""
  calls, kinds = a.calls + b.calls, dict[UOp, UOp]()
  for call in calls:
    for p in _params(call.src[0]):
      kind = p.replace(arg=replace(p.arg, slot=0))
      if kinds.setdefault(call.src[1 + p.arg.slot], kind) is not kind: return False
  return len({b.device for b in kinds}) == 1 and len(kinds) <= BUFFERS

def joined(chain: Chain) -> UOp:
  if len(chain.calls) == 1: return chain.calls[0]
  buffers = dedup([b for call in chain.calls for b in call.src[1:]])
  stages = [call.src[0].substitute({p: p.replace(arg=replace(p.arg, slot=buffers.index(call.src[1 + p.arg.slot])))
                                    for p in _params(call.src[0])}, walk=True) for call in chain.calls]
  return UOp.sink(*stages, arg=KernelInfo()).call(*buffers)

def create_schedule(sink: UOp) -> UOp:
  linear, chains = _create_schedule(sink), list[Chain]()
  if NOOPT: return linear
  for call in linear.src:
    new, home = chain_of(call), None
    for old in reversed(chains) if new.small else ():
      if old.small and fits(old, new): home = old
      if home is not None or old.conflicts(new): break
    if home is None: chains.append(new)
    else: home.add(new)
  return linear.replace(src=tuple(map(joined, chains)))

# *** how

def in_one_group(k: Scheduler) -> Scheduler:
  """Threads of one group share the outputs, or a sum; the rest are loops."""
  k, left = k.copy(), THREADS
  def share(op: OptOps, r: UOp, most: int) -> int:
    n = max(1 << i for i in range(most.bit_length()) if (int(r.vmax) + 1) % (1 << i) == 0)
    axes = k.axes_of(AxisType.REDUCE) if op is OptOps.GROUP else range(len(k.rngs))
    if n > 1: k.apply_opt(Opt(op, [k.rngs[a] for a in axes].index(r), n))
    return n
  for r in reversed(k.ranges_of(AxisType.GLOBAL)): left //= share(OptOps.LOCAL, r, left)
  if len(reds := k.reduceops) == 1 and left > 1 and not k.ranges_of(AxisType.GLOBAL):
    r = max(reds[0].src[1:], key=lambda r: r.vmax)
    try:
      n = share(OptOps.GROUP, r, min(left, GROUP))
      rest = r.replace(src=(r.src[0].const_like((int(r.vmax) + 1) // n),))
      if n == GROUP and exchanges(k.ren): share(OptOps.GROUP, rest, left // n)
    except KernelOptError: pass  # inside of another
  k.ast = k.ast.substitute({r: r.replace(arg=(*r.arg[:-1], AxisType.WEAK)) for r in k.ranges_of(AxisType.GLOBAL)})
  return k

def changed(stage: UOp, change: Callable[[UOp], UOp]) -> UOp:
  """With all nodes changed, from its leaves on."""
  made: dict[UOp, UOp] = {}
  for u in stage.toposort(): made[u] = change(u.replace(src=tuple(made[s] for s in u.src)))
  return made[stage]

def renumbered(stage: UOp, i: int) -> UOp:
  """With loops and buffers of its own."""
  def change(u: UOp) -> UOp:
    if u.op is Ops.RANGE: return u.replace(arg=(u.arg[0] + i * APART, *u.arg[1:]))
    return u.replace(arg=replace(u.arg, slot=u.arg.slot + i * APART)) if u.op is Ops.BUFFER else u
  return changed(stage, change)

def _threads(stage: UOp) -> dict[str, int]:
  """How many threads a stage has in each dimension, by its name: the first are neighbours."""
  return {u.arg: int(u.src[0].vmax) for u in sorted((u for u in stage.toposort() if u.op is Ops.SPECIAL),
                                                    key=lambda u: u.arg)}

def _of_one_row(stage: UOp, thread: UOp) -> UOp:
  """Its threads are those of a row; where that has more, several do the same."""
  below, places = 1, dict[str, UOp]()
  for name, size in _threads(stage).items():
    at = thread.alu(Ops.SHR, UOp.cconst(below.bit_length() - 1, dtypes.int)) if below > 1 else thread
    places[name] = at.alu(Ops.AND, UOp.cconst(size - 1, dtypes.int))
    below *= size
  return changed(stage, lambda u: places[u.arg] if u.op is Ops.SPECIAL else u)

def _after(stage: UOp, before: UOp) -> UOp:
  """A stage that begins when `before` is done."""
  def change(u: UOp) -> UOp:
    if u.op is Ops.PARAM: return u.after(before)
    return u.replace(src=(*u.src, before)) if u.op is Ops.RANGE else u
  return changed(stage, change)

def full_rewrite_to_sink(ast: UOp, ren: Renderer, optimize: bool = True) -> UOp:
  if not ast.src or any(s.op is not Ops.SINK for s in ast.src): return _full_rewrite_to_sink(ast, ren, optimize)
  with hooks.stages(): stages = [_full_rewrite_to_sink(stage, ren, optimize) for stage in ast.src]
  threads = max(prod(_threads(stage).values()) for stage in stages)
  row = UOp(Ops.SPECIAL, dtypes.int, (UOp.cconst(threads, dtypes.int),), "lidx0")
  done: list[UOp] = []
  before: UOp|None = None
  for i, stage in enumerate(stages):
    stage = renumbered(stage, i)
    if threads > 1: stage = _of_one_row(stage, row)
    if before is not None: stage = _after(stage, before)
    before = UOp(Ops.BARRIER, src=stage.src, tag=SHARED) if ren.has_local else UOp.group(*stage.src)
    done += stage.src
  return labels.of_stages("s", stages, done)

# what one thread of a group stored in a buffer is there for the others
SHARED = "buffers"
BARRIERS = {
  MetalRenderer: "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);",
  OpenCLRenderer: "barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);",
}

def choose(k: Scheduler) -> Scheduler|None:
  """A stage's loops on a GPU."""
  if not (hooks.is_stage() and k.ren.has_local): return None
  hooks.scheduled_by("kernel_chains")
  return in_one_group(k)

def install() -> None:
  global _create_schedule, _full_rewrite_to_sink
  _create_schedule = places.wrap(schedule, "create_schedule", create_schedule)
  _full_rewrite_to_sink = places.wrap(codegen, "full_rewrite_to_sink", full_rewrite_to_sink)
  choosers["kernel_chains"] = choose
  for renderer, text in BARRIERS.items():
    rule = PatternMatcher([(UPat(Ops.BARRIER, name="u"), lambda u, text=text: text if u.tag == SHARED else None)])
    places.rules(renderer, "string_rewrite", rule, first=True)
