"""isa/dot_int8_cpu: sums of int8 products become integer sums; graphs before and after, evaluated by numpy."""
import random

import pytest
from tests.gpu import gpu_renderers
from tests.isa.words import number
from tests.support.interpret import same
from tests.support.random_sums import LOOPS, OUTPUTS, kernel
from tests.support.vectors import LANE, added, vectorizer
from tinygrad import Device, dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.isa.dot_int8_cpu import dot, run

(A, B, _), (ROW, _) = LOOPS, OUTPUTS

def byte(dtype=dtypes.int8) -> UOp: return UOp.param(0, dtype, (64,)).index(A * 4 + B)
def weight(bits: int = 4) -> UOp:
  word = UOp.param(1, dtypes.uint32, (64,)).index(A * 4 + ROW)
  return (word >> (B * 8).cast(dtypes.uint32)) & ((1 << bits) - 1)
def floated(u: UOp, offset: float = 0) -> UOp: return u.cast(dtypes.float) + offset if offset else u.cast(dtypes.float)
def total(value: UOp, op: Ops = Ops.ADD) -> UOp: return kernel(value.reduce(A, B, arg=op))
def integers(value: UOp) -> UOp: return kernel(value.reduce(A, B, arg=Ops.ADD).cast(dtypes.float))
def made_of(sink: UOp) -> UOp: return run(sink, Device["CPU"].renderer)
def whole(u: UOp) -> UOp: return u.cast(dtypes.int)

def products(sink: UOp) -> set[UOp]: return {u for u in sink.toposort() if u.op is Ops.MUL and u.dtype is dtypes.int}
def sums(sink: UOp) -> set:
  return {u.dtype for u in sink.toposort() if u.op is Ops.REDUCE}

def test_float_sum_becomes_integer_sum():
  """sum: float(w) * float(x) --> float(sum: int(w) * int(x))"""
  made = made_of(sink := total(floated(weight()) * floated(byte())))
  assert same(sink, made) and sums(made) == {dtypes.int} and whole(weight()) * whole(byte()) in products(made)

def test_constant_offset_becomes_integer_term():
  """sum: (float(w) - 8) * float(x) --> float(sum: int(w) * int(x) + int(x) * -8)"""
  made = made_of(sink := total(floated(weight(), -8.0) * floated(byte())))
  assert same(sink, made) and sums(made) == {dtypes.int} and made is not sink
  assert whole(weight()) * whole(byte()) in products(made)  # the subtraction is separate, so both factors are bytes

def test_activation_sum_becomes_integer_sum():
  """sum: float(x) --> float(sum: int(x))"""
  assert made_of(sink := total(floated(byte()))) is integers(whole(byte())) and same(sink, made_of(sink))

def test_random_products():
  rng = random.Random(5)
  for seed in range(40):
    w = weight(rng.randint(1, 8))
    if rng.random() < 0.5: w = rng.choice((w ^ 3, w | 1, w + weight(2)))
    factors = [floated(w, float(rng.randint(-9, 9))), floated(byte())]
    made = made_of(sink := total(factors[seed % 2] * factors[1 - seed % 2]))
    assert same(sink, made) and sums(made) == {dtypes.int}, seed

@pytest.mark.parametrize("sink", [
  total(floated(weight(), 0.5) * floated(byte())),                          # a fractional offset
  total(floated(weight()) * floated(byte(), 1.0)),                          # an offset of the activations
  total(floated(weight()) * floated(byte(dtypes.uint8))), total(floated(byte(dtypes.int16))),  # no int8
  total(floated(weight()) * byte(dtypes.float)),                            # not an integer
  total(floated(weight()) * floated(byte()), Ops.MAX)])
def test_other_sums_unchanged(sink): assert made_of(sink) is sink

def test_not_applied_on_gpus():
  sink = total(floated(weight()) * floated(byte()))
  assert run(sink, gpu_renderers.named("CUDA")) is sink

# *** vectors

X, W = (UOp.param(slot, dtypes.uint32, (64,)) for slot in (2, 3))

def shifted(u: UOp, by: int, mask: int) -> UOp:
  return (u.alu(Ops.SHR, number(by)) if by else u).alu(Ops.AND, number(mask))
def of_lane(i: int, mask: int = 15, more: int = 0) -> UOp:
  return shifted(W.index(LANE + 16).load(), 8 * i + more, mask).cast(dtypes.int)
def of_all(i: int) -> UOp:
  word = X.index(UOp.const(3)).load()
  return shifted(word, 8 * i, 255).cast(dtypes.uint8).bitcast(dtypes.int8).cast(dtypes.int)
def dots(weights: list[UOp], *others: UOp) -> UOp | None:
  value = added(*[w.alu(Ops.MUL, of_all(i)) for i, w in enumerate(weights)], *others)
  return dot(vectorizer(value), value)

@pytest.mark.parametrize(("mask", "name"), [(15, "7_bits"), (127, "7_bits"), (255, "bytes")])
def test_four_products_become_one_instruction(mask, name):
  """sum i in 4: ((w[lane] >> 8 * i) & 15) * byte(x, i) --> add_dots(0, w[0..16] & 0x0f0f0f0f, x)"""
  made = dots([of_lane(i, mask) for i in range(4)])
  assert made.op is Ops.CUSTOMI and made.arg == f"add_dots_of_{name}({{0}},{{1}},{{2}})"
  total, words, x = made.src
  assert {u.val for u in total.toposort() if u.op is Ops.CONST} == {0} and x is X.index(UOp.const(3)).load()
  load, masks = words.src if mask < 255 else (words, None)
  assert load.op is Ops.LOAD and load.max_numel() == 16 and W in load.toposort()
  assert masks is None or {u.val for u in masks.toposort() if u.op is Ops.CONST} == {mask * 0x01010101}

def test_addend_becomes_accumulator():
  """sum i: w * byte(x, i) + t --> add_dots(t, w, x)"""
  t = UOp.variable("t", 0, 9, dtypes.int)
  assert set(dots([of_lane(i) for i in range(4)], t).src[0].src) == {t}

def test_offset_uses_second_dot():
  """sum i: w * byte(x, i) - 8 * byte(x, i) --> add_dots(0, w, x) - add_dots(0, 0x08080808, x)"""
  eights = [number(-8, dtypes.int).alu(Ops.MUL, of_all(i)) for i in range(4)]
  made = dots(of := [of_lane(i) for i in range(4)], *eights)
  assert made.op is Ops.SUB and made.src[0] is dots(of)
  assert {u.val for u in made.src[1].src[1].toposort() if u.op is Ops.CONST} == {0x08080808}

def test_only_offset_becomes_negated_dot():
  """sum i: -8 * byte(x, i) --> 0 - add_dots(0, 0x08080808, x)"""
  made = dots([number(-8, dtypes.int)] * 4)
  assert made.op is Ops.SUB and made.src[1].op is Ops.CUSTOMI
  assert {u.val for u in made.src[0].toposort() if u.op is Ops.CONST} == {0}

@pytest.mark.parametrize("weights", [
  [of_lane(i) for i in range(3)], [of_lane(i) for i in (0, 2, 1, 3)],      # three bytes; another order
  [of_lane(i, more=5) for i in range(4)], [of_lane(i, 511) for i in range(4)]])  # across two bytes; 9 bits
def test_unsupported_sums_unchanged(weights): assert dots(weights) is None
