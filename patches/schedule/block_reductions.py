"""
Block reduction over a loop of unknown length: the threads of a block share the steps of a sum or a maximum.

Why: tinygrad's GROUP splits a loop to share it among threads, which needs a constant length. In split-KV attention the
  number of parts is unknown, so combining them stays a serial loop, in few threads.
How: thread s of S takes the steps i * S + s of a loop of n steps, UNROLLED of them at a time, so that their loads
  overlap. Steps beyond n give the identity element. The threads combine their partial results through shared memory.
  Neighbouring threads have neighbouring outputs, VECTOR each.
Rewrite:
  thread: sum i in n, n unknown: x[i]
  --> thread s of S: sum i in n / S: x[i * S + s]; shared; barrier; sum over S
Numbers: combining 65 parts of 32 heads of 64 columns on sm_90: a thread's steps 65 -> 5, with 256 threads. On an H100
  decode of a 1B Llama takes 1.02 times as long without it.
Upstream: not sent. It would be GROUP of a symbolic range.
"""
from __future__ import annotations
from typing import cast
from tinygrad.codegen.opt import Opt, OptOps, check
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import AddrSpace
from tinygrad.helpers import prod
from tinygrad.uop.ops import AxisType, Ops, UOp, identity_element
from tinygrad_llm.patches import hooks
from tinygrad_llm.patches.hooks import scheduled_by
from tinygrad_llm.patches.ir.builder import next_loop
from tinygrad_llm.patches.ir.indices import strides
from tinygrad_llm.patches.schedule.choose import choosers

SEAMS = {
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
}

THREADS, VECTOR, UNROLLED = 256, 4, 2
OUTPUTS = 1 << 16  # kernels with more outputs have enough threads

def _length(k: Scheduler) -> UOp|None:
  """Returns the symbolic length of all reductions, each over one loop. None if they differ or it is a constant."""
  reds = [u for u in k.ast.toposort() if u.op is Ops.REDUCE]
  if not reds or any(len(u.src) != 2 or u.src[1].op is not Ops.RANGE for u in reds): return None
  lengths = {u.src[1].src[0] for u in reds}
  return length if len(lengths) == 1 and (length := lengths.pop()).op is not Ops.CONST else None

def _columns(k: Scheduler) -> UOp|None:
  """Returns the loop over neighbouring outputs."""
  store = next((u for u in k.ast.toposort() if u.op is Ops.STORE), None)
  if store is None or any(r.src[0].op is not Ops.CONST for r in k.ranges_of(AxisType.GLOBAL)): return None
  return next((r for r, stride in strides(store.src[0].src[1].get_idx()).items() if stride == 1), None)

def share(k: Scheduler) -> Scheduler|None:
  if _length(k) is None or (column := _columns(k)) is None or column not in k.rngs: return None
  if prod(int(r.vmax) + 1 for r in k.ranges_of(AxisType.GLOBAL)) > OUTPUTS: return None
  k, lanes = k.copy(), int(column.vmax) + 1
  if lanes % VECTOR == 0:
    k.apply_opt(Opt(OptOps.UPCAST, k.rngs.index(column), VECTOR))
    column, lanes = column.replace(src=(column.src[0].const_like(lanes // VECTOR),)), lanes // VECTOR
  lanes = max(n for n in (1 << i for i in range(THREADS.bit_length())) if lanes % n == 0)
  if lanes > 1 and column in k.rngs: k.apply_opt(Opt(OptOps.LOCAL, k.rngs.index(column), lanes))
  k.apply_opt(Opt(OptOps.GROUP, 0, THREADS // lanes))
  return k

def _shared(ast: UOp, length: UOp, threads: int) -> UOp:
  first = next_loop(ast)
  thread, made = UOp.range(threads, first, AxisType.LOCAL), dict[UOp, UOp]()
  for u in ast.toposort():
    new = made[u] = u.replace(src=tuple(made[s] for s in u.src))
    if u.op is not Ops.REDUCE: continue
    i, fast = UOp.range((length + (threads * UNROLLED - 1)) // (threads * UNROLLED), first + 1, AxisType.REDUCE), \
      UOp.range(UNROLLED, first + 2, AxisType.UNROLL)
    step = (i * UNROLLED + fast) * threads + thread
    there = step < length
    value = new.src[0].substitute({u.src[1]: there.where(step, length - 1)}, walk=True)
    value = there.where(value, value.const_like(identity_element(u.arg[0], u.dtype))).reduce(i, fast, arg=u.arg[0])
    own = sorted((r for r in value.ranges if r.arg[-1] in (AxisType.LOCAL, AxisType.UPCAST) and r is not thread),
                 key=lambda r: (r.arg[-1] is AxisType.UPCAST, r.arg))
    at = thread
    for r in own: at = at * (int(r.vmax) + 1) + r
    buffer = UOp.placeholder((threads * prod(int(r.vmax) + 1 for r in own),), u.dtype, first, AddrSpace.LOCAL)
    other = UOp.range(threads, first + 3, AxisType.UNROLL)
    stored = buffer.index(at).store(value).end(*own, thread)
    made[u] = buffer.after(stored).index(at.substitute({thread: other}, walk=True)).reduce(other, arg=u.arg[0])
    first += 4
  return made[ast]

def apply(k: Scheduler, opt: Opt) -> bool:
  """
  Applies GROUP to a loop of unknown length. Returns False if the length is constant; KernelOptError if it cannot.

  The threads of a block share the parts of a split-KV attention, as in llama.cpp's kernel_flash_attn_ext_vec_reduce
  for Metal.
  """
  if k.rngs[k.real_axis(opt.op, opt.axis)].src[0].op is Ops.CONST: return False
  check(k.ren.has_local and k.ren.has_shared, "threads of a block need memory that they share")
  check(isinstance(opt.arg, int) and 1 <= opt.arg <= THREADS, f"1 to {THREADS} threads share a loop of unknown length")
  check((length := _length(k)) is not None, "one loop of unknown length is shared")
  check(not k.group_for_reduces, "a group is for one loop then")
  k.ast = _shared(k.ast, cast(UOp, length), cast(int, opt.arg))
  return True

def choose(k: Scheduler) -> Scheduler|None:
  made = share(k) if k.ren.has_local else None
  if made is not None: scheduled_by("block_reductions")
  return made

def install() -> None:
  hooks.actions[OptOps.GROUP] = apply
  choosers["block_reductions"] = choose
