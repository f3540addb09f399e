"""vector/live_ranges.py: the order of loads in kernels with several loops."""
import pytest
from tests.support.extended import some
from tests.support import child
from bench import schedules
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad_llm.device.device import open_target

# a sum in the first loop starts from another loop's accumulator, whose loads have later numbers
AFTER_A_LOOP = [[["UNROLL", 0, 4], ["THREAD", 1, 2], ["UPCAST", 1, 0]],
                [["UPCAST", 1, 4], ["UNROLL", 0, 4], ["THREAD", 0, 2], ["UNROLL", 0, 0]]]

@pytest.mark.parametrize("opts", some(AFTER_A_LOOP, 0))
def test_sums_starting_from_another_loops_accumulator(opts: list) -> None:
  source = child.call(source_of, opts, NO_FLASH_DECODING="1").value
  assert source.count("__builtin_prefetch") >= 40

def source_of(opts: list) -> str:
  open_target("CPU:x86-64-v4")
  call, _ = schedules.call_of(schedules.KERNELS["Q4_K x"])
  program = schedules.lowered(call, tuple(Opt(OptOps[op], axis, arg) for op, axis, arg in opts))
  return program.src[2].arg
