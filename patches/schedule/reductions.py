"""
Row reductions on GPUs: neighbouring threads share the sum or maximum of a long axis that is contiguous in memory.

Why: tinygrad gives such an axis to 16 threads, or to one if 16 does not divide it. It cuts more than 32,768 elements
  into 256 parts, one per thread. Neighbouring threads then read addresses that lie apart, so loads are not coalesced.
  The arg-max of 128,256 logits is two blocks of 32 threads, of 501 steps each; of 32,003 logits, one thread.
How: neighbouring threads get neighbouring elements: a warp of threads, then as many warps as a block has. The rest of
  the axis is unrolled. isa/shuffle_reduce.py reduces within a warp. A long axis with few outputs is cut into parts, one
  block each, and a second kernel reduces the parts. It is padded with the identity element, so that any length can be
  cut. If threads cannot exchange values, a block has fewer threads, as each of them goes through all partial results.
  CPUs are left out: they have vectors and few threads.
Rewrite:
  thread t: sum of x[t * n : (t + 1) * n]
  --> block p, thread t: sum i: x[p, i * threads + t]; another kernel adds up the blocks
Numbers: arg-max of 128,256 logits for sm_90, 2 kernels before and after. Threads of the first kernel 64 -> 32,768,
  steps of the longest loop 501 -> 8, cache lines per load of a warp 32 -> 1. Estimate of the cost model of
  patches/search: 82 -> 3 us. The sum of a norm over 512 elements: 16 threads -> 256, 16 lines -> 1. On an H100 decode
  of a 1B Llama takes 1.22 times as long without it.
Upstream: not sent. The cut would be a choice of split_reduceop, the rest a rule of hand_coded_optimizations.
"""
from __future__ import annotations
from tinygrad import Device
from tinygrad.codegen.opt import KernelOptError, Opt, OptOps
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import dtypes
from tinygrad.helpers import all_int, ceildiv, prod
from tinygrad.renderer import Renderer
from tinygrad.schedule import rangeify
from tinygrad.uop.ops import AxisType, Ops, PatternMatcher, UOp, UPat, identity_element, resolve
from tinygrad_llm.patches import places
from tinygrad_llm.patches.hooks import scheduled_by
from tinygrad_llm.patches.ir import targets
from tinygrad_llm.patches.ir.indices import is_gather, size, strides
from tinygrad_llm.patches.isa import shuffle_reduce
from tinygrad_llm.patches.schedule.choose import choosers

SEAMS = {
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
  "tinygrad.schedule.rangeify:earliest_rewrites": "e1dba6cfa6c6",
  "tinygrad.schedule.rangeify:split_reduceop": "b45e468d2f20",
}

THREADS, UNSHARED = 256, 64   # threads of a block; the same if they cannot exchange values
SHORT = 32                    # a shorter axis keeps tinygrad's schedule
LONG, ODD = 1 << 14, 1 << 10  # several blocks share a longer axis; the same for one that no warp shares evenly
STEPS, BLOCKS = 4, (8, 128)   # steps of a thread then, within these limits on the blocks
FEW = 16                      # most outputs of an axis that several blocks share
OUTPUTS = 1 << 11             # kernels with more outputs, as in tinygrad, have enough threads of one output each

def _shares(ren: Renderer) -> bool: return ren.has_local and ren.has_shared

def _threads(r: UOp, ren: Renderer) -> int:
  return UNSHARED if not shuffle_reduce.exchanges(ren) or size(r) % targets.WARP else THREADS

# *** several blocks

def _padded(x: UOp, n: int, op: Ops) -> UOp:
  """Pads the first axis to n elements with the identity element of op."""
  if n == x.shape[0]: return x
  widths = ((0, n - x.shape[0]), *[(0, 0)] * (len(x.shape) - 1))
  if (unit := identity_element(op, x.dtype)) == 0: return x.pad(widths)
  inside = UOp.const(True, dtypes.bool).reshape((1,) * len(x.shape)).expand(x.shape).pad(widths)
  return inside.where(x.pad(widths), x.const_like(unit).base)

def split(reduce: UOp, x: UOp) -> UOp|None:
  """Cuts a reduction into blocks and reduces their results in a second kernel. None if it does not suit."""
  op, axes = reduce.arg
  if op not in (Ops.ADD, Ops.MAX) or not axes or not all_int(x.shape) or not isinstance(x.device, str): return None
  n, outputs = prod(x.shape[:axes]), prod(reduce.shape)
  if n <= (ODD if n % targets.WARP else LONG) or not 0 < outputs <= FEW or is_gather(x): return None
  if not _shares(Device[x.device].renderer): return None
  if not x.op_in_backward_slice_with_self(Ops.BUFFER, Ops.PARAM, Ops.AFTER): return None  # no data: a counter
  least, most = BLOCKS
  blocks = max(least, min(most, 1 << (ceildiv(n, THREADS * STEPS) - 1).bit_length()))
  each = THREADS * ceildiv(n, blocks * THREADS)
  parts = _padded(x.reshape((n, *reduce.shape)), blocks * each, op).reshape((blocks, each, *reduce.shape))
  parts = parts.permute((1, 0, *range(2, len(reduce.shape) + 2)))
  found: UOp = parts._rop(op, (0,)).contiguous()._rop(op, (0,)).reshape(reduce.shape)
  return found

pm_split = PatternMatcher([(UPat(Ops.REDUCE, name="reduce", src=(UPat.var("x"),)), split)])

# *** one block

def _loop(k: Scheduler) -> UOp|None:
  """Returns the loop of a kernel's reductions that is contiguous in memory. None if there is none."""
  reds = k.reduceops
  if not reds or any(red.src[1:] != reds[0].src[1:] for red in reds): return None
  if not all(r.op is Ops.RANGE and r.src[0].op is Ops.CONST for r in reds[0].src[1:]): return None
  if any(set(reds) & red.backward_slice.keys() for red in reds): return None
  loads = [u for red in reds for u in red.src[0].toposort() if u.op is Ops.INDEX]
  loads = [u for u in loads if not set(reds[0].src[1:]).isdisjoint(u.ranges)]
  outputs = {r for red in reds for r in red.ranges}
  if not loads or any(not outputs <= set(u.ranges) for u in loads): return None  # a product with a matrix
  main = max(loads, key=lambda u: len(u.ranges))
  return next((r for r, n in strides(main.src[1].get_idx()).items() if n == 1 and r in reds[0].src[1:]), None)

def in_blocks(k: Scheduler) -> Scheduler|None:
  """Threads of a block read neighbouring elements. None if the kernel has no contiguous loop, or a short one."""
  if (r := _loop(k)) is None or size(r) < SHORT: return None
  if resolve(prod(k.output_shape[i] for i in k.upcastable_dims) > OUTPUTS, False): return None
  k, threads = k.copy(), _threads(r, k.ren)
  for most in (targets.WARP, threads // targets.WARP):  # lanes of a warp, then warps
    n = next(d for d in range(min(most, size(r)), 0, -1) if size(r) % d == 0)
    if n == 1: continue
    k.apply_opt(Opt(OptOps.GROUP, k.ranges_of(AxisType.REDUCE).index(r), n))
    if n == size(r): return k
    r = r.replace(src=(r.src[0].const_like(size(r) // n),))
  n = next(d for d in range(min(8, size(r)), 0, -1) if size(r) % d == 0)
  if n > 1: k.apply_opt(Opt(OptOps.UNROLL, k.unrollable_dims.index(k.rngs.index(r)), 0 if n == size(r) else n))
  return k if k.applied_opts else None

def choose(k: Scheduler) -> Scheduler|None:
  try: made = in_blocks(k) if _shares(k.ren) else None
  except KernelOptError: return None
  if made is not None: scheduled_by("reductions")
  return made

def install() -> None:
  places.rules(rangeify, "earliest_rewrites", pm_split, first=True)
  choosers["reductions"] = choose
