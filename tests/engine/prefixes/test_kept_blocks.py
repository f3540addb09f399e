"""
Blocks of a pool that go to disk and come back, against a pool whose "KV" is the token history itself.

A step that feeds position p reads all positions before it through the table, and writes the hash of its history.
"""
import random
import threading
import time

import numpy as np
import pytest
from tests.support.extended import some
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.engine.prefixes import disk_thread, kept_blocks
from tinygrad_llm.engine.prefixes.disk_thread import DiskThread
from tinygrad_llm.engine.prefixes.kept_blocks import KeptBlocks
from tinygrad_llm.engine.prefixes.kv_bytes import KVBytes
from tinygrad_llm.engine.prefixes.prefix_pool import PrefixPool
from tinygrad_llm.engine.prefixes.prefix_store import PrefixStore
from tinygrad_llm.engine.prefixes.windows import WindowSize
from tinygrad_llm.nn.cache.place import BLOCK

SHAPES = [(2, 3, 4), (1, 1, 6), (2, 1, 2)]  # parts, heads and D of layers

@pytest.fixture
def rng() -> random.Random:
  print("seed", seed := random.randrange(2**32))
  return random.Random(seed)

def histories(tokens: list[int]) -> np.ndarray:
  """A number for each position, which depends on all tokens up to it, and is the bits of a finite half."""
  found, at = np.empty(len(tokens), np.int64), 1
  for i, token in enumerate(tokens): found[i] = at = (at * 48271 + token + 1) % 0x7bff
  return found.astype(np.uint16)

class Engine:
  """Does what the engine does with a pool of few blocks, and with the disk."""
  def __init__(self, folder, blocks: int, identity: bytes = bytes(32), window: WindowSize | None = None):
    self.apart = [window is not None and i == 1 for i in range(len(SHAPES))]  # the layer in the middle
    counts = [window.blocks if window and apart else blocks for apart in self.apart]
    self.layers = [np.full((parts, heads, count * BLOCK, D), np.nan, np.float16)
                   for (parts, heads, D), count in zip(SHAPES, counts)]
    kv = KVBytes(self.layers, lambda: None, self.apart)
    self.disk = DiskThread(PrefixStore(folder, identity, kv.nbytes, 1 << 30))
    self.kept, self.pool, self.awake = KeptBlocks(self.disk, kv), PrefixPool(blocks, window=window), threading.Event()
    self.kept.attach(self.pool, self.awake.set)
    self.hits = 0

  def arrive(self, s: Sequence) -> bool:
    """Looks on disk; whether all that waited has arrived, this sequence included."""
    if not self.kept.look_up(s): return True
    end, found = time.monotonic() + 20, list[Sequence]()
    while s not in found and time.monotonic() < end:
      self.awake.clear()
      found += self.kept.exchange(is_alone=True)
      if s not in found and not self.kept.has_work(): assert self.awake.wait(10)
    return s in found

  def answer(self, s: Sequence, decoded: int = 0) -> int:
    """Reads a prompt, the last positions by decode steps; returns how many positions were found."""
    assert self.arrive(s)
    self.pool.begin(s)
    found = s.fed
    assert s.written == found or not s.exact_prefix
    assert self.pool.grow(s, len(s.tokens))
    for copies, apart in self.pool.all_copies():
      for source, to in copies:
        for x, of in zip(self.layers, self.apart):
          if of is apart: x[:, :, to * BLOCK:(to + 1) * BLOCK] = x[:, :, source * BLOCK:(source + 1) * BLOCK]
      copies.clear()
    end = len(s.tokens) - min(decoded, len(s.tokens) - found)
    while s.fed < len(s.tokens):
      first, windows = s.fed, self.pool.windows
      most = windows.spare * BLOCK if windows else len(s.tokens)
      count = self.pool.piece(s, min(len(s.tokens) - first, most))
      self.feed(s, first + count)
      s.read(max(0, min(end, first + count) - first))
      s.fed = first + count
      self.pool.entered(s)
    self.pool.release(s)
    self.kept.exchange(is_alone=False)
    return found

  def feed(self, s: Sequence, end: int) -> None:
    """Checks the positions that a step up to `end` sees, and writes its own."""
    want = histories(s.tokens)
    for x, apart in zip(self.layers, self.apart):
      seen = max(0, s.fed - self.pool.windows.positions + 1) if apart else 0
      table = s.window if apart else s.table
      places = np.array([table[p // BLOCK] * BLOCK + p % BLOCK for p in range(seen, end)])
      assert (x[:, :, places[:s.fed - seen]].view(np.uint16) == want[seen:s.fed, None]).all()
      x[:, :, places[s.fed - seen:]] = want[s.fed:end, None].view(np.float16)

  def close(self) -> None:
    self.kept.finish()
    self.disk.close()

def drawn(rng: random.Random, starts: list[list[int]]) -> list[int]:
  """A prompt that may continue or part from an earlier one."""
  start = rng.choice(starts) if starts and rng.random() < 0.7 else []
  tokens = [*start[:rng.randint(0, len(start))], *(rng.randrange(100) for _ in range(rng.randint(1, 200)))][:640]
  starts.append(tokens)
  return tokens

WINDOW = WindowSize(9, 100, 128)

@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("prompts", some((40, 400), 0))
def test_restarts_find_right_numbers(tmp_path, rng, prompts, window):
  """Random prompts over small pools that evict, with restarts: each position that is found is right."""
  starts, found, first = list[list[int]](), 0, 0  # first: of each process
  engine = Engine(tmp_path, 12, window=window)
  for _ in range(prompts):
    if rng.random() < 0.15:
      engine.close()
      engine, again = Engine(tmp_path, rng.randint(12, 30), window=window), rng.choice([*starts, [1]])
      s = Sequence([*again], len(again))
      first += engine.answer(s)
    tokens = drawn(rng, starts)
    s = Sequence(tokens, len(tokens), exact_prefix=rng.random() < 0.1)
    engine.answer(s, rng.choice((0, 0, 5, 90)))
    found += s.reused
  engine.close()
  assert found > 200 and (first > 100 or prompts < 100)

def test_windows_that_were_given_back_come_from_disk(tmp_path, rng):
  """The pool has the other layers' blocks, and the disk has the rest. It is not exact any more."""
  tokens = [rng.randrange(100) for _ in range(400)]
  engine = Engine(tmp_path, 20, window=WINDOW)
  engine.answer(Sequence(tokens, 400))
  end = time.monotonic() + 20
  while len([*tmp_path.iterdir()]) < 6 and time.monotonic() < end: engine.kept.exchange(is_alone=True)
  while engine.pool.windows.evict(): pass
  assert engine.pool.counts().cached == 7 and engine.answer(Sequence(tokens, 400)) == 384
  assert engine.pool.counts().cached == 7
  assert Engine(tmp_path, 20, window=WINDOW).answer(Sequence(tokens[:300], 300)) == 256
  assert engine.answer(Sequence(tokens, 400, exact_prefix=True)) < 320

def test_second_process_reads_only_the_rest(tmp_path, rng):
  tokens = [rng.randrange(100) for _ in range(400)]
  engine = Engine(tmp_path, 20)
  assert engine.answer(Sequence(tokens, 400), 100) == 0
  engine.close()
  assert len([*tmp_path.iterdir()]) == 6, "the partly filled block is not kept"
  for rest in ([], [5], [5] * 100):
    assert Engine(tmp_path, 20).answer(Sequence([*tokens, *rest], 400)) == 384
  assert Engine(tmp_path, 20).answer(Sequence(tokens[:384], 384)) == 320 + 63, "the last token is fed"
  assert Engine(tmp_path, 20, identity=bytes([1] * 32)).answer(Sequence(tokens, 400)) == 0

def test_exact_requests_use_nothing_from_disk(tmp_path, rng):
  tokens = [rng.randrange(100) for _ in range(400)]
  (engine := Engine(tmp_path, 20)).answer(Sequence(tokens, 400))
  engine.close()
  engine = Engine(tmp_path, 20)
  assert not engine.kept.look_up(Sequence(tokens, 400, exact_prefix=True))
  assert engine.answer(Sequence(tokens, 400)) == 384
  assert engine.answer(Sequence(tokens, 400, exact_prefix=True)) == 0
  assert engine.answer(Sequence(tokens, 400, exact_prefix=True)) > 0, "its own positions are exact"

def test_a_pool_that_is_too_small_takes_what_fits(tmp_path, rng):
  """Blocks that sequences hold are not evicted for a prefix, and a pool without room begins at what it has."""
  tokens = [rng.randrange(100) for _ in range(400)]
  (engine := Engine(tmp_path, 20)).answer(Sequence(tokens, 400))
  engine.close()
  engine = Engine(tmp_path, 9)
  other = Sequence([7] * 300, 300)
  engine.pool.begin(other)
  assert engine.pool.grow(other, 300)  # 5 of 8 blocks
  s = Sequence(tokens, 400)
  assert engine.arrive(s)
  engine.pool.begin(s)
  assert s.fed == 3 * 64 and len(other.table) == 5
  counts = engine.pool.counts()
  assert (counts.free, counts.referenced) == (0, 8)

def test_a_cancelled_sequence_does_not_wait(tmp_path, rng, monkeypatch):
  tokens = [rng.randrange(100) for _ in range(400)]
  (engine := Engine(tmp_path, 20)).answer(Sequence(tokens, 400))
  engine.close()
  engine, stuck = Engine(tmp_path, 20), threading.Event()
  monkeypatch.setattr(engine.disk.store, "read", lambda block: stuck.wait(20) and None)
  s = Sequence(tokens, 400)
  assert engine.kept.look_up(s) and not engine.kept.exchange(is_alone=True) and not engine.kept.has_work()
  s.cancelled = True
  assert engine.kept.has_work() and engine.kept.exchange(is_alone=True) == [s]
  stuck.set()

def test_a_disk_that_hangs_delays_a_prompt_once(tmp_path, rng, monkeypatch, capfd):
  """Prompts are read without it while it hangs, and from it later."""
  monkeypatch.setattr(kept_blocks, "PATIENCE", 0.2)
  engine, tokens = Engine(tmp_path, 40), [rng.randrange(100) for _ in range(BLOCK * 4 + 9)]
  engine.answer(Sequence([*tokens], len(tokens)))
  engine.close()
  engine, go_on, read = Engine(tmp_path, 40), threading.Event(), PrefixStore.read
  after = rng.randrange(4)  # blocks that come
  def hanging(self, block):
    nonlocal after
    if (after := after - 1) < 0: go_on.wait(20)
    return read(self, block)
  monkeypatch.setattr(PrefixStore, "read", hanging)
  came, s = after, Sequence([*tokens], len(tokens))
  assert engine.kept.look_up(s)
  end, found = time.monotonic() + 10, list[Sequence]()
  while not found and time.monotonic() < end:
    time.sleep(0.01)
    found = engine.kept.exchange(is_alone=True)
  assert found == [s] and capfd.readouterr().err.count("warning: ") == 1
  engine.pool.begin(s)
  assert s.fed == came * BLOCK and not engine.kept.look_up(Sequence([*tokens], len(tokens)))
  engine.pool.release(s)
  go_on.set()
  while engine.disk._reads and time.monotonic() < end: time.sleep(0.001)
  assert engine.answer(Sequence([*tokens], len(tokens))) == BLOCK * 4
  engine.close()

def test_a_reader_holds_few_bytes(tmp_path, rng, monkeypatch):
  """The disk's thread waits for the engine where it is far ahead, and all the same all blocks come."""
  tokens = [rng.randrange(100) for _ in range(1000)]
  (engine := Engine(tmp_path, 20)).answer(Sequence(tokens, 1000))
  engine.close()
  engine = Engine(tmp_path, 20)
  monkeypatch.setattr(disk_thread, "MOST", 2 * engine.disk.store.nbytes)
  s = Sequence(tokens, 1000)
  assert engine.kept.look_up(s)
  time.sleep(0.1)
  assert len(engine.kept._arrivals[0].reading.got) <= 3
  assert engine.arrive(Sequence([1], 1)) and engine.answer(Sequence(tokens, 1000)) == 960

def test_writes_wait_for_a_slow_disk(tmp_path, rng, monkeypatch):
  """A step hands over nothing while too much is to be written; close() hands over the rest."""
  engine, write = Engine(tmp_path, 20), threading.Event()
  monkeypatch.setattr(disk_thread, "MOST", 2 * engine.disk.store.nbytes)
  right = engine.disk.store.write
  def slow(*args):
    write.wait(20)
    right(*args)
  monkeypatch.setattr(engine.disk.store, "write", slow)
  engine.answer(Sequence(tokens := [rng.randrange(100) for _ in range(700)], 700))
  for _ in range(9): engine.kept.exchange(is_alone=True)
  assert not engine.kept.has_work() and not [*tmp_path.iterdir()]
  write.set()
  engine.close()
  assert len([*tmp_path.iterdir()]) == 700 // 64 and Engine(tmp_path, 20).answer(Sequence(tokens, 700)) == 640

def test_a_new_pool_forgets_readings(tmp_path, rng):
  """After an error of the engine nothing of the old pool comes into the new one."""
  tokens = [rng.randrange(100) for _ in range(400)]
  (engine := Engine(tmp_path, 20)).answer(Sequence(tokens, 400))
  engine.close()
  engine = Engine(tmp_path, 20)
  assert engine.kept.look_up(Sequence(tokens, 400))
  engine.pool = PrefixPool(20)
  engine.kept.attach(engine.pool, engine.awake.set)
  time.sleep(0.05)
  assert engine.kept.exchange(is_alone=True) == [] and engine.pool.counts().free == 19
  assert engine.answer(Sequence(tokens, 400)) == 384

def test_a_disk_that_hangs_delays_the_end_once(tmp_path, rng, monkeypatch):
  engine, stuck = Engine(tmp_path, 20), threading.Event()
  monkeypatch.setattr(disk_thread, "MOST", 2 * engine.disk.store.nbytes)
  monkeypatch.setattr(disk_thread, "PATIENCE", 0.3)
  monkeypatch.setattr(engine.disk.store, "write", lambda *_: stuck.wait(20))
  engine.answer(Sequence([rng.randrange(100) for _ in range(700)], 700))
  begun = time.monotonic()
  for _ in range(3): engine.close()
  assert 0.2 < time.monotonic() - begun < 5
  stuck.set()

def test_a_disk_that_fails_leaves_no_work(tmp_path, rng, monkeypatch):
  """After the first error nothing is copied any more, and an idle engine sleeps."""
  engine = Engine(tmp_path, 20)
  engine.disk.store.gave_up = True
  monkeypatch.setattr(KVBytes, "read", None)
  engine.answer(Sequence([rng.randrange(100) for _ in range(700)], 700))
  for _ in range(3): engine.kept.exchange(is_alone=True)
  assert not engine.kept.has_work() and not engine.kept._fresh

def test_blocks_that_were_lost_on_disk_are_written_again(tmp_path, rng):
  """The end of a path is of no use without its beginning, which another process removed."""
  tokens = [rng.randrange(100) for _ in range(500)]
  (engine := Engine(tmp_path, 20)).answer(Sequence(tokens[:400], 400))
  engine.kept.finish()
  while engine.disk._writes: time.sleep(0.01)
  for path in tmp_path.iterdir(): path.unlink()
  engine.answer(Sequence(tokens, 500))
  engine.close()
  assert Engine(tmp_path, 20).answer(Sequence(tokens, 500)) == 448

def test_a_prefix_that_is_evicted_while_it_arrives(tmp_path, rng):
  """The rest is dropped, and the sequence reads its prompt as a new one."""
  tokens = [rng.randrange(100) for _ in range(400)]
  (engine := Engine(tmp_path, 20)).answer(Sequence(tokens, 400))
  engine.close()
  engine, s = Engine(tmp_path, 20), Sequence(tokens, 400)
  assert engine.kept.look_up(s)
  arrival = engine.kept._arrivals[0]
  while not arrival.reading.ended: time.sleep(0.01)
  for _ in range(2): assert engine.kept._place(arrival, engine.disk.take(arrival.reading))
  while engine.pool.tree.evict(): pass
  assert engine.kept.exchange(is_alone=True) == [s] and engine.pool.counts().free == 19
  engine.pool.begin(s)
  assert s.fed == 0
