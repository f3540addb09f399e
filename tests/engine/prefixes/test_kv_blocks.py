"""Runs of free blocks and counts of holders, against sets that are searched."""
import itertools

import pytest
from hypothesis import given, settings, strategies as st
from tinygrad_llm.engine.prefixes.kv_blocks import Blocks

def runs(free: set[int]) -> list[tuple[int, int]]:
  """(Length, first block) of the longest stretches of neighbours, sorted."""
  groups = itertools.groupby(enumerate(sorted(free)), lambda x: x[1] - x[0])
  return sorted((len(found := [block for _, block in group]), found[0]) for _, group in groups)

@settings(deadline=None, derandomize=True)
@given(st.lists(st.one_of(st.tuples(st.just("take"), st.integers(1, 6), st.integers(0, 20)),
                          st.tuples(st.sampled_from(["hold", "drop", "keep", "forget"]), st.integers(0, 99)))))
def test_random_orders(steps):
  blocks, holders, kept = Blocks(20), dict.fromkeys(range(1, 20), 0), set()
  def free(): return {b for b, n in holders.items() if not n and b not in kept}
  for name, number, *after in steps:
    before = runs(free())
    if name == "take":
      if number > len(free()): continue
      taken = blocks.take(number, *after)
      assert len(set(taken)) == number and set(taken) <= free() and 0 not in taken
      follows = next((length for length, first in before if first == after[0] + 1 and after[0]), 0)
      if follows: assert taken[:follows] == [*range(after[0] + 1, after[0] + 1 + min(follows, number))]
      elif fitting := [run for run in before if run[0] >= number]:
        assert taken == [*range(first := min(fitting)[1], first + number)]
      else: assert taken[:before[-1][0]] == [*range(before[-1][1], before[-1][1] + before[-1][0])]
      for block in taken: holders[block] += 1
    else:
      able = {"hold": lambda b: holders[b] or b in kept, "drop": lambda b: holders[b],
              "keep": lambda b: holders[b] and b not in kept, "forget": lambda b: b in kept}[name]
      if not (choice := [b for b in holders if able(b)]): continue
      getattr(blocks, name)(block := choice[number % len(choice)])
      if name == "keep": kept.add(block)
      elif name == "forget": kept.remove(block)
      else: holders[block] += 1 if name == "hold" else -1
    assert blocks._runs == runs(free()) and blocks.free == len(free())
    assert blocks.referenced == sum(n > 0 for n in holders.values())
    assert blocks.cached == sum(not holders[b] for b in kept)

def test_a_sequence_grows_in_neighbours():
  blocks = Blocks(100)
  mine = blocks.take(3)
  others = blocks.take(2)
  assert (mine, others) == ([1, 2, 3], [4, 5])
  assert blocks.take(2, after=3) == [6, 7]  # 4 is taken
  blocks.drop(4)
  assert blocks.take(2, after=3) == [4, 8]

def test_wrong_calls():
  blocks = Blocks(4)
  with pytest.raises(AssertionError): blocks.take(4)
  with pytest.raises(AssertionError): blocks.drop(1)
  with pytest.raises(AssertionError): blocks.keep(1)
  with pytest.raises(AssertionError): blocks.forget(1)
  assert blocks.free == blocks.total == 3 and Blocks(1).total == 0
