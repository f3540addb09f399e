"""
Kernel chaining: small kernels that follow each other become the stages of one kernel, with one launch.

Why: expert routing is seven kernels of a few hundred elements, and a norm is two. Each costs a launch, which on a GPU
  takes a few microseconds: longer than the kernel computes.
How: kernels with little work and known sizes become the stages of one kernel, where no kernel between them depends on
  them. Each is lowered by itself; a stage begins when the stage before has stored all its results. On a GPU one thread
  block (workgroup) runs all stages with barriers between them; on a CPU one thread does.
Rewrite:
  launch a; launch b; launch c, each a few hundred elements
  --> launch (a; barrier; b; barrier; c) with one group of threads
Numbers: kernels of a decode step, on CPU and for sm_90: qwen3moe, 2 layers, 62 -> 41 and 53 -> 37; its decode on the
  CPU 98 -> 101 tok/s (AMD EPYC with AVX-512, 2 threads, medians of 4 interleaved rounds)
Upstream: not sent; it has to know which kernels are small on a device, which BEAM could time.
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

# threads of the workgroup; threads of it that share one sum through shared memory (with warp shuffles: all of them)
THREADS, GROUP = 256, 32
# a stage has at most so many steps, and reads at most so many bytes on a GPU or a CPU
STEPS = 1 << 18
GPU_BYTES, CPU_BYTES = 1 << 16, 1 << 14
# renderers whose barriers also order accesses to global buffers
GPUS = {"CUDARenderer", "HIPRenderer", "MetalRenderer", "OpenCLRenderer", "PTXRenderer"}
BUFFERS = 24              # most buffers of a kernel: Metal allows 31
APART = 1 << 16           # distance between the loop and buffer numbers of two stages

# the functions that this patch wraps
_create_schedule: Callable[[UOp], UOp]
_full_rewrite_to_sink: Callable[..., UOp]

# *** which kernels are chained

@dataclass
class Chain:
  """Calls that become one kernel. uses: their buffers; writes: the written ones; small: whether they do little work."""
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
  """The buffers behind some arguments; an argument on several devices has several."""
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
  if vectors and work < 2 * WORK: return True  # several threads share a larger kernel
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
  """Whether two chains can be one kernel: one device, few enough buffers, and one type for each buffer."""
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

# *** lowering a chain

def in_one_group(k: Scheduler) -> Scheduler:
  """Schedules a stage for one workgroup: its threads share the outputs, or one sum; all other axes become loops."""
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
    except KernelOptError: pass  # the sum is inside of another loop
  k.ast = k.ast.substitute({r: r.replace(arg=(*r.arg[:-1], AxisType.WEAK)) for r in k.ranges_of(AxisType.GLOBAL)})
  return k

def changed(stage: UOp, change: Callable[[UOp], UOp]) -> UOp:
  """Rebuilds a graph from its leaves up, with change() applied to each node."""
  made: dict[UOp, UOp] = {}
  for u in stage.toposort(): made[u] = change(u.replace(src=tuple(made[s] for s in u.src)))
  return made[stage]

def renumbered(stage: UOp, i: int) -> UOp:
  """Gives stage i its own numbers of loops and buffers."""
  def change(u: UOp) -> UOp:
    if u.op is Ops.RANGE: return u.replace(arg=(u.arg[0] + i * APART, *u.arg[1:]))
    return u.replace(arg=replace(u.arg, slot=u.arg.slot + i * APART)) if u.op is Ops.BUFFER else u
  return changed(stage, change)

def _threads(stage: UOp) -> dict[str, int]:
  """{dimension: number of threads} of a stage; the first dimension's threads are neighbours."""
  return {u.arg: int(u.src[0].vmax) for u in sorted((u for u in stage.toposort() if u.op is Ops.SPECIAL),
                                                    key=lambda u: u.arg)}

def _of_one_row(stage: UOp, thread: UOp) -> UOp:
  """
  Computes a stage's thread indices from the number of a thread in one row.

  Where the row has more threads than the stage, several threads do the same work.
  """
  below, places = 1, dict[str, UOp]()
  for name, size in _threads(stage).items():
    at = thread.alu(Ops.SHR, UOp.cconst(below.bit_length() - 1, dtypes.int)) if below > 1 else thread
    places[name] = at.alu(Ops.AND, UOp.cconst(size - 1, dtypes.int))
    below *= size
  return changed(stage, lambda u: places[u.arg] if u.op is Ops.SPECIAL else u)

def _after(stage: UOp, before: UOp) -> UOp:
  """Makes a stage begin when `before` is done."""
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

# barriers that make a thread's stores to global buffers visible to its workgroup
SHARED = "buffers"
BARRIERS = {
  MetalRenderer: "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);",
  OpenCLRenderer: "barrier(CLK_GLOBAL_MEM_FENCE | CLK_LOCAL_MEM_FENCE);",
}

def choose(k: Scheduler) -> Scheduler|None:
  """Schedules a stage on a GPU; None for kernels that are not stages."""
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
