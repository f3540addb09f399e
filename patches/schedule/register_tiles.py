"""
Register blocking: several tokens of a prompt share what a CPU loads and unpacks of a matrix.

Why: a loop over tokens inside of that over rows unpacks a block of weights again for each token; outside of it, each
  token reads the whole matrix.
How: an action (TOKENS of ir/actions.py) unrolls so many steps of the output loop that the matrix does not have, and
  their sums stay in registers. A loop of unknown length computes its last steps twice, and stores them twice: there is
  no other loop for what is left. Where lanes are neighbours of a sum and not rows, as with floats, as many rows as a
  core's cache holds are inside of the loop over tokens, of which a nearer cache has a few; some rows are unrolled, too.
Rewrite:
  for token: for k: unpack w[k]; s[token] += w[k] * x[token, k]
  --> for 4 tokens: for k: unpack w[k]; s0 += w[k] * x0[k]; .. s3 += w[k] * x3[k]
Numbers: see tiles/pack_operands.py; floats, 256 tokens by 8192 x 2048, 10^9 products a second, 2 threads: F16 14 ->
  112, BF16 13 -> 109 (Intel with AVX-512); with AVX2 alone F16 46 (6 tokens, a row) -> 96 (3 tokens, 2 rows) on a Zen
  4, whose limit is 115
Upstream: not sent.
"""
from __future__ import annotations
import math
from tinygrad.codegen.opt import Opt, check
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.helpers import count
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches import hooks
from tinygrad_llm.patches.ir.actions import ScheduleOps, check_amount
from tinygrad_llm.patches.ir.indices import divisor, size, steps
from tinygrad_llm.patches.ir.targets import LANES, registers
from tinygrad_llm.patches.vector.lanes import side_by_side

SEAMS = {
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
}

MOST = 16  # tokens: more sums than there are registers
# where rows are no lanes
HELD = 1 << 18  # elements of rows that a core's cache holds

def tile_shape(ren: Renderer) -> tuple[int, int]:
  """Tokens and rows at once, where rows are no lanes: 6 x 4 sums and their factors are in 32 registers, 3 x 2 in 8."""
  return (6, 4) if registers(ren) >= 32 else (3, 2)

def _loads(root: UOp) -> list[UOp]:
  return [u for u in root.toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM]

def _tile(k: Scheduler) -> UOp|None:
  """The load of the one matrix whose rows are lanes."""
  outputs = k._output_rngs()
  found = [u for r, u in side_by_side(_loads(k.ast)).items() if r in outputs]
  return found[0] if len(found) == 1 else None

def tokens(k: Scheduler) -> UOp|None:
  """
  The output loop that the one matrix whose rows are lanes does not have; without lanes, one of unknown length that a
  factor of the sum does not have.
  """
  if not k.reduceops: return None
  outputs = [r for r in k.ranges_of(AxisType.WEAK) if r in k._output_rngs()]
  if (tile := _tile(k)) is not None: outside = [r for r in outputs if r not in tile.ranges]
  else:
    factors = [u for red in k.reduceops for u in _loads(red.src[0])]
    outside = [r for r in outputs if r.src[0].op is not Ops.CONST and any(r not in u.ranges for u in factors)]
  return outside[0] if len(outside) == 1 else None

def apply(k: Scheduler, opt: Opt) -> bool:
  check_amount(k, opt, 1, MOST)
  check((loop := tokens(k)) is not None, "there is no loop over tokens")
  assert loop is not None and isinstance(opt.arg, int)
  check(opt.arg <= loop.vmax + 1, "there are fewer tokens")
  if opt.arg > 1:
    of_rows = _tile(k) is not None
    made = {loop: blocked(loop, opt.arg, k.opt_range)} if of_rows else swept(k, loop, opt.arg)
    k.ast = k.ast.substitute(made)
  return True

def blocked(loop: UOp, n: int, ids: count) -> UOp:
  """A loop as one over blocks of n, and an unrolled one inside of them."""
  length, inner = loop.src[0], UOp.range(n, next(ids), AxisType.UPCAST, dtype=loop.dtype)
  if (parts := length.divides(n)) is not None: return loop.replace(src=(parts,)) * n + inner
  return (loop.replace(src=((length + (n - 1)) // n,)) * n + inner).minimum(length - 1)

def matrix_rows(k: Scheduler) -> list[UOp]:
  """The output axes of loads that no loop of unknown length changes, the innermost first."""
  loads = [u for red in k.reduceops for u in _loads(red.src[0])]
  known = [u for u in loads if all(r.src[0].op is Ops.CONST for r in u.ranges)]
  return sorted((r for r in k.ranges_of(AxisType.WEAK) if any(r in u.ranges for u in known)), key=lambda r: r.arg[:-1],
                reverse=True)

def swept(k: Scheduler, loop: UOp, n: int) -> dict[UOp, UOp]:
  """The loop over tokens, in blocks, inside of one over as many rows as a cache holds, outside of one over these."""
  made = {loop: blocked(loop.replace(arg=(next(k.opt_range), *loop.arg[1:])), n, k.opt_range)}
  if (row := max(matrix_rows(k), key=size, default=None)) is not None:
    some = math.gcd(size(row), LANES)  # of which epilogues.py makes vectors
    of_rows = steps(k.reduceops[0].src[1:]) * len(k.reduceops)
    held = divisor(size(row) // some, max(1, HELD // (of_rows * some))) * some
    parts, inner = size(row) // held, UOp.range(held, next(k.opt_range), row.arg[-1])
    if held > 1: made[row] = inner if parts == 1 else row.replace(src=(row.src[0].const_like(parts),)) * held + inner
  return made

def install() -> None:
  hooks.actions[ScheduleOps.TOKENS] = apply
