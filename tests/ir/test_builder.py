"""ir/builder.py: fresh loop numbers and array slots."""
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import AxisType, UOp

from tinygrad_llm.patches.ir.builder import MARK, Loops, Slot, is_lanes, lanes, next_loop
from tinygrad_llm.patches.ir.targets import LANES

def graph(*numbers: int) -> UOp:
  buffer = UOp.placeholder((64,), dtypes.float32, 0)
  return UOp.sink(*(buffer.index(UOp.range(4, n)) for n in numbers))

def test_next_loop():
  assert next_loop(graph()) == 0
  assert next_loop(graph(0)) == 1
  assert next_loop(graph(7, 2, 5)) == 8

def test_new_loops_have_fresh_ordered_ids():
  made = Loops(of := graph(3, 9))
  loops = [made.loop(4), made.range(1), made.lane(), made.loop(UOp.const(5), AxisType.REDUCE)]
  assert [r.arg[0] for r in loops] == [10, 11, 12, 13]
  assert not set(loops) & set(of.toposort())
  assert made.loop(1).arg == 0  # a loop of one iteration is a constant
  assert made.array(8).shape == (8,)

def test_slot_ranges_do_not_overlap():
  slots = sorted(v for k, v in vars(Slot).items() if k.isupper())
  assert len(slots) == len(set(slots)) == 6
  assert all(b - a >= 256 for a, b in zip([0, *slots], slots, strict=False))

def test_lanes_are_marked():
  lane = lanes(LANES, 3)
  assert is_lanes(lane)
  assert lane.arg[:2] == (3, MARK)
  assert not is_lanes(UOp.range(LANES, 3))
