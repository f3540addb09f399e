"""isa/dot_int8_cpu: sums of products of bytes are sums of integers; graphs before and after, their values by numpy."""
import random

import pytest
from tests.gpu import gpu_renderers
from tests.support.interpret import same
from tests.support.random_sums import LOOPS, OUTPUTS, kernel
from tinygrad import Device, dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.isa.dot_int8_cpu import run

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

def test_products_of_integers():
  """sum: float(w) * float(x) --> float(sum: int(w) * int(x))"""
  made = made_of(sink := total(floated(weight()) * floated(byte())))
  assert same(sink, made) and sums(made) == {dtypes.int} and whole(weight()) * whole(byte()) in products(made)

def test_what_is_subtracted():
  """sum: (float(w) - 8) * float(x) --> float(sum: int(w) * int(x) + int(x) * -8)"""
  made = made_of(sink := total(floated(weight(), -8.0) * floated(byte())))
  assert same(sink, made) and sums(made) == {dtypes.int} and made is not sink
  assert whole(weight()) * whole(byte()) in products(made)  # the subtraction is apart: both factors are bytes

def test_activations_alone():
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
  total(floated(weight(), 0.5) * floated(byte())),                          # no whole number
  total(floated(weight()) * floated(byte(), 1.0)),                          # activations have nothing added
  total(floated(weight()) * floated(byte(dtypes.uint8))), total(floated(byte(dtypes.int16))),  # no int8
  total(floated(weight()) * byte(dtypes.float)),                            # no integer
  total(floated(weight()) * floated(byte()), Ops.MAX)])
def test_what_is_left(sink): assert made_of(sink) is sink

def test_gpus_keep_their_floats():
  sink = total(floated(weight()) * floated(byte()))
  assert run(sink, gpu_renderers.named("CUDA")) is sink
