"""The pool's rules one by one; test_pool_events.py tries them in random orders."""
import pytest
from tinygrad_llm.engine.prefixes.prefix_pool import PrefixPool
from tinygrad_llm.engine.batch.sequence import Sequence

def started(pool, tokens, **fields):
  s = Sequence([*tokens], len(tokens), **fields)
  pool.begin(s)
  return s

def fed(pool, s, count, decoded=False):
  """Feeds positions by a piece, or by decode steps."""
  assert pool.grow(s, s.fed + count)
  if decoded: s.fed += count
  else: s.read(count)
  pool.entered(s)
  return s

@pytest.fixture
def pool(): return PrefixPool(20, 4)

def test_second_turn_reads_new_tokens_only(pool):
  """Token by token, not block by block: the partly filled last block is copied."""
  pool.release(fed(pool, started(pool, range(10)), 9))
  s = started(pool, range(12))
  assert (s.fed, s.reused, s.written, pool.copies) == (9, 9, 9, [(3, s.table[2])]) and s.table[:2] == [1, 2]
  assert pool.counts()[2:6] == (3, 1, 0, 9)

def test_the_last_token_is_fed(pool):
  pool.release(fed(pool, started(pool, range(8)), 8))
  assert started(pool, range(8)).fed == 7 and started(pool, [0]).fed == 0

def test_running_sequences_share(pool):
  a = fed(pool, started(pool, range(9)), 4)
  b = started(pool, range(9))
  assert b.table == a.table == [1] and b.fed == 4
  assert pool.grow(b, 9)
  fed(pool, a, 4)
  table = b.table
  pool.begin(b)  # before its next piece, with room for the whole prompt
  assert b.fed == 8 and b.table[:2] == a.table[:2] and len(b.table) == 3
  assert pool.counts().referenced == 3 and table[1] not in (0, *a.table[:1])
  for s in (a, b): pool.release(s)
  assert pool.free() == pool.blocks.total == 19

def test_the_same_content_is_stored_once(pool):
  a, b = started(pool, range(9)), started(pool, range(9))
  fed(pool, a, 8)
  fed(pool, b, 8)
  assert a.table == b.table == [1, 2] and pool.counts().free == 17

@pytest.mark.parametrize("exact_prefix", [False, True])
def test_running_sequences_keep_their_own_rounding(pool, exact_prefix):
  """A block written by decode is never exchanged for one written by pieces, nor the reverse."""
  a, b = started(pool, range(9), exact_prefix=exact_prefix), started(pool, range(9), exact_prefix=exact_prefix)
  fed(pool, a, 8, decoded=True)
  fed(pool, b, 8)
  assert not {*a.table} & {*b.table}
  assert started(pool, range(9)).table == a.table  # in the tree first, and read
  assert started(pool, range(9), exact_prefix=True).fed == 0

def test_exact_blocks_replace_blocks_without_a_reader(pool):
  pool.release(fed(pool, started(pool, range(9)), 8, decoded=True))
  s = fed(pool, started(pool, range(9), exact_prefix=True), 8)
  assert s.reused == 0 and pool.counts().cached == 0
  assert started(pool, range(10), exact_prefix=True).fed == 8

@pytest.mark.parametrize("exact_prefix,fed_before", [(False, 8), (True, 7)])
def test_an_exact_prefix_leaves_two_tokens(pool, exact_prefix, fed_before):
  pool.release(fed(pool, started(pool, range(12)), 12))
  assert started(pool, range(9), exact_prefix=exact_prefix).fed == fed_before

def test_written_ends_where_decode_begins(pool):
  s = fed(pool, fed(pool, started(pool, range(20)), 6), 6, decoded=True)
  assert s.written == 6
  pool.release(s)
  s = started(pool, range(20))
  assert (s.fed, s.written) == (12, 6)
  assert started(pool, range(20), exact_prefix=True).fed == 6
  fed(pool, s, 2)
  assert s.written == 6  # what a piece writes after decode attends to decode's rounding

def test_failed_sequences_are_not_shared(pool):
  s = started(pool, range(9))
  assert pool.grow(s, 8)
  s.read(8)
  s.error = ValueError("NaN")
  pool.release(s)
  assert pool.counts().cached == 0 and pool.counts().free == 19

def test_preempted_sequence_goes_on(pool):
  s = fed(pool, fed(pool, started(pool, range(6)), 6), 0)
  s.tokens.append(6)
  pool.release(s)
  assert (s.table, s.fed) == ([], 0)
  pool.release(s)  # nothing is left to give back
  pool.begin(s)
  assert s.fed == 6 and pool.counts().hits == 6

def test_fork(pool):
  s = fed(pool, started(pool, range(9)), 6)
  fork = Sequence([*range(9)], 9)
  assert pool.fork(s, fork)
  assert fork.table[0] == s.table[0] and pool.copies == [(s.table[1], fork.table[1])] and fork.fed == fork.written == 6
  fed(pool, s, 2)
  fed(pool, fork, 2)
  assert fork.table == s.table

def test_fork_without_room(pool):
  s = fed(pool, started(pool, range(9)), 6)
  hog, fork = started(pool, [7] * 99), Sequence([*range(9)], 9)
  assert pool.grow(hog, 17 * 4) and pool.free() == 0 and not pool.fork(s, fork)
  assert (fork.fed, fork.table, pool.copies) == (0, [], [])
  pool.begin(fork)  # as any other
  assert (fork.fed, fork.table) == (4, s.table[:1])

def test_full_pool_says_no(pool):
  s = fed(pool, started(pool, range(40)), 39)
  other = started(pool, [9] * 60)
  assert pool.free() == 9 and not pool.grow(other, 37) and other.table == []
  pool.release(s)
  assert pool.free() == 19 and pool.grow(other, 60) and pool.counts().evictions == 6
  assert started(pool, range(40)).fed == 4 * 4  # the path's end went first

def test_recurrent_layers_begin_at_snapshots():
  pool = PrefixPool(20, 4, stateful=True, budget=10)
  s = fed(pool, started(pool, range(20)), 4)
  assert pool.snapshot(s, "4", 4)
  fed(pool, s, 2)
  assert not pool.snapshot(s, "6", 1)  # inside a block
  fed(pool, s, 6)
  assert pool.snapshot(s, "12", 4)
  fed(pool, s, 4)
  deep, shallow = started(pool, range(20)), started(pool, [*range(9), 1, 2, 3])
  assert (deep.fed, deep.snapshot, shallow.fed, shallow.snapshot) == (12, "12", 4, "4")
  assert pool.copies == [] and started(pool, [9, 9]).snapshot is None
  assert pool.snapshot(s, "16", 4)  # the least recently used one goes
  assert (started(pool, range(20)).fed, started(pool, range(14)).fed) == (16, 4)
  for x in (s, deep, shallow): pool.release(x)
  while pool.tree.evict(): pass
  assert pool.tree.snapshots.nbytes == 8  # of paths that other sequences hold
