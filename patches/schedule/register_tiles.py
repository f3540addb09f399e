"""
Register blocking: several tokens of a prompt share the weights that a CPU loads and dequantises.

Why: a token loop inside the row loop unpacks a block of weights again for each token. A token loop outside it reads
  the whole matrix for each token.
How: the action TOKENS (ir/actions.py) unrolls steps of the token loop, the output loop that the matrix lacks. Their
  sums stay in registers. A loop of unknown length computes and stores its last steps twice: there is no remainder loop.
  With floats, lanes are neighbouring weights of a row instead of rows. The token loop then goes around a loop over as
  many rows as a core's cache holds; a nearer cache holds the few tokens of a step. Some rows are unrolled, too.
Rewrite:
  for token: for k: unpack w[k]; s[token] += w[k] * x[token, k]
  --> for 4 tokens: for k: unpack w[k]; s0 += w[k] * x0[k]; .. s3 += w[k] * x3[k]
Numbers: see tiles/pack_operands.py. Floats, 256 tokens by 8192 x 2048, 10^9 products a second, 2 threads: F16 14 ->
  112, BF16 13 -> 109 (Intel with AVX-512). With AVX2 alone: F16 46 (6 tokens, a row) -> 96 (3 tokens, 2 rows) on a Zen
  4, whose limit is 115
Upstream: not sent. It would be an UPCAST of a symbolic range that clamps its last steps.
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
from tinygrad_llm.patches.vector.lanes import interleaved

SEAMS = {
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
}

MOST = 16  # most tokens: more sums than there are registers
# where lanes are not rows
HELD = 1 << 18  # elements of rows that a core's cache holds

def tile_shape(ren: Renderer) -> tuple[int, int]:
  """
  Returns the tokens and rows of a step where lanes are not rows.

  Sums and factors of 6 x 4 fit 32 registers, 3 x 2 fit 8.
  """
  return (6, 4) if registers(ren) >= 32 else (3, 2)

def _loads(root: UOp) -> list[UOp]:
  return [u for u in root.toposort() if u.op is Ops.INDEX and u.src[0].op is Ops.PARAM]

def _tile(k: Scheduler) -> UOp|None:
  """Returns the load of the one matrix whose rows are lanes. None if there is none, or several."""
  outputs = k._output_rngs()
  found = [u for r, u in interleaved(_loads(k.ast)).items() if r in outputs]
  return found[0] if len(found) == 1 else None

def tokens(k: Scheduler) -> UOp|None:
  """
  Returns the loop over tokens; None unless there is exactly one.

  It is an output loop that the matrix whose rows are lanes lacks. Without such a matrix, it is an output loop of
  unknown length that a factor of the sum lacks.
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
  """Splits a loop into one over blocks of n and an unrolled one within them. Steps beyond the end repeat the last."""
  length, inner = loop.src[0], UOp.range(n, next(ids), AxisType.UPCAST, dtype=loop.dtype)
  if (parts := length.divides(n)) is not None: return loop.replace(src=(parts,)) * n + inner
  return (loop.replace(src=((length + (n - 1)) // n,)) * n + inner).minimum(length - 1)

def matrix_rows(k: Scheduler) -> list[UOp]:
  """Returns the output axes of the loads whose loops all have a constant length, the innermost first."""
  loads = [u for red in k.reduceops for u in _loads(red.src[0])]
  known = [u for u in loads if all(r.src[0].op is Ops.CONST for r in u.ranges)]
  return sorted((r for r in k.ranges_of(AxisType.WEAK) if any(r in u.ranges for u in known)), key=lambda r: r.arg[:-1],
                reverse=True)

def swept(k: Scheduler, loop: UOp, n: int) -> dict[UOp, UOp]:
  """
  Returns substitutions that split the rows and tokens into a nest of loops, the outermost first.

  The loops are over parts of as many rows as a cache holds, over blocks of n tokens, and over the rows of a part.
  """
  made = {loop: blocked(loop.replace(arg=(next(k.opt_range), *loop.arg[1:])), n, k.opt_range)}
  if (row := max(matrix_rows(k), key=size, default=None)) is not None:
    some = math.gcd(size(row), LANES)  # rows that epilogues.py makes a vector of
    of_rows = steps(k.reduceops[0].src[1:]) * len(k.reduceops)
    held = divisor(size(row) // some, max(1, HELD // (of_rows * some))) * some
    parts, inner = size(row) // held, UOp.range(held, next(k.opt_range), row.arg[-1])
    if held > 1: made[row] = inner if parts == 1 else row.replace(src=(row.src[0].const_like(parts),)) * held + inner
  return made

def install() -> None:
  hooks.actions[ScheduleOps.TOKENS] = apply
