"""
AMX: prefill GEMMs with quantised weights run in a CPU's tile registers, as bfloat16.

Why: an Intel core from Sapphire Rapids on multiplies and adds 16 x 16 x 32 bfloat16 numbers in 16 cycles. This is eight
  times as fast as its int8 vectors and sixteen times as fast as its float vectors.
How: the action AMX (ir/actions.py) is a whole schedule; ir/matmuls.py finds the product in the kernel. Row tiles of 16
  rows each, of any weight type, are dequantised once for all tokens. They go into an array of bfloat16 that a core's
  second-level cache holds; two neighbours of a row make a word, as the instruction reads them. The activations x are
  stored as bfloat16 (weights/numerics.py) and read in place. Four tile registers hold sums of 32 tokens by 32 rows. Two
  more hold x, two hold weights. If K is long, x and the weights are multiplied in parts of K, and the sums wait in an
  array: all that a part needs stays in the cache. With int8, sub-blocks would need int32 sums and a scale each, which
  take more time than the products. If the number of tokens is no multiple of 32, the last 32 overlap those before.
Rewrite:
  for token, row: sum k: q(w[row, k]) * x[token, k]
  --> b = bf16(q(w)) of some tiles of 16 rows; for 32 tokens, 32 rows: 4 tile registers += tdpbf16ps(x, b)
Numbers: prompts of 512 and 128 tokens, 1B shape in Q4_K_M, 2 threads of a shared Xeon (family 6, model 207), tokens a
  second: 267 and 215; with int8 vectors 123 and 104, llama.cpp 109 and 96 (medians in turns,
  bench/results/prompts-amx-2026-11-29.json). One core multiplied 1,200 * 10^9 pairs a second without loads, 730 with x
  and weights in the second-level cache, 200 to 400 beyond it or beside a busy neighbour of the core. Weights of 512
  instead of 1,024 KB, and parts of K, took 0.75 of the time on one quiet core, 0.86 on two busy ones. A product's error
  is 0.2% of its terms' root mean square; with int8 activations it is 0.4%.
Upstream: not sent; tinygrad had AMX for Apple's M1 and dropped it.
"""
from __future__ import annotations
import functools
from dataclasses import dataclass
from tinygrad.codegen.opt import Opt, check
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.dtype import dtypes
from tinygrad.helpers import ceildiv, round_up
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import ClangRenderer
from tinygrad.uop.ops import AxisType, Ops, PatternMatcher, UOp, UPat
from tinygrad_llm.patches import hooks, is_on, places
from tinygrad_llm.patches.ir import targets
from tinygrad_llm.patches.ir.actions import ScheduleOps
from tinygrad_llm.patches.ir.builder import Loops
from tinygrad_llm.patches.ir.indices import apart, divisor, ended, size, steps, strides
from tinygrad_llm.patches.ir.matmuls import Matmul, Product, divided, find
from tinygrad_llm.patches.ir.targets import LANES, has_vectors, most_threads
from tinygrad_llm.patches.vector.vectorizer import c_functions

SEAMS = {
  "tinygrad.codegen.opt.postrange:Scheduler": "35256edac7fb",
  "tinygrad.codegen:full_rewrite_to_sink": "a1124f83af03",
  "tinygrad.renderer.cstyle:ClangRenderer": "9763a2d76a66",
  "tinygrad.renderer.cstyle:base_rewrite": "ef3d9dfef266",
}

TOKENS = 32        # tokens, and rows, per step: two tile registers each
DEPTH = 32         # weights of a row per tile register
PAIRS = TOKENS // LANES
UNROLLED = 32      # most weights of a row that are dequantised together
MOST = 64          # most row tiles that are dequantised together
HELD = 1 << 19     # bytes of dequantised weights: a quarter of a core's second-level cache, which holds x, too
DEEP = 2048        # most weights of a row that are multiplied in one go, unless the row has no parts of at least ..
SHALLOW = 512      # .. so many
SUMS = 1 << 18     # most sums that a thread keeps for the next part of the rows

def available(ren: Renderer) -> bool:
  """Whether a target has tile registers and this pass is on."""
  return has_vectors(ren) and is_on("amx_tiles") and targets.multiplies_tiles(ren)

# *** what is multiplied

@dataclass(frozen=True)
class Rows:
  """
  The rows of x in memory, one per token.

  load: loads an element. loops: the sum's loops, by ascending stride. stride: elements from one token to the next.
  """
  load: UOp
  loops: tuple[UOp, ...]
  stride: int

def _counts(steps_of: dict[UOp, int], loops: list[UOp], first: int) -> bool:
  """Whether loops, sorted by stride, form one nest without gaps: each stride is the one before times its size."""
  for r in loops:
    if steps_of.get(r) != first: return False
    first *= size(r)
  return True

def _rows_of_x(p: Product, m: Matmul) -> Rows|None:
  """Returns the rows of x. None if x is no bfloat16 matrix in memory with equally spaced rows."""
  x = p.x
  if x.op is not Ops.CAST or (load := x.src[0]).op is not Ops.INDEX or load.dtype is not dtypes.bfloat16: return None
  if load.src[0].op is not Ops.PARAM or {*m.tokens, *m.loops}.intersection(load.src[1].get_valid().ranges): return None
  of = strides(load.src[1].get_idx())
  loops = sorted(m.loops, key=lambda r: of.get(r, 0))
  tokens = list(reversed(m.tokens))
  if not tokens or (stride := of.get(tokens[0], 0)) <= 0 or not _counts(of, loops, 1): return None
  known = all(r.src[0].op is Ops.CONST for r in tokens[:-1])
  return Rows(load, tuple(loops), stride) if known and _counts(of, tokens, stride) else None

def why_not(m: Matmul) -> str:
  """Says why tile registers cannot compute a matmul; "" if they can."""
  if m.n_tokens.vmax < TOKENS: return "few tokens"
  if m.n_rows % LANES or size(m.rows[-1]) % LANES: return "rows that are no whole tiles"
  if steps(m.loops) % DEPTH: return "a row length that is no multiple of 32"
  of = [_rows_of_x(p, m) for p in m.products]
  if any(rows is None for rows in of): return "x is not stored as bfloat16"
  if any(rows.loops != of[0].loops or size(rows.loops[0]) % 2 for rows in of):  # type: ignore[union-attr]
    return "an innermost loop of odd length"
  return ""

def cuts(m: Matmul) -> int:
  """Returns into how many parts K is cut, so that x and the weights of a part stay in a core's cache."""
  if (of := _rows_of_x(m.products[0], m)) is None or _sums(m, PAIRS) > SUMS: return 1
  K, outer = steps(m.loops), size(of.loops[-1]) // (2 if len(of.loops) == 1 else 1)
  fits = [n for n in range(1, outer + 1) if outer % n == 0 and K // n % DEPTH == 0 and K // n <= DEEP]
  return fits[0] if fits and K // fits[0] >= SHALLOW else 1

def _sums(m: Matmul, held: int) -> int:
  """The sums of all tokens by `held` row tiles of each product."""
  return round_up(int(m.n_tokens.vmax), TOKENS) * held * LANES * len(m.products)

def tiles(m: Matmul, threads: int) -> int:
  """Returns how many row tiles of each product are dequantised together: an even number that the cache holds."""
  all_, n = ceildiv(m.n_rows // LANES, threads), cuts(m)
  most = HELD // (LANES * steps(m.loops) // n * 2 * len(m.products))
  if n > 1: most = min(most, SUMS // _sums(m, 1))
  most = max(PAIRS, min(MOST, most) // PAIRS * PAIRS)
  return min(most, ceildiv(ceildiv(all_, ceildiv(all_, most)), 2) * 2)  # equally many each time

def apply(k: Scheduler, opt: Opt) -> bool:
  check(available(k.ren), "no tile registers")
  check(isinstance(opt.arg, int) and opt.arg % PAIRS == 0 and 0 < opt.arg <= MOST, f"AMX is of 2, 4, .. {MOST} tiles")
  check(not k.applied_opts, "AMX is all of a schedule")
  made = find(ast := divided(k.ast))
  check(not isinstance(made, str), str(made))
  assert isinstance(made, Matmul)
  check(not (reason := why_not(made)), reason)
  k.ast = ast
  return True

# *** the kernel

def _call(name: str, sums: UOp, at: UOp|int, *others: UOp) -> UOp:
  """A call in C that takes addresses. Its result is stored in the sum `at`: tinygrad drops calls without a store."""
  src = (first := sums.index(at), *others)
  text = f"{PREFIX}{name}({','.join(f'{{{i}}}' for i in range(len(src)))})"
  return first.store(UOp(Ops.CUSTOM, dtypes.float, src, text))

def _is_call(u: UOp) -> bool: return u.op is Ops.CUSTOM and u.arg.startswith(PREFIX)

def is_step(u: UOp) -> bool:
  """Whether u multiplies 32 tokens by 32 rows, 32 weights of each row."""
  return _is_call(u) and u.arg.startswith(f"{PREFIX}step(")

class Kernel:
  """
  A kernel that uses tile registers: its loops, the outermost first, and its arrays.

  held: row tiles that are dequantised together. threads: most threads. If K is cut into parts, all sums of the tiles
  wait in an array for the next part.
  """
  def __init__(self, sink: UOp, m: Matmul, held: int, threads: int):
    self.sink, self.m, self.held = sink, m, held
    loops = Loops(sink)
    self.range, self.loop, self.lane, self.array = loops.range, loops.loop, loops.lane, loops.array
    self.x = {p: rows for p in m.products if (rows := _rows_of_x(p, m)) is not None}
    self.n_tiles = m.n_rows // LANES
    self.matrices = {r: self.range(r.src[0]) for r in m.matrices}
    parts = ceildiv(self.n_tiles, held)
    threads = min(threads, parts)
    each = ceildiv(parts, threads)
    self.thread, self.part = self.loop(threads, AxisType.THREAD), self.loop(each)
    self.first_tile = (self.thread * each + self.part) * held
    self.n_deep, self.n_blocks = cuts(m), (m.n_tokens + (TOKENS - 1)) // TOKENS
    self.deep = self.loop(self.n_deep)
    self.block, self.pair = self.loop(self.n_blocks), self.loop(held // PAIRS)

  def first_token(self, block: UOp) -> UOp: return (block * TOKENS).minimum(self.m.n_tokens - TOKENS).maximum(0)

  def place(self, block: UOp, pair: UOp) -> UOp:
    """Returns where the sums of a block of tokens by a pair of tiles begin."""
    return (block * (self.held // PAIRS) + pair) * TOKENS ** 2 if self.n_deep > 1 else UOp.const(0)

  def _row(self, tile: UOp, lane: UOp) -> dict[UOp, UOp]:
    """Returns the steps of the loops over rows. Tiles beyond the last one repeat it."""
    tile, last = (self.first_tile + tile).minimum(self.n_tiles - 1), self.m.rows[-1]
    if size(last) == LANES: return {last: lane, **apart(tile, self.m.rows[:-1])}
    return apart(tile * LANES + lane, self.m.rows)

  def weights(self, p: Product) -> UOp:
    """Fills an array with dequantised weights: tile after tile, pairs of neighbours in the order of x, of 16 rows."""
    loops = self.x[p].loops
    pairs = {r: size(r) // (2 if r is loops[0] else 1) // (self.n_deep if r is loops[-1] else 1) for r in loops}
    unrolled, left = dict[UOp, int](), UNROLLED // 2
    for r, n in pairs.items():
      unrolled[r] = divisor(n, left)
      left //= unrolled[r]
    tile = self.loop(self.held)
    outer = {r: self.loop(pairs[r] // unrolled[r]) for r in reversed(loops)}
    inner = {r: self.loop(unrolled[r], AxisType.UPCAST) for r in reversed(loops)}
    lane, at = self.lane(), {r: outer[r] * unrolled[r] + inner[r] for r in loops}
    place = functools.reduce(lambda n, r: n * pairs[r] + at[r], outer, tile)
    deep = {**at, loops[-1]: self.deep * pairs[loops[-1]] + at[loops[-1]]}
    def bits(odd: int) -> UOp:
      """Returns a weight's float32 bits, increased so that cutting off the lower half rounds to bfloat16."""
      of = {**self._row(tile, lane), **deep, loops[0]: deep[loops[0]] * 2 + odd, **self.matrices}
      return p.w.substitute(of, walk=True).cast(dtypes.float).bitcast(dtypes.uint32) + (1 << 15)
    array = self.array(self.held * steps(loops) // self.n_deep // 2 * LANES, dtypes.uint32)
    filled = array.index(place * LANES + lane).store(bits(0) >> 16 | bits(1) & 0xffff0000)
    return array.after(ended(filled, lane, *inner.values(), *outer.values(), tile))

  def product(self, p: Product, weights: UOp, before: UOp) -> UOp:
    """Stores the sums of 32 tokens by 32 rows in an array. before: the last call that used the tile registers."""
    rows, around = self.x[p], (self.thread, self.part, self.deep, self.block, self.pair)
    inside = [r for r in (*self.matrices.values(), *around) if r.op is Ops.RANGE]
    sums = self.array(_sums(self.m, self.held) // len(self.m.products) if self.n_deep > 1 else TOKENS ** 2)
    place, K = self.place(self.block, self.pair), steps(rows.loops) // self.n_deep
    step = self.loop(K // DEPTH)
    started = _call("start", sums.after(before, *inside), place, self.deep.cast(dtypes.int))
    at = rows.load.src[1].get_idx().substitute({
      **{r: r.const_like(0) for r in (*rows.loops, *self.m.tokens)}, **self.matrices}, walk=True)
    at = at + self.first_token(self.block) * rows.stride + self.deep * K + step * DEPTH
    of_rows = [weights.index(((self.pair * PAIRS + i) * (K // 2) + step * (DEPTH // 2)) * LANES) for i in range(PAIRS)]
    done = _call("step", sums.after(started), place, rows.load.src[0].index(at),
                 UOp.cconst(2 * rows.stride, dtypes.int), *of_rows)
    return _call("stop", sums.after(ended(done, step)), place)

  def kernel(self) -> UOp:
    m, stored, last = self.m, list[UOp](), _call("configure", self.array(1), 0)
    arrays = {w: self.weights(p) for w, p in {p.w: p for p in m.products}.items()}
    for p in m.products: stored.append(last := self.product(p, arrays[p.w], last))
    sums, block, pair = [u.src[0].buf_uop for u in stored], self.block, self.pair
    if self.n_deep > 1:  # all parts of K come before the results
      stored = [ended(UOp.group(*stored), pair, block, self.deep)] * len(stored)
      block, pair = self.loop(self.n_blocks), self.loop(self.held // PAIRS)
    t, j, lane = self.loop(m.n_tokens.minimum(TOKENS)), self.loop(PAIRS), self.lane()
    place = self.place(block, pair) + (t * PAIRS + j) * LANES + lane
    new = {p.red: of.after(u).index(place).cast(p.red.dtype) for p, of, u in zip(m.products, sums, stored)}
    at = {**apart(self.first_token(block) + t, m.tokens), **self._row(pair * PAIRS + j, lane), **self.matrices}
    ends = list[UOp]()
    for end in self.sink.src:
      store = end.src[0].substitute(new).substitute(at, walk=True)
      ends.append(ended(store, lane, j, t))
    return ended(UOp.group(*ends), pair, block, self.part, self.thread, *self.matrices.values()).sink(arg=self.sink.arg)

def run(sink: UOp, ren: Renderer) -> UOp:
  opt = next((opt for opt in sink.arg.applied_opts if opt.op is ScheduleOps.AMX), None)
  if opt is None or isinstance(m := find(sink), str) or why_not(m): return sink
  return Kernel(sink, m, opt.arg, most_threads(ren)).kernel()

# *** in C

PREFIX = "amx_"
FUNCTIONS = """
typedef unsigned int amx_words __attribute__((aligned(4),ext_vector_type(16)));
typedef float amx_floats __attribute__((aligned(4),ext_vector_type(16)));
static inline float amx_configure(float* none) {
#if defined(__AMX_BF16__)
  unsigned long long of[8] = {1, 0, 0x0040004000400040, 0x0040004000400040, 0, 0, 0x1010101010101010, 0};
  __builtin_ia32_tile_loadconfig(of);
#endif
  return *none;
}
static inline float amx_start(float* sums, int part) {
#if defined(__AMX_BF16__)
  if (part) {
    __builtin_ia32_tileloadd64(0, sums, 128);
    __builtin_ia32_tileloadd64(1, sums + 16, 128);
    __builtin_ia32_tileloadd64(2, sums + 32 * 16, 128);
    __builtin_ia32_tileloadd64(3, sums + 32 * 16 + 16, 128);
    return *sums;
  }
  __builtin_ia32_tilezero(0);
  __builtin_ia32_tilezero(1);
  __builtin_ia32_tilezero(2);
  __builtin_ia32_tilezero(3);
#else
  if (!part) for (int i = 0; i < 32 * 32; i++) sums[i] = 0;
#endif
  return *sums;
}
static inline float amx_step(float* sums, const __bf16* x, long stride, const unsigned int* a, const unsigned int* b) {
#if defined(__AMX_BF16__)
  __builtin_ia32_tileloadd64(6, a, 64);
  __builtin_ia32_tileloadd64(4, x, stride);
  __builtin_ia32_tileloadd64(7, b, 64);
  __builtin_ia32_tileloadd64(5, (const char*)x + 16 * stride, stride);
  __builtin_ia32_tdpbf16ps(0, 4, 6);
  __builtin_ia32_tdpbf16ps(1, 4, 7);
  __builtin_ia32_tdpbf16ps(2, 5, 6);
  __builtin_ia32_tdpbf16ps(3, 5, 7);
#else
  for (int t = 0; t < 32; t++) for (int j = 0; j < 2; j++) {
    const unsigned int* of_x = (const unsigned int*)((const char*)x + t * stride);
    amx_floats* sum = (amx_floats*)(sums + 32 * t + 16 * j);
    for (int k = 0; k < 16; k++) {
      amx_words w = *(const amx_words*)((j ? b : a) + 16 * k);
      *sum += __builtin_bit_cast(amx_floats, w << 16) * __builtin_bit_cast(float, of_x[k] << 16);
      *sum += __builtin_bit_cast(amx_floats, w & 0xffff0000u) * __builtin_bit_cast(float, of_x[k] & 0xffff0000u);
    }
  }
#endif
  return *sums;
}
static inline float amx_stop(float* sums) {
#if defined(__AMX_BF16__)
  __builtin_ia32_tilestored64(0, sums, 128);
  __builtin_ia32_tilestored64(1, sums + 16, 128);
  __builtin_ia32_tilestored64(2, sums + 32 * 16, 128);
  __builtin_ia32_tilestored64(3, sums + 32 * 16 + 16, 128);
#endif
  return *sums;
}
"""

def render_call(ctx: ClangRenderer, u: UOp) -> str|None:
  """Writes a call with its loads' addresses. The loads stay in the graph, where they are counted; clang drops them."""
  if not _is_call(u): return None
  return str(u.arg.format(*[ctx[s.src[0] if s.op is Ops.LOAD else s] for s in u.src]))

pm_render_calls = PatternMatcher([(UPat(Ops.CUSTOM, name="u"), render_call)])

def install() -> None:
  hooks.actions[ScheduleOps.AMX] = apply
  c_functions.append(((PREFIX,), FUNCTIONS))
  hooks.after_opts.append(run)
  targets.here()  # asks Linux for the registers: this process may run kernels that another one has compiled
  places.rules(ClangRenderer, "string_rewrite", pm_render_calls, first=True)
