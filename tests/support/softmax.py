"""Decode attention as the scheduler has it before it splits kernels, and the kernel of flash decoding's parts."""
import numpy as np
from tests.support.random_sums import stage
from tinygrad import dtypes
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp
from tinygrad_llm.patches.attention import flash_decoding
from tinygrad_llm.patches.attention.flash_decoding import EXTRA
from tinygrad_llm.patches.hooks import PARTS

HEADS, QUERIES, DEPTH, WIDTH = 2, 2, 16, 32
SLOPE = 0.5
H, G, COLUMN = (UOp.range(n, i) for i, n in enumerate((HEADS, QUERIES, WIDTH)))

def load(slot: int, at: UOp) -> UOp:
  """A load from an array that ends at the largest value of `at`."""
  return UOp.param(slot, dtypes.float, (int(at.vmax) + 1,)).index(at)

def numbers(graph: UOp, seed: int) -> dict[int, np.ndarray]:
  """Random contents of a graph's arrays, by slot."""
  rng, made = np.random.default_rng(seed), {u.arg.slot: u for u in graph.toposort() if u.op is Ops.PARAM}
  return {slot: rng.standard_normal(made[slot].max_numel()) for slot in sorted(made)}

def scores(n: int, hidden: int = 0) -> UOp:
  """The scores of all queries and n keys, materialised; the first `hidden` positions are masked."""
  h, g, p, d = UOp.range(HEADS, 10), UOp.range(QUERIES, 11), UOp.range(n, 12), UOp.range(DEPTH, 13, AxisType.REDUCE)
  value = (load(0, (h * QUERIES + g) * DEPTH + d) * load(1, (h * n + p) * DEPTH + d)).reduce(d, arg=Ops.ADD)
  if hidden: value = (p < hidden).where(value.const_like(-float("inf")), value)
  return stage(value, h, g, p)

def attention(n: int, *, hidden: int = 0, slopes: tuple[float, float] = (SLOPE, SLOPE), again: bool = False) -> UOp:
  """
  (sum p: exp2((s - m) * slope) * v) / (sum p: exp2((s - m) * slope)), m = max p: s.

  hidden: masked positions. slopes: of the divisor and of the weighted sum. again: something else reads the scores, too.
  """
  s = scores(n, hidden)
  loops = [UOp.range(n, 20 + i, AxisType.REDUCE) for i in range(4)]
  def score(p: UOp) -> UOp: return s.index(H, G, p)
  top = score(loops[0]).reduce(loops[0], arg=Ops.MAX)
  def exponential(p: UOp, slope: float) -> UOp: return ((score(p) + top * -1) * slope).exp2()
  total = exponential(loops[1], slopes[0]).reduce(loops[1], arg=Ops.ADD)
  v = load(2, (H * n + loops[2]) * WIDTH + COLUMN)
  values = (exponential(loops[2], slopes[1]) * v).reduce(loops[2], arg=Ops.ADD)
  out = values * total.reciprocal()
  if again: out = out + score(loops[3]).reduce(loops[3], arg=Ops.ADD)
  return UOp.sink(stage(out, H, G, COLUMN, removable=False))

def split(sink: UOp) -> UOp | None: return flash_decoding.split(sink)

def part(n: int, **options) -> UOp:
  """The kernel of flash decoding that computes the parts of attention over n positions."""
  stored, = [u for u in split(attention(n, **options)).toposort() if u.op is Ops.STAGE and u.tag == PARTS]
  place = UOp.const(0)
  for r in stored.src[1:]: place = place * (int(r.vmax) + 1) + r
  out = load(9, place)
  return UOp.sink(out.store(stored.src[0]).end(*stored.src[1:]), arg=KernelInfo())

COLUMNS = WIDTH + EXTRA
