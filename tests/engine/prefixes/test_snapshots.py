"""Snapshots under a budget of bytes."""
from tinygrad_llm.engine.prefixes.snapshots import Snapshots

def test_least_recently_used_goes_first():
  held = Snapshots(10)
  assert held.put("a", 1, 4) and held.put("b", 2, 4)
  assert held.use("a") == 1
  assert held.put("c", 3, 4)
  assert [x in held for x in "abc"] == [True, False, True] and held.nbytes == 8

def test_one_copy_a_place():
  held = Snapshots(10)
  assert held.put("a", 1, 4) and held.put("a", 2, 6)
  assert held.use("a") == 2 and (held.nbytes, len(held)) == (6, 1)
  held.drop("a")
  held.drop("a")
  assert (held.nbytes, len(held)) == (0, 0)

def test_a_copy_above_the_budget_is_refused():
  held = Snapshots(10)
  assert held.put("a", 1, 10) and not held.put("b", 2, 11)
  assert "a" in held and "b" not in held
  assert not Snapshots().put("a", 1, 1)
