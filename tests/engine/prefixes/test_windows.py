"""The pool of layers with a window, rule by rule; test_pool_events.py tries the rules in random orders."""
import pytest
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.engine.prefixes.prefix_pool import PrefixPool
from tinygrad_llm.engine.prefixes.windows import WindowSize, held_blocks, window_blocks

SIZE, POSITIONS, PIECE = 4, 6, 8  # a sequence holds at most 4 blocks between two steps, and a piece 2 more

def pool_of(blocks: int) -> PrefixPool: return PrefixPool(40, SIZE, window=WindowSize(1 + blocks, POSITIONS, PIECE))

@pytest.fixture
def pool() -> PrefixPool: return pool_of(20)

def started(pool: PrefixPool, tokens, **fields) -> Sequence:
  s = Sequence([*tokens], len(tokens), **fields)
  pool.begin(s)
  return s

def fed(pool: PrefixPool, s: Sequence, end: int) -> Sequence:
  """Feeds positions up to `end` by pieces."""
  assert pool.grow(s, len(s.tokens))
  while s.fed < end:
    s.read(pool.piece(s, min(PIECE, end - s.fed)))
    pool.entered(s)
  return s

def test_a_sequence_holds_its_window_only(pool):
  s = fed(pool, started(pool, range(30)), 20)
  assert [bool(block) for block in s.window] == [False] * 3 + [True] * 2 and len(s.table) == 8
  counts = pool.counts().windows
  assert (counts.total, counts.referenced, counts.cached, counts.evictions) == (20, 2, 3, 0)
  pool.release(s)
  assert s.window == [] and pool.counts().windows.referenced == 0

def test_a_prefix_begins_where_its_window_is(pool):
  pool.release(fed(pool, started(pool, range(30)), 30))
  windows = pool.windows
  for _ in range(4): windows.evict()  # what the sequence has passed first goes first
  assert started(pool, [*range(18), 99, 99, 99]).fed == 0  # its window would begin with block 2
  assert started(pool, [*range(26), 99]).fed == 26
  s = started(pool, range(30))
  assert (s.fed, pool.copies[-1][1], windows.copies[-1][1]) == (29, s.table[7], s.window[7])

def test_ends_and_beginnings_are_kept_longer(pool):
  """Blocks that a sequence has passed go before the ends of prompts and answers, and the places of a beginning."""
  first = Sequence([*range(12)], 12)
  pool.begin(first)
  fed(pool, first, 12)
  first.tokens += range(12, 40)  # an answer
  fed(pool, first, 40)
  pool.release(first)
  for _ in range(3): pool.windows.evict()
  assert started(pool, [*range(12), 99]).fed == 12, "the prompt's end is kept"
  assert started(pool, range(40)).fed == 39, "so is the answer's"
  pool.windows.evict()
  assert started(pool, [*range(24), 99]).fed == 16, "what is between has gone"

def test_running_sequences_share_windows(pool):
  a = fed(pool, started(pool, range(20)), 12)
  b = started(pool, range(20))
  assert b.fed == 12 and b.window == a.window and pool.counts().windows.referenced == 2
  c = started(pool, [*range(12), 77])
  fed(pool, a, 16)
  assert b.window == c.window != a.window
  for s in (a, b, c): pool.release(s)
  assert pool.counts().windows.referenced == 0

def test_the_same_content_is_stored_once(pool):
  a, b = started(pool, range(9)), started(pool, range(9))
  fed(pool, a, 8)
  fed(pool, b, 8)
  assert a.window == b.window and pool.counts().windows.referenced == 2 == pool.counts().windows.total - 18

def test_a_sequence_takes_over_a_window_that_was_given_back(pool):
  pool.release(fed(pool, started(pool, range(20)), 20))
  while pool.windows.evict(): pass
  s = started(pool, range(24))
  assert s.fed == 0
  fed(pool, s, 20)
  other = started(pool, range(24))
  assert other.fed == 20 and other.table[:5] == s.table[:5] and other.window[3:] == s.window[3:]

def test_fork(pool):
  s = fed(pool, started(pool, range(20)), 18)
  fork = Sequence([*range(20)], 20)
  assert pool.fork(s, fork)
  assert fork.window[:3] == [0, 0, s.window[2]] and fork.window[3] == s.window[3] and fork.window[4] != s.window[4]
  assert pool.windows.copies == [(s.window[4], fork.window[4])]

def test_windows_without_room():
  """Each sequence reserves its window: what a running one needs is there. Others wait, and guests go."""
  pool = pool_of(10)
  a = fed(pool, started(pool, range(30)), 20)
  b = fed(pool, started(pool, range(50, 80)), 20)
  c = started(pool, range(200, 230))
  assert not pool.grow(c, 30) and c.table == [] and not pool.fork(a, Sequence([*range(30)], 30))
  pool.release(c)
  for s in (a, b): fed(pool, s, 30)
  pool.release(a)
  pool.guests.append(b)
  for start in (300, 400): fed(pool, started(pool, range(start, start + 30)), 30)
  assert pool.guests == [] and b.window == []

def test_failed_sequences_leave_zeroes(pool):
  s = fed(pool, started(pool, range(20)), 8)
  window = [*s.window]
  s.error = ValueError("NaN")
  pool.release(s)
  assert {to for source, to in pool.windows.copies if source is None} == {*window}
  assert pool.counts().windows.free == 20

def test_a_piece_has_neighbouring_blocks():
  pool = pool_of(12)
  hole = fed(pool, started(pool, [7]), 1)
  s = started(pool, range(30))
  assert pool.grow(s, 30) and pool.piece(s, 8) == 8
  other = fed(pool, started(pool, [9]), 1)
  s.read(8)
  pool.entered(s)
  before = [*s.window]
  count = pool.piece(s, 8)
  assert count in (4, 8) and len(s.window) == 2 + count // 4 and before == s.window[:2]
  assert count == 4 or s.window[3] == s.window[2] + 1
  for x in (hole, other, s): pool.release(x)

@pytest.mark.parametrize(("blocks", "positions", "context", "expected"), [
  (512, 0, 4096, 0),          # no layer has a window
  (512, 4096, 4096, 0),       # it is the whole context
  (512, 1984, 4096, 0),       # it takes more than half of it
  (512, 1024, 4096, 256),     # half as many blocks
  (4096, 1024, 32768, 292),   # 16 windows of 18 blocks, and a piece of 4
  (512, 128, 4096, 68),
  (64, 1024, 4096, 32), (40, 1024, 4096, 22), (22, 1024, 4096, 0)])
def test_window_blocks(blocks, positions, context, expected):
  assert window_blocks(blocks, positions, 256, context) == expected

def test_held_blocks(): assert [held_blocks(n, 256, 4096, 2) for n in (0, 64, 65, 128, 2049)] == [0, 10, 10, 12, 0]
