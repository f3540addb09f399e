"""Expected times of pieces and steps, against costs that are a line, a curve, or rarely much longer."""
import random
import pytest

from tinygrad_llm.engine.batch.step_times import DecodeTimes, PieceTimes

def times(*points: tuple[int, float], step: float = 0.0) -> PieceTimes:
  found = PieceTimes()
  found.step = step
  for tokens, seconds in points: found.add(tokens, seconds)
  return found

def line(tokens: int) -> float: return 0.02 + 0.003 * tokens

def test_a_line_is_found():
  found = times(*((n, line(n)) for n in (16, 256, 16, 40, 100) * 3))
  for n in (8, 16, 32, 64, 128, 256): assert found.seconds(n) == pytest.approx(line(n), rel=0.05)
  assert found.most(line(50)) == pytest.approx(50, abs=2)

def test_outliers_do_not_count():
  rng = random.Random(0)
  points = [(n, line(n) * rng.uniform(0.9, 1.1) * (30 if rng.random() < 0.1 else 1)) for n in [16, 16, 9, 256] * 50]
  found = times((16, 20.0), *points)
  for n in (9, 16, 256): assert found.seconds(n) == pytest.approx(line(n), rel=0.15)
  assert times((256, 20.0), (16, line(16))).seconds(16) == pytest.approx(line(16), rel=0.01)  # its group has one time

def test_one_size_bounds_others_from_above():
  found = times((64, line(64)), (64, line(64)), step=0.025)
  for n in (1, 8, 16, 32, 64, 128, 256): assert line(n) <= found.seconds(n) + 1e-9
  assert found.seconds(64) == pytest.approx(line(64)) and found.most(line(64)) <= 64

def test_a_curve_is_met_at_measured_sizes():
  def curve(n: int) -> float: return max(0.03, 0.002 * n)
  found = times(*((n, curve(n)) for n in (4, 16, 64, 256) * 3))
  for n in (4, 16, 64, 256): assert found.seconds(n) == pytest.approx(curve(n))

def test_sizes_that_were_not_measured_are_not_sure():
  found = times(*((n, line(n)) for n in (64, 64, 256, 256, 8)))
  assert found.sure(64) == found.seconds(64) and found.sure(8) == pytest.approx(1.2 * found.seconds(8))
  found.add(9, line(9))
  assert found.sure(8) == found.seconds(8)

def test_times_follow_a_change():
  found = times(*((16, line(16)) for _ in range(20)), *((16, 2 * line(16)) for _ in range(5)))
  assert found.seconds(16) == pytest.approx(2 * line(16))

def test_nothing_measured():
  assert times().seconds(1) == float("inf") and times().most(1.0) == 0
  assert times(step=0.02).seconds(5) == pytest.approx(0.1) and times(step=0.02).most(0.1) == 5

def test_decode_steps():
  steps = DecodeTimes()
  assert steps.seconds(8) == steps.least == 0
  for rows, seconds in ((1, 5.0), (1, 0.02), (4, 0.03), (4, 0.031), (3, 0.029)): steps.add(rows, seconds)
  assert steps.least == steps.seconds(1) == steps.seconds(2) == 0.02  # a first call is 5 s
  assert steps.seconds(3) == steps.seconds(4) == steps.seconds(8) == 0.03

def test_positions_before_a_piece_count():
  """A token costs more behind many others: pieces at the end of one prompt tell of the begin of another."""
  def cost(n: int, first: int) -> float: return line(n) + 1e-6 * n * (first + n / 2)
  rng, found = random.Random(1), PieceTimes()
  for first in range(0, 4096, 128): found.add(128, cost(128, first) * rng.uniform(0.95, 1.05), first)
  for first in range(0, 1024, 64): found.add(64, cost(64, first) * (20 if first == 128 else 1), first)
  for n in (64, 128):
    for first in (0, 1000, 4000): assert found.seconds(n, first) == pytest.approx(cost(n, first), rel=0.15)
  assert found.most(cost(64, 3000), 3000) == pytest.approx(64, abs=12)

def test_old_times_rule_out_no_group():
  """Sizes that were read at the begin of prompts say nothing of others, which take longer now."""
  found = times(*((64, line(64)) for _ in range(5)))
  for i in range(40): found.add(128, line(128) * (1 + i / 10), 128 * i)
  assert found.seconds(128, 128 * 39) == pytest.approx(line(128) * 4.9, rel=0.1)
