"""schedule/gemv: schedules of matvecs on a CPU and on GPUs; graphs before and after, evaluated by numpy."""
import pytest
from tests.support.interpret import same
from tests.support.scheduling import kernel, opts, output, reduced, started
from tinygrad import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.ir.actions import ScheduleOps
from tinygrad_llm.patches.ir.products import Sum, find_sum
from tinygrad_llm.patches.schedule import gemv_gpu
from tinygrad_llm.patches.schedule.gemv import choose
from tinygrad_llm.patches.schedule.gemv_columns import on_columns
from tinygrad_llm.patches.schedule.gemv_cpu import on_cpu
from tinygrad_llm.patches.schedule.gemv_gpu import Tile, on_gpu

pytestmark = pytest.mark.skipif(not is_on("gemv") or not is_on("lanes"), reason="it is off")

def load(slot: int, place: UOp, dtype=dtypes.float) -> UOp: return UOp.param(slot, dtype, (1 << 15,)).index(place)

def product(rows: int, n: int, dtype=dtypes.float, norm: bool = False) -> UOp:
  """A matvec: for each row the sum of w * x, or of w * x times a norm's weight."""
  row, k = output(rows), reduced(n)
  value = load(1, row * n + k, dtype).cast(dtypes.float) * load(0, k)
  return kernel(row, (value * load(2, k) if norm else value).reduce(k, arg=Ops.ADD), row)

def in_two(rows: int, outer: int, inner: int, step: int) -> UOp:
  """A matvec whose inner loop has adjacent elements; outer iterations are `step` apart."""
  row, a, b = output(rows), reduced(outer), reduced(inner, 9)
  value = load(1, row * (outer * step) + a * step + b) * load(0, a * inner + b)
  return kernel(row, value.reduce(a, b, arg=Ops.ADD), row)

def packed(rows: int, words: int, interleaved: bool = False) -> UOp:
  """A matvec with 4-bit weights, eight a word; words of 16 rows are adjacent if interleaved."""
  tile, lane, w, c = output(rows // 16 if interleaved else rows), output(16, 1), reduced(words), reduced(8, 9)
  place = (tile * words + w) * 16 + lane if interleaved else tile * words + w
  field = (load(1, place, dtypes.uint32) >> (c * 4).cast(dtypes.uint32)) & 15
  total = (field.cast(dtypes.float) * load(0, w * 8 + c)).reduce(w, c, arg=Ops.ADD)
  return kernel(tile * 16 + lane if interleaved else tile, total, *((tile, lane) if interleaved else (tile,)))

def several(tokens: int, rows: int, n: int, dtype=dtypes.float) -> UOp:
  """A matrix by several x: one for each sequence of a step."""
  token, row, k = output(tokens), output(rows, 1), reduced(n)
  value = load(1, row * n + k, dtype).cast(dtypes.float) * load(0, token * n + k)
  return kernel(token * rows + row, value.reduce(k, arg=Ops.ADD), token, row)

def columns(n: int, steps: UOp | int = 12, rows: int = 1, dtype=dtypes.float) -> UOp:
  """x @ w, with adjacent columns of w."""
  row, column, k = output(rows), output(n, 1), reduced(steps)
  value = load(0, row * 32 + k, dtype) * load(1, k * n + column, dtype)
  return kernel(row * n + column, value.reduce(k, arg=Ops.ADD), row, column)

def plain(found: list) -> list: return [o for o in found if o[0] not in ("PREFETCH", "THREAD")]

def checked(sink: UOp, target: str) -> list[tuple]:
  """The opts of a scheduled kernel, which must compute the same as before."""
  made = choose(k := started(sink, target))
  assert made is not None and not k.applied_opts and same(sink, made.ast)
  return plain(opts(made))

@pytest.mark.parametrize(("sink", "found"), [
  (product(64, 128), [("UNROLL", 32), ("UNROLL", 2), ("UPCAST", 2)]),
  (product(64, 48), [("UNROLL", 16), ("UNROLL", 0)]),
  (product(8, 128, dtypes.half, True), [("UNROLL", 32), ("UNROLL", 2), ("UPCAST", 2)]),
  (packed(16, 16), [("UNROLL", 0), ("UNROLL", 0)]),
  (packed(32, 32, True), [("UPCAST", 0), ("UNROLL", 0), ("UNROLL", 0)])])
def test_cpu_schedule(sink, found):
  """sum k in 128: w[row k] * x[k] --> k in 2, 32 UNROLL, 2 UNROLL, 2 rows UPCAST; 16 rows if they are interleaved"""
  assert checked(sink, "CPU") == found

@pytest.mark.parametrize(("sink", "found"), [
  (product(16, 256), [("UNROLL", 4), ("GROUP", 32), ("LOCAL", 4)]),   # 16 bytes a thread, then a warp, then rows
  (product(16, 512, dtypes.half), [("UNROLL", 8), ("GROUP", 32), ("LOCAL", 4)]),
  (in_two(16, 64, 8, 8), [("UNROLL", 4), ("GROUP", 2), ("GROUP", 16), ("GROUP", 2)]),  # two warps of a long row
  (in_two(16, 64, 2, 2), [("UNROLL", 0), ("UNROLL", 2), ("GROUP", 32), ("LOCAL", 4)]),
  (in_two(16, 32, 2, 4), [("UNROLL", 0), ("GROUP", 32), ("LOCAL", 4)]),  # with gaps: only two are adjacent
  (product(64, 32), [("UNROLL", 4), ("GROUP", 8), ("LOCAL", 16)]),       # more short rows
  (packed(16, 128), [("UNROLL", 0), ("UNROLL", 4), ("GROUP", 32), ("LOCAL", 4)])])
def test_gpu_schedule(sink, found):
  """sum k in 256: w[row k] * x[k] --> row in 4, 4 LOCAL; thread in 32 GROUP, k in 4 UNROLL"""
  assert checked(sink, "CUDA")[:len(found)] == found

def test_gpu_rows_per_thread(monkeypatch):
  """If there are enough threads, each takes several rows."""
  monkeypatch.setattr(gemv_gpu, "multiprocessors", lambda ren: 0)
  assert checked(product(64, 256), "CUDA")[-1] == ("UPCAST", 4)
  assert checked(product(6, 256), "CUDA")[-1] == ("UPCAST", 3)
  warp = [("UNROLL", 4), ("GROUP", 2), ("GROUP", 16)]
  assert checked(in_two(64, 64, 8, 8), "CUDA") == [*warp, ("LOCAL", 4), ("UPCAST", 4)]

@pytest.mark.parametrize(("tokens", "weights", "found"), [
  (2, 8, [("UPCAST", 0)]), (3, 8, [("UPCAST", 0)]), (4, 8, [("UPCAST", 0)]), (6, 8, [("LOCAL", 3), ("UPCAST", 0)]),
  (8, 8, [("LOCAL", 2), ("UPCAST", 0)]), (7, 8, [("LOCAL", 7)])])
def test_gpu_several_rows_of_x(tokens, weights, found, monkeypatch):
  """A thread multiplies its weights by up to four rows of x; threads of the same block take the rest."""
  monkeypatch.setattr(gemv_gpu, "multiprocessors", lambda ren: 0)
  made = checked(several(tokens, 64, 512, dtypes.half), "CUDA")
  assert made[:1] == [("UNROLL", weights)] and made[-len(found):] == found
  assert ("UPCAST", 4) in made[:-1] and any(name == "GROUP" for name, _ in made)

def test_gpu_more_rows_of_x_are_left_alone():
  k = started(several(9, 64, 512), "CUDA")
  assert on_gpu(k, find_sum(k, gemv_gpu.TOKENS)) == "no axis that only the weight has"
  assert find_sum(k, 9).tokens and not find_sum(started(product(64, 512), "CUDA"), 8).tokens
  head, token, row, k = output(4), output(2, 1), output(64, 2), reduced(64)
  state = load(1, (head * 64 + row) * 64 + k) * load(0, (token * 4 + head) * 64 + k)
  states = started(kernel((token * 4 + head) * 64 + row, state.reduce(k, arg=Ops.ADD), head, token, row), "CUDA")
  assert not find_sum(states, 8).tokens
  unknown = UOp.variable("n", 1, 8, param=True)
  assert find_sum(started(several(unknown, 64, 512), "CUDA"), 8).rows is None

def test_tile_sets_the_amounts():
  """threads, warps, rows, weights --> GROUP, LOCAL, UPCAST, UNROLL"""
  k = started(sink := product(64, 512), "CUDA")
  made = on_gpu(k, find_sum(k), Tile(threads=16, warps=2, rows=2, weights=2))
  assert plain(opts(made)) == [("UNROLL", 2), ("GROUP", 16), ("LOCAL", 2), ("UPCAST", 2)] and same(sink, made.ast)

def test_columns_schedule():
  """x @ w --> 16 columns UPCAST, as many such vectors as registers allow, and rows of x that share w"""
  n = UOp.variable("n", 1, 12, param=True)
  for sink, found in ((columns(64), [16, 4]), (columns(160), [16, 5]), (columns(48, rows=4), [16, 3, 4])):
    made = on_columns(started(sink, "CPU"))
    assert [arg for _, arg in opts(made)] == found and same(sink, made.ast)
  assert [arg for _, arg in opts(on_columns(started(columns(32, n), "CPU")))] == [16, 2]
  assert checked(columns(64), "CPU") == [("UPCAST", 16), ("UPCAST", 4)]
  for sink in (columns(24), columns(64).replace(src=product(64, 128).src), product(64, 128)):
    assert on_columns(started(sink, "CPU")) is None

@pytest.mark.parametrize("sink", [
  kernel(output(4), load(0, output(4)), output(4)),                                      # no sum
  product(16, 128).substitute({reduced(128): reduced(UOp.variable("n", 1, 128, param=True))}),  # a symbolic length
  kernel(output(16), (load(1, output(16) * 64 + reduced(64)) * load(0, reduced(64))).reduce(reduced(64), arg=Ops.MAX),
         output(16))])
def test_other_kernels_unchanged(sink):
  for target in ("CPU", "CUDA"): assert choose(started(sink, target)) is None

def test_sum_without_weight_axis():
  k = started(kernel(UOp.const(0), load(0, reduced(64)).reduce(reduced(64), arg=Ops.ADD)), "CUDA")
  assert isinstance(found := find_sum(k), Sum) and on_gpu(k, found) == "no axis that only the weight has"

def test_too_few_adjacent_weights():
  """24 weights a row are a vector and a half; weights with a stride of 3 are not adjacent."""
  k = started(product(16, 24), "CPU")
  assert on_cpu(k, find_sum(k)) == "fewer neighbours than lanes"
  row, j = output(8), reduced(32)
  k = started(kernel(row, (load(1, row * 96 + j * 3) * load(0, j * 3)).reduce(j, arg=Ops.ADD), row), "CPU")
  assert on_cpu(k, find_sum(k)) == "no load with stride 1"

# *** prompts

def prompt(tokens: int, rows: int, words: int = 8) -> UOp:
  token, row, w, c = output(tokens), output(rows, 1), reduced(words), reduced(8, 9)
  field = (load(1, row * words + w, dtypes.uint32) >> (c * 4).cast(dtypes.uint32)) & 15
  x = load(0, (token * words + w) * 8 + c)
  return kernel(token * rows + row, (field.cast(dtypes.float) * x).reduce(w, c, arg=Ops.ADD), token, row, n=1 << 16)

@pytest.mark.skipif(not is_on("mma_tiles"), reason="it is off")
@pytest.mark.parametrize(("tokens", "rows", "size"), [
  (512, 1024, (64, 64, 64, 32, 32)), (2048, 4096, (128, 128, 64, 64, 32)), (32, 64, (16, 64, 64, 16, 16))])
def test_gpu_block_sizes(tokens, rows, size):
  """for token, row: sum --> the largest blocks that give each of 128 multiprocessors one, else the smallest"""
  assert opts(choose(started(prompt(tokens, rows), "CUDA"))) == [("BLOCK", size)]

def test_no_block_for_few_tokens():
  for sink in (prompt(15, 64), prompt(64, 15)):
    assert all(name != ScheduleOps.BLOCK.name for name, _ in opts(choose(started(sink, "CUDA"))))
