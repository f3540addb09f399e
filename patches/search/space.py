"""
The space of a kernel's schedules: which Opts may follow a list of Opts, and which lists are one step apart.

A step names its loop by number, not by position, so that any step of a schedule can be removed. Amounts are divisors of
a loop's length, whatever the loop is: the loops of a packed matrix are superblocks, groups, lanes and fields.
"""
from __future__ import annotations
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from tinygrad import codegen
from tinygrad.codegen.opt import KernelOptError, Opt, OptOps
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches import hooks
from tinygrad_llm.patches.attention import decode_cpu, decode_gpu, online_softmax, prefill_gpu
from tinygrad_llm.patches.attention.part import Part
from tinygrad_llm.patches.ir import indices
from tinygrad_llm.patches.ir.actions import Opts, ScheduleOps, chosen
from tinygrad_llm.patches.ir.matmuls import divided, find
from tinygrad_llm.patches.ir.targets import has_vectors, most_threads
from tinygrad_llm.patches.schedule.block_reductions import THREADS
from tinygrad_llm.patches.schedule.register_tiles import tokens
from tinygrad_llm.patches.tiles import amx_tiles

# the largest amount of an action; tinygrad refuses larger amounts of the first two
MOST = {OptOps.UPCAST: 16, OptOps.UNROLL: 32, OptOps.LOCAL: 1024, OptOps.GROUP: 1024, OptOps.GROUPTOP: 1024}
BLOCK = 1024        # threads of a block, at most
UNROLLED = 1024     # steps of all unrolled loops, at most: no instruction cache holds more code
AMOUNTS: dict[ScheduleOps, tuple[int, ...]] = {
  ScheduleOps.PREFETCH: (0, 1024, 2048, 4096, 8192, 16384, 32768),
  ScheduleOps.POSITIONS: (16, 32, 64, 128, 256), ScheduleOps.QUERIES: (1, 2, 4, 8, 16, 32),
  ScheduleOps.VECTORS: (4, 8, 16, 32), ScheduleOps.THREADS: (32, 64, 128, 256, 512),
  ScheduleOps.LANES: (1, 2, 4, 8, 16), ScheduleOps.TOKENS: (2, 3, 4, 6, 8, 12, 16),
  ScheduleOps.TILES: (1, 2, 4, 8, 16, 32, 64), ScheduleOps.AMX: (2, 4, 8, 16, 32, 64)}
# block tiles that a search starts with: the largest, one for short prompts, and Metal's
BLOCKS = ((128, 128, 64, 64, 32), (32, 64, 64, 32, 16), (32, 64, 32, 16, 32))

@dataclass(frozen=True, order=True)
class Step:
  """An Opt. loop: the numbers of its range and of the ranges it was split from; an action without one has its axis."""
  op: OptOps|ScheduleOps
  loop: tuple[int, ...]|int|None
  amount: int|tuple[int, ...]

class NotScheduled(Exception):
  """The kernel's loops are never scheduled."""

class _Reached(Exception):
  def __init__(self, ast: UOp): self.ast = ast

def before_opts(ast: UOp, ren: Renderer) -> UOp:
  """The kernel as it is when lowering chooses its schedule. NotScheduled if lowering never does."""
  def reached(ast: UOp, *args: object, **kwargs: object) -> UOp: raise _Reached(ast)
  apply, codegen.apply_opts = codegen.apply_opts, reached  # type: ignore[assignment]
  try: codegen.full_rewrite_to_sink(with_opts(ast, None), ren)
  except _Reached as found: ast = found.ast
  else: raise NotScheduled(ast.arg.name)
  finally: codegen.apply_opts = apply
  for run in hooks.before_opts: ast = run(ast, ren)
  return ast

def with_opts(ast: UOp, opts: Opts|None) -> UOp:
  """The kernel with a given schedule; None: without one."""
  return ast.replace(arg=dataclasses.replace(ast.arg, opts_to_apply=opts, beam=0))

def divisors(n: int, most: int) -> list[int]: return [d for d in range(2, min(n, most) + 1) if n % d == 0]

class Loops:
  """The space of a kernel whose loops are split, unrolled and shared by threads, with the actions that go with it."""
  def __init__(self, ast: UOp, ren: Renderer):
    self.ast, self.ren = ast, ren
    self.sizes: dict[Any, int] = {r.arg[:-1]: int(r.vmax) + 1 for r in self.start().rngs if r.src[0].op is Ops.CONST}

  def start(self) -> Scheduler:
    k = Scheduler(self.ast, self.ren)
    k.convert_loop_to_global()
    return k

  def replay(self, steps: Iterable[Step]) -> Scheduler:
    """A Scheduler after these steps. KernelOptError if one of them is illegal."""
    k = self.start()
    for step in steps: k.apply_opt(self.placed(k, step))
    return k

  def opts(self, steps: Iterable[Step]) -> Opts|None:
    """The steps as tinygrad's Opts; None if they are illegal or too large."""
    try: k = self.replay(steps)
    except (KernelOptError, StopIteration, ValueError): return None
    return tuple(k.applied_opts) if fits(k) else None

  def steps(self, opts: Iterable[Opt]) -> tuple[Step, ...]:
    """The inverse of opts(). KernelOptError if an Opt is illegal."""
    k, found = self.start(), list[Step]()
    for opt in opts:
      found.append(self.named(k, opt))
      k.apply_opt(opt)
    return tuple(found)

  def named(self, k: Scheduler, opt: Opt) -> Step:
    if not has_loop(opt.op): return Step(opt.op, opt.axis, opt.arg or 0)
    loop = k.rngs[k.real_axis(opt.op, opt.axis)]  # type: ignore[arg-type]
    amount = k.rngs[opt.arg].arg[:-1] if opt.op is OptOps.SWAP else opt.arg or int(loop.vmax) + 1  # type: ignore[index]
    return Step(opt.op, loop.arg[:-1], amount)

  def placed(self, k: Scheduler, step: Step) -> Opt:
    if not has_loop(step.op): return Opt(step.op, step.loop, step.amount)  # type: ignore[arg-type]
    places = {r.arg[:-1]: i for i, r in enumerate(k.rngs)}
    for loop in (step.loop, step.amount) if step.op is OptOps.SWAP else (step.loop,):
      if loop not in places: raise KernelOptError(f"loop {loop} is used up")
    at, kind = places[step.loop], axes(k, step.op)
    if at not in kind: raise KernelOptError(f"loop {step.loop} is not for {step.op.name}")
    if step.op is OptOps.SWAP: return Opt(step.op, at, places[step.amount])  # type: ignore[index]
    return Opt(step.op, kind.index(at) if len(kind) != k.shape_len else at, step.amount)  # type: ignore[arg-type]

  def actions(self, k: Scheduler) -> Iterator[Step]:
    """Steps that may follow; apply_opt refuses some of them."""
    ren, kinds = k.ren, {r: r.arg[-1] for r in k.rngs}
    locals_ = ren.has_local and not k.dont_use_locals
    if not k.applied_opts and ren.tensor_cores and k.reduceops:
      for choice in range(9): yield from (Step(OptOps.TC, choice, (-1, opt, 1)) for opt in (0, 2))
    if not k.applied_opts and locals_ and ren.has_shared and not isinstance(find(divided(k.ast)), str):
      yield from (Step(ScheduleOps.BLOCK, None, amounts) for amounts in BLOCKS)
    of_tiles = chosen(tuple(k.applied_opts), ScheduleOps.AMX, 0)
    if not k.applied_opts and amx_tiles.available(ren) and not isinstance(find(divided(k.ast)), str):
      yield from (Step(ScheduleOps.AMX, None, n) for n in AMOUNTS[ScheduleOps.AMX])
    for r, kind in kinds.items():
      name, n = r.arg[:-1], int(r.vmax) + 1
      if r.src[0].op is not Ops.CONST:
        if kind is AxisType.REDUCE and locals_:
          yield from (Step(OptOps.GROUP, name, d) for d in (4, 8, 16, 32, 64, 128, 256) if d <= THREADS)
        continue
      if kind in (AxisType.GLOBAL, AxisType.WEAK, AxisType.LOCAL): yield from _amounts(OptOps.UPCAST, name, n)
      if kind in (AxisType.REDUCE, AxisType.GROUP_REDUCE): yield from _amounts(OptOps.UNROLL, name, n)
      if kind is AxisType.REDUCE and locals_ and ren.has_shared:
        yield from _amounts(OptOps.GROUP, name, n)
        yield from _amounts(OptOps.GROUPTOP, name, n)
      if kind is AxisType.GLOBAL and locals_: yield from _amounts(OptOps.LOCAL, name, n)
      if kind is AxisType.WEAK and ren.has_threads:
        yield from (Step(OptOps.THREAD, name, d) for d in divisors(n, most_threads(ren)))
    outer = [r.arg[:-1] for r, kind in kinds.items() if kind is AxisType.GLOBAL]
    yield from (Step(OptOps.SWAP, a, b) for a, b in zip(outer, outer[1:]))
    if has_vectors(ren) and k.reduceops:
      of_tokens = (ScheduleOps.TOKENS, ScheduleOps.TILES) if not of_tiles and tokens(k) is not None else ()
      yield from (Step(op, None, n) for op in (ScheduleOps.PREFETCH, *of_tokens) for n in AMOUNTS[op])

  def neighbours(self, steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Schedules one step away: a step more or less, another amount, or a factor of 2 moved between two amounts."""
    k = self.replay(steps)
    for i, step in enumerate(steps):
      if isinstance(step.amount, int) and has_loop(step.op):
        yield from (replaced(steps, {i: amount}) for amount in self._other_amounts(step))
        for j, other in enumerate(steps):
          if j != i and {step.op, other.op} <= SHARED and isinstance(other.amount, int) and step.amount % 2 == 0:
            yield replaced(steps, {i: step.amount // 2, j: other.amount * 2})
      elif step.op is ScheduleOps.BLOCK and isinstance(step.amount, tuple):
        yield from (replaced(steps, {i: amounts}) for amounts in _other_blocks(step.amount))
      elif step.op in AMOUNTS: yield from (replaced(steps, {i: n}) for n in AMOUNTS[step.op] if n != step.amount)
      yield steps[:i] + steps[i + 1:]
    if any(step.op is OptOps.GROUP and step.loop not in self.sizes for step in steps): return  # it replaced loops
    present = {step.op for step in steps}
    yield from ((*steps, step) for step in self.actions(k) if step.op not in present & AMOUNTS.keys())

  def _other_amounts(self, step: Step) -> list[int]:
    """The other amounts of a step: the divisors of its loop's length before any step."""
    size = self.sizes.get(step.loop, 1)
    return [d for d in divisors(size, MOST.get(step.op, size)) if d != step.amount]  # type: ignore[call-overload,arg-type]

# actions between whose amounts a factor can move: their product stays the same
SHARED: set[OptOps|ScheduleOps] = {OptOps.GROUP, OptOps.LOCAL, OptOps.UPCAST, OptOps.UNROLL, OptOps.GROUPTOP}

def _amounts(op: OptOps, loop: tuple[int, ...], n: int) -> Iterator[Step]:
  return (Step(op, loop, d) for d in divisors(n, MOST[op]))

def has_loop(op: OptOps|ScheduleOps) -> bool:
  return op not in AMOUNTS and op not in (OptOps.TC, OptOps.NOLOCALS, ScheduleOps.BLOCK)

def axes(k: Scheduler, op: OptOps|ScheduleOps) -> list[int]:
  """The positions of the loops among which an action counts its axis."""
  if op is OptOps.UNROLL: return k.unrollable_dims
  return k.axes_of(AxisType.REDUCE) if op in (OptOps.GROUP, OptOps.GROUPTOP) else list(range(k.shape_len))

def _other_blocks(amounts: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
  """Block tiles with one number halved or doubled, or the tokens (rows) of block and warp together."""
  for together in ((0,), (1,), (2,), (3,), (4,), (0, 3), (1, 4)):
    yield tuple(n * 2 if i in together else n for i, n in enumerate(amounts))
    if all(amounts[i] % 2 == 0 for i in together):
      yield tuple(n // 2 if i in together else n for i, n in enumerate(amounts))

def replaced(steps: tuple[Step, ...], amounts: Mapping[int, int|tuple[int, ...]]) -> tuple[Step, ...]:
  """The steps with other amounts at some positions. A loop's step of amount 1 is dropped."""
  new = [dataclasses.replace(step, amount=amounts.get(i, step.amount)) for i, step in enumerate(steps)]
  return tuple(step for step in new if step.amount != 1 or step.op in AMOUNTS)

def fits(k: Scheduler) -> bool:
  """Whether a block's threads and a thread's unrolled code are within the limits."""
  def steps(loops: Iterable[UOp], *kinds: AxisType) -> int:
    return indices.steps(r for r in loops if r.arg[-1] in kinds)
  sums: list[Iterable[UOp]] = [{r for loop in red.src[1:] for r in loop.ranges} for red in k.reduceops] or [()]
  threads = max(steps(loops, AxisType.GROUP_REDUCE) for loops in sums) * steps(k.rngs, AxisType.WARP, AxisType.LOCAL)
  unrolled = max(steps(loops, AxisType.UNROLL) for loops in sums) * steps(k.rngs, AxisType.UPCAST)
  if chosen(tuple(k.applied_opts), ScheduleOps.TILES, 0):  # unpacking loops do not run over tokens
    unrolled //= chosen(tuple(k.applied_opts), ScheduleOps.TOKENS, 1)
  return threads <= BLOCK and unrolled <= UNROLLED * (16 if has_vectors(k.ren) else 1)

class Attention:
  """The space of a part of attention: the parameters of its kernel (attention/decode_*.py, prefill_gpu.py)."""
  def __init__(self, ast: UOp, ren: Renderer):
    self.part, self.ren = Part.of(ast), ren
    many = self.part is not None and self.part.tokens is not None
    self.defaults = (prefill_gpu if many else decode_gpu).ACTIONS if ren.has_local else decode_cpu.actions(ren)

  def opts(self, steps: Iterable[Step]) -> Opts|None:
    opts = tuple(Opt(step.op, None, step.amount) for step in steps)  # type: ignore[arg-type]
    return None if self.part is None or online_softmax.schedule(self.part, self.ren, opts) is None else opts

  def steps(self, opts: Iterable[Opt]) -> tuple[Step, ...]:
    return tuple(Step(opt.op, None, opt.arg or 0) for opt in opts)

  def neighbours(self, steps: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    for op in self.defaults:
      rest = tuple(step for step in steps if step.op is not op)
      now = next((step.amount for step in steps if step.op is op), self.defaults.get(op))
      yield from ((*rest, Step(op, None, n)) for n in AMOUNTS[op] if n != now)

def space(ast: UOp, ren: Renderer) -> Loops|Attention:
  """The space of a scheduled kernel that is not lowered yet. NotScheduled: it has none."""
  if Part.of(ast) is not None and (ren.has_local or has_vectors(ren)): return Attention(ast, ren)
  if any(s.op is Ops.SINK for s in ast.src): raise NotScheduled(ast.arg.name)
  return Loops(before_opts(ast, ren), ren)
