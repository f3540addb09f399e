"""vector/reroll: groups packed element by element become loops over lanes; the words are evaluated by numpy."""
import functools

import pytest
from tests.support.interpret import same
from tests.support.scheduling import kernel, opts, output, renderer, started
from tinygrad import Tensor, dtypes
from tinygrad.codegen.simplify import pm_flatten_range
from tinygrad.uop.ops import AxisType, Ops, UOp, graph_rewrite
from tinygrad.uop.symbolic import sym
from tinygrad_llm.device import captured
from tinygrad_llm.patches.ir.builder import is_lanes
from tinygrad_llm.patches.schedule.elementwise import schedule
from tinygrad_llm.patches.vector import reroll
from tinygrad_llm.patches.vector.reroll import Unlike, alike, words_of
from tinygrad_llm.weights import numerics

def packed(value, pack) -> UOp:
  """The unscheduled kernel that packs a value of two tensors of 4 x 96 elements."""
  tensors = [Tensor.empty(4, 96) for _ in range(2)]
  calls = captured.scheduled(lambda: pack(value(*tensors)))[0].src
  sink, = (call.src[0] for call in calls if call.src[0].op is Ops.SINK)
  return simplified(sink)

def simplified(sink: UOp) -> UOp: return graph_rewrite(sink, sym + pm_flatten_range)

VALUES = {"x": lambda a, b: a, "2x": lambda a, b: a * -2.0, "silu": lambda a, b: a.silu() * b,
          "gelu": lambda a, b: a.gelu() * b, "relu": lambda a, b: a.relu().square(),
          "columns": lambda a, b: a[:, 32:64], "every second": lambda a, b: a.reshape(4, 48, 2)[..., 1]}
PACKS = {"16": numerics.pack, "32": lambda x: numerics.pack(x, 32), "two bytes": numerics.pack_fine}

@pytest.mark.parametrize("pack", PACKS)
@pytest.mark.parametrize("value", VALUES)
def test_unrolled_words_become_a_loop(value, pack):
  """The words are the same, and code that was written out 16 times becomes one loop over lanes."""
  if value == "every second" and pack == "32": pytest.skip("48 elements are no groups of 32")
  sink = packed(VALUES[value], PACKS[pack])
  made = reroll.rerolled(sink)
  assert same(sink, made)
  loops = [u for u in made.toposort() if is_lanes(u)]
  assert {int(u.vmax) + 1 for u in loops} == {16, 4}
  transcendental = [sum(u.op is Ops.EXP2 for u in x.toposort()) for x in (sink, made)]
  assert transcendental[1] == transcendental[0] / 16

def test_schedule_unrolls_only_the_words():
  """The schedule unrolls only the words; the pass makes vectors of a group."""
  sink = packed(VALUES["silu"], PACKS["32"])
  made = schedule(started(sink, "CPU"))
  chosen = simplified(made.ast)
  assert opts(made) == [("UPCAST", 0)] and words_of(chosen).arg[-1] is AxisType.UPCAST
  assert same(sink, reroll.run(chosen, renderer("CPU")))
  assert reroll.run(chosen, renderer("CUDA")) is chosen  # threads are lanes there

LANE, X = output(16, 20), UOp.param(1, dtypes.float, (4096,), "CPU")
I = output(8)

def elements(of, n: int = 16) -> tuple[UOp, ...]: return tuple(of(i) for i in range(n))

def test_alike_finds_common_structure():
  """alike() finds strided indices, shared values, and groups that already have a name."""
  group = elements(lambda i: X.index(I * 64 + (i * 3 + 5)) * 2.0)
  assert alike(group, LANE, {}) is X.index(I * 64 + 5 + LANE * 3) * 2.0
  shared = X.index(I)
  assert alike(elements(lambda i: shared), LANE, {}) is shared
  named = UOp.variable("named", 0, 9, dtypes.float)
  assert alike(elements(lambda i: group[i].exp2() + shared), LANE, {group: named}) is named.exp2() + shared

@pytest.mark.parametrize("of", [
  lambda i: X.index(I * 64 + i * i), lambda i: X.index(I * (64 + i)), lambda i: X.index(I * 64 + (i ^ 1)),
  lambda i: UOp.param(1 + i, dtypes.float, (4096,), "CPU").index(I), lambda i: X.index(I + i) * float(i),
  lambda i: X.index(I + i) * 2.0 if i < 15 else X.index(I + i).exp2()],
  ids=["squares", "strides", "turns", "buffers", "constants", "the last"])
def test_alike_rejects_different_elements(of):
  with pytest.raises(Unlike): alike(elements(of), LANE, {})

def hand_made(order=range(16), summed=range(16), count: int = 16, sign: int = -128) -> UOp:
  """A kernel of six words as numerics.pack() builds it, with a given order of elements and a sum of some."""
  words, groups = output(6, 1), output(8)
  x = [X.index(groups * 64 + i) for i in order][:count]
  top = functools.reduce(UOp.maximum, [e.maximum(e * -1.0) for e in x])
  r = [(e * (top > 0.0).where(127.0 / top, 0.0)).cast(dtypes.int) for e in x]
  codes = [(e.bitcast(dtypes.uint32) & 255) << 8 * (i % 4) if i % 4 else e.bitcast(dtypes.uint32) & 255
           for i, e in enumerate(r)]
  of = [functools.reduce(UOp.__or__, codes[i:i + 4]) for i in range(0, count, 4)]
  total = functools.reduce(UOp.__add__, [r[i] for i in summed]) * sign
  of += [top.bitcast(dtypes.uint32), total.bitcast(dtypes.uint32)]
  value = of[-1]
  for i in reversed(range(5)): value = words.ne(i).where(value, of[i % len(of)])
  return kernel(groups * 6 + words, value, groups, words)

def test_reversed_elements():
  """Reversed elements have a stride of -1; the sum may have another factor."""
  for sink in (hand_made(), hand_made(order=range(15, -1, -1)), hand_made(sign=7)):
    assert words_of(sink) is not None and same(sink, reroll.rerolled(sink))

@pytest.mark.parametrize("sink", [
  hand_made(order=[1, 0, *range(2, 16)]), hand_made(summed=range(15)), hand_made(summed=[0, *range(15)]),
  hand_made(count=8, summed=range(8))], ids=["order", "15 of 16", "one twice", "groups of 8"])
def test_unsupported_kernels_unchanged(sink):
  with pytest.raises(Unlike): reroll.rerolled(sink)
  assert words_of(sink) is None  # so it is vectorised over groups instead
  assert reroll.run(sink, renderer("CPU")) is sink

def test_kernels_without_words_unchanged():
  """Kernels without words, or with unrolled groups, are not changed."""
  plain = kernel(I, X.index(I) * 2.0, I)
  sink = hand_made()
  unrolled = sink.substitute({u: u.replace(arg=(*u.arg[:-1], AxisType.UPCAST)) for u in sink.toposort()
                              if u.op is Ops.RANGE and u.arg[0] == 0})
  for other in (plain, unrolled): assert words_of(other) is None and reroll.run(other, renderer("CPU")) is other
