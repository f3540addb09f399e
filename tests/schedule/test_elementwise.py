"""schedule/elementwise: kernels without reductions become vectors; graphs before and after, evaluated by numpy."""
import pytest
from tests.support.interpret import same
from tests.support.scheduling import kernel, opts, output, reduced, started
from tests.support.vectors import LANE, vectorizer
from tinygrad import dtypes
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.ir.builder import is_lanes
from tinygrad_llm.patches.schedule import elementwise
from tinygrad_llm.patches.schedule.elementwise import choose_loops, on_gpu, run, schedule

I, J, SIX, PARTS = output(64), output(32, 1), output(6, 2), output(16, 3)

def x(place: UOp, slot: int = 0, dtype=dtypes.float) -> UOp: return UOp.param(slot, dtype, (4096,)).index(place)
def f(value: UOp) -> UOp: return value * 2.0 + 1.0

ONE = kernel(I, f(x(I)), I)

def test_sixteen_iterations_become_lanes():
  """for i in 64: y[i] = f(x[i]) --> for i in 4, lane in 16: y[16 * i + lane] = f(x[16 * i + lane])"""
  made = schedule(k := started(ONE, "CPU"))
  assert opts(made) == [("UPCAST", 16)] and not k.applied_opts and same(ONE, made.ast)
  vectors = run(made.ast, made.ren)
  loops = [u for u in vectors.toposort() if u.op is Ops.RANGE]
  assert [int(u.vmax) + 1 for u in loops if is_lanes(u)] == [16] and same(ONE, vectors)
  assert not any(u.arg[-1] is AxisType.UPCAST for u in loops)

@pytest.mark.parametrize(("sink", "found", "left"), [
  (kernel(I * 32 + J, f(x(I * 32 + J)), I, J), [16], [64, 2]),                # the inner loop of two
  (kernel(J * 64 + I, f(x(I * 32 + J)), I, J), [16], [4, 32]),                # in the order of the stores
  (kernel(I * 6 + SIX, (SIX < 2).where(x(I), f(x(I))), I, SIX), [0, 16], [4]),   # each part
  (kernel(I * 16 + PARTS, (PARTS < 2).where(x(I), f(x(I))), I, PARTS), [0, 16], [4])])
def test_choice_of_vectorised_loop(sink, found, left):
  made = schedule(started(sink, "CPU"))
  assert opts(made) == [("UPCAST", n) for n in found] and same(sink, made.ast) and same(sink, run(made.ast, made.ren))
  assert [int(r.vmax) + 1 for r in made.ranges_of(AxisType.WEAK)] == left

@pytest.mark.parametrize("sink", [
  kernel(I, x(I * 32 + reduced(32)).reduce(reduced(32), arg=Ops.ADD), I), kernel(SIX, f(x(SIX)), SIX),
  kernel(I // 2 * 2, x(I), I),                                   # stores without a stride
  kernel(I, x((I * I).minimum(63)), I)])                         # loads without a stride
def test_other_kernels_unchanged(sink): assert schedule(started(sink, "CPU")) is None

def test_symbolic_length_on_gpu():
  """for i in 8 * n: f(x[i]) --> for i in 8 * n / 8, thread in 2, 4 UPCAST, on a GPU"""
  n = UOp.variable("n", 1, 8, param=True)
  i = output(n * 8)
  made = on_gpu(started(kernel(i, f(x(i)), i), "CUDA"))
  assert opts(made) == [("UPCAST", 4), ("LOCAL", 2)]
  fixed = {n: UOp.const(5)}
  assert same(kernel(i, f(x(i)), i).substitute(fixed), made.ast.substitute(fixed))
  i, j = output(n * 64), output(8, 1)  # 64 threads over both loops
  made = on_gpu(started(kernel(i * 8 + j, f(x(j)), i, j, n=1 << 15), "CUDA"))
  assert opts(made) == [("UPCAST", 4), ("LOCAL", 2), ("LOCAL", 32)]
  assert on_gpu(started(ONE, "CUDA")) is None is on_gpu(started(kernel(output(n), x(output(n)), output(n)), "CUDA"))
  assert opts(choose_loops(started(ONE, "CPU"))) == [("UPCAST", 16)] and choose_loops(started(ONE, "CUDA")) is None

# *** vectors

A, B = (UOp.param(slot, dtypes.float, (64,)).index(LANE).load() for slot in (0, 1))
ONCE = UOp.param(2, dtypes.float, (64,)).index(UOp.const(0)).load()

def text(rule, u: UOp) -> tuple | None:
  made = rule(vectorizer(u), u)
  return made if made is None else (made.op, made.arg if made.op is Ops.CUSTOM else None, made.max_numel())

@pytest.mark.parametrize(("rule", "u", "made"), [
  ("compare", A < B, (Ops.CUSTOM, "({0}<{1})", 16)), ("compare", A.ne(ONCE), (Ops.CUSTOM, "({0}!={1})", 16)),
  ("compare", (A < B) & (B < ONCE), (Ops.AND, None, 16)), ("compare", (A < B).ne(UOp.const(True)), (Ops.XOR, None, 16)),
  ("choose", (A < B).where(A, ONCE), (Ops.CUSTOM, "({0}?{1}:{2})", 16)),
  ("count", (A < B).cast(dtypes.int), (Ops.AND, None, 16)),
  ("largest", A.maximum(B), (Ops.CUSTOM, "({0}?{1}:{2})", 16)),
  ("divide", A.alu(Ops.FDIV, B), (Ops.FDIV, None, 16))])
def test_vector_compare_select_and_maximum(rule, u, made):
  """m = a < b --> (a<b), 0 or -1 in each lane; m ? c : d --> (m?c:d); int(m) --> m & 1; max(a, b) --> ((a<b)?b:a)"""
  assert text(getattr(elementwise, rule), u) == made

def test_bool_to_int_is_zero_or_one():
  made = elementwise.count(vectorizer(u := (A < B).cast(dtypes.int)), u)
  assert {c.val for c in made.src[1].toposort() if c.op is Ops.CONST} == {1}

def test_maximum_uses_one_comparison():
  less, larger, other = elementwise.largest(v := vectorizer(A.maximum(B)), A.maximum(B)).src
  assert less.arg == "({0}<{1})" and less.src == (v.vector(A), v.vector(B)) == (other, larger)

@pytest.mark.parametrize(("rule", "u"), [
  ("compare", A.cast(dtypes.half) < B.cast(dtypes.half)),
  ("choose", (A < B).where(A.cast(dtypes.half), B.cast(dtypes.half))),
  ("count", (A < B).cast(dtypes.int8)), ("count", A.cast(dtypes.int)), ("largest", A.cast(dtypes.half).maximum(0.0)),
  ("divide", A.alu(Ops.MUL, B)), ("compare", A.alu(Ops.ADD, B))])
def test_expressions_without_vector_form(rule, u): assert text(getattr(elementwise, rule), u) is None
