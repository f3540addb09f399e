"""
Random orders of events on the pool, whose "KV" is the token history itself.

A step that feeds position p writes tokens[:p + 1] into the cell of p. Before that, the step reads all earlier positions
through the table: they must hold the sequence's own history. Blocks that nobody reads are poisoned. A layer with a
window has cells of its own, and reads those positions only that its window leaves.
"""
import random
from collections import Counter

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tinygrad_llm.engine.prefixes.prefix_pool import PrefixPool
from tinygrad_llm.engine.prefixes.prefix_tree import key
from tinygrad_llm.engine.prefixes.windows import WindowSize
from tinygrad_llm.engine.batch.sequence import Sequence

SIZE, COUNT, PICK = 4, 14, st.integers(0, 99)
TOKEN = st.sampled_from([0, 0, 0, 1])
PROMPT = st.lists(TOKEN, min_size=1, max_size=22)

class Events(RuleBasedStateMachine):
  """
  cells: {(block, offset): (root, history, whether prompt pieces wrote it and all before it)}.
  For each sequence, `history` is a second copy of its tokens, `states` the tokens that a recurrent layer has seen.
  `seen` says which positions were prompt-written when they were last read.
  """
  stateful, window = False, None

  def __init__(self):
    super().__init__()
    self.pool = PrefixPool(COUNT, SIZE, self.stateful, budget=4, window=self.window)
    self.window_cells = {}
    self.cells, self.waiting, self.running = {}, [], []
    self.history, self.states, self.seen = {}, {}, {}

  def some(self, choice, pick): return choice[pick % len(choice)]

  def nodes(self, name):
    """(Node, token ids up to and with it) of a tree."""
    def below(node, before):
      for ids, child in node.children.items():
        tokens = (*before, *memoryview(ids).cast("i"))
        yield child, tokens
        yield from below(child, tokens)
    return [*below(self.pool.tree.root(name), ())]

  def copy_and_poison(self):
    """Zeroes and copies, as the engine does before a step; poisons blocks without a reader."""
    for source, to in self.pool.copies:
      for i in range(SIZE): self.cells[to, i] = None if source is None else self.cells.get((source, i))
    self.pool.copies.clear()
    if self.window: self.copy_and_poison_windows()
    alive = {block for s in self.running for block in s.table}
    for name in ("", "adapter"):
      for node, tokens in self.nodes(name):
        alive.add(node.block)
        for p in range((node.depth - 1) * SIZE, len(tokens)):
          root, history, exact = self.cells[node.block, p % SIZE]
          assert (root, history) == (name, tokens[:p + 1]) and (exact or p % SIZE >= node.exact)
    self.cells = {at: cell for at, cell in self.cells.items() if at[0] in alive}

  def copy_and_poison_windows(self):
    windows = self.pool.windows
    for source, to in windows.copies:
      for i in range(SIZE): self.window_cells[to, i] = None if source is None else self.window_cells.get((source, i))
    windows.copies.clear()
    alive = {block for s in self.running for block in s.window}
    for name in ("", "adapter"):
      for node, tokens in self.nodes(name):
        if not node.window: continue
        alive.add(node.window)
        for p in range((node.depth - 1) * SIZE, len(tokens)):
          root, history, exact = self.window_cells[node.window, p % SIZE]
          assert (root, history) == (name, tokens[:p + 1]) and (exact or p % SIZE >= node.exact)
    self.window_cells = {at: cell for at, cell in self.window_cells.items() if at[0] in alive - {0}}

  def read_window(self, s):
    """A step's first token sees the window before s.fed, and nothing below its block is held."""
    for p in range(max(0, s.fed - self.window.positions + 1), s.fed):
      root, history, exact = self.window_cells[s.window[p // SIZE], p % SIZE]
      assert (root, history) == (s.root, tuple(s.tokens[:p + 1])) and (exact or p >= s.written)
    least = (s.fed // SIZE * SIZE - self.window.positions + 1) // SIZE
    assert not any(s.window[:max(0, least)])

  def read_back(self, s):
    """A step reads the positions below s.fed."""
    assert s.tokens == self.history[s] and s.fed < len(s.tokens) and 0 not in s.table
    cells = [self.cells[s.table[p // SIZE], p % SIZE] for p in range(s.fed)]
    for p, (root, history, exact) in enumerate(cells):
      assert (root, history) == (s.root, tuple(s.tokens[:p + 1]))
      assert exact or p >= s.written
    if s.exact_prefix:  # its KV is never exchanged for KV with other last bits
      before = self.seen.get(s, [])
      now = [exact for _, _, exact in cells]
      assert now[:len(before)] == before
      self.seen[s] = now
    if self.stateful: assert self.states[s] == tuple(s.tokens[:s.fed])
    if self.window: self.read_window(s)

  def write(self, s, count, exact):
    for p in range(s.fed, s.fed + count):
      self.cells[s.table[p // SIZE], p % SIZE] = (s.root, tuple(s.tokens[:p + 1]), exact)
      if self.window:
        assert s.window[p // SIZE]
        self.window_cells[s.window[p // SIZE], p % SIZE] = (s.root, tuple(s.tokens[:p + 1]), exact)
    self.states[s] = tuple(s.tokens[:s.fed + count])

  def grown(self, s, positions):
    """Whether there are blocks. Where there are none, nothing changes, and free() has said so."""
    table, room = [*s.table], self.pool.free()
    missing = -(-positions // SIZE) - len(table)
    may = not self.window or (s in self.pool.windows._reserved) and self.reserves(s, positions)
    found = self.pool.grow(s, positions)
    assert found == (missing <= room and may) and s.table[:len(table)] == table
    assert len(s.table) == max(len(table), -(-positions // SIZE) if found else 0)
    return found

  def reserves(self, s, positions):
    """Whether a sequence's windows have room beside the others'."""
    windows, need = self.pool.windows, min(self.pool.windows.most, -(-positions // SIZE))
    others = sum(n for other, n in windows._reserved.items() if other is not s)
    return need <= windows._reserved.get(s, 0) or others + need <= self.window.blocks - 1 - windows.spare

  def may_begin(self, s):
    return self.reserves(s, len(s.tokens) + 2 * SIZE * (s not in self.pool.windows._reserved))

  def usable(self, s, most):
    """The most blocks of a sequence's prefix that the tree has, with the window before their end."""
    best, node = 0, self.pool.tree.root(s.root)
    path = []
    while child := node.children.get(key(s.tokens[len(path) * SIZE:(len(path) + 1) * SIZE])):
      node = child
      path.append(node)
      depth = len(path)
      first = max(0, (depth * SIZE - self.window.positions + 1) // SIZE)
      if depth * SIZE <= most and all(x.window for x in path[first:]): best = depth
    return best

  def begin(self, s):
    fed, covered, most = s.fed, len(s.table), len(s.tokens) - 1
    def known(tokens, exact):  # leading positions of a node's path that the sequence may reuse
      equal = next((i for i, (a, b) in enumerate(zip(tokens, s.tokens)) if a != b), len(tokens))
      return min(equal, most, exact if s.exact_prefix else most)
    best = max((known(tokens, (node.depth - 1) * SIZE + node.exact if node.exact else 0)
                for node, tokens in self.nodes(s.root)), default=0)
    usable = self.usable(s, most) if self.window and self.may_begin(s) else 0
    self.pool.begin(s)
    assert fed <= s.fed <= most and len(s.table) == max(covered, -(-s.fed // SIZE))
    self.states.setdefault(s, ())
    if self.window:
      if not fed and not self.stateful and not s.exact_prefix:
        assert usable * SIZE <= s.fed <= best
    elif not fed and not self.stateful and not s.exact_prefix:  # without a block for a copy, the whole blocks
      assert s.fed == best or s.fed == best // SIZE * SIZE and self.pool.free() <= 1
    if s.exact_prefix and not fed: assert s.fed == s.written and (s.fed <= best)
    if s.fed > fed:
      self.seen.pop(s, None)
      if self.stateful: self.states[s] = s.snapshot
      assert not self.stateful or s.snapshot is not None

  def end(self, s):
    self.pool.release(s)
    assert (s.table, s.window, s.fed, s.written) == ([], [], 0, 0)
    self.running.remove(s)
    for known in (self.seen, self.states): known.pop(s, None)

  @rule(tokens=PROMPT, exact=st.booleans(), root=st.sampled_from(["", "", "", "adapter"]))
  def submit(self, tokens, exact, root):
    s = Sequence([*tokens], len(tokens), exact_prefix=exact, root=root)
    self.waiting.append(s)
    self.history[s] = [*tokens]

  @precondition(lambda self: self.waiting)
  @rule(pick=PICK)
  def admit(self, pick):
    s = self.some(self.waiting, pick)
    self.waiting.remove(s)
    self.begin(s)
    self.running.append(s)

  @precondition(lambda self: self.running)
  @rule(pick=PICK)
  def begin_again(self, pick): self.begin(self.some(self.running, pick))

  @precondition(lambda self: self.running)
  @rule(pick=PICK, count=st.integers(1, 22), token=TOKEN)
  def piece(self, pick, count, token):
    s = self.some(self.running, pick)
    count = min(count, len(s.tokens) - s.fed, self.window.piece if self.window else count)
    if not self.grown(s, s.fed + count): return
    most, count = count, self.pool.piece(s, count)
    assert 1 <= count <= most and (self.window or count == most)
    self.copy_and_poison()
    self.read_back(s)
    self.write(s, count, s.written == s.fed)
    s.read(count)
    if s.fed == len(s.tokens): self.append(s, token)
    self.pool.entered(s)

  @precondition(lambda self: any(s.fed == len(s.tokens) - 1 for s in self.running))
  @rule(tokens=st.lists(TOKEN, min_size=8, max_size=8))
  def decode(self, tokens):
    rows = [s for s in self.running if s.fed == len(s.tokens) - 1 and self.grown(s, s.fed + 1)][:8]
    self.copy_and_poison()
    for s in rows: self.read_back(s)
    for s, token in zip(rows, tokens):
      self.write(s, 1, False)
      s.fed += 1
      self.append(s, token)
      self.pool.entered(s)

  def append(self, s, token):
    s.tokens.append(token)
    self.history[s].append(token)

  @precondition(lambda self: self.running)
  @rule(pick=PICK, failed=st.booleans())
  def cancel(self, pick, failed):
    s = self.some(self.running, pick)
    if failed: s.error = ValueError("NaN")
    self.end(s)

  @precondition(lambda self: self.running)
  @rule(pick=PICK)
  def preempt(self, pick):
    self.end(s := self.some(self.running, pick))
    self.waiting.append(s)

  @precondition(lambda self: self.running)
  @rule(pick=PICK)
  def fork(self, pick):
    s = self.some(self.running, pick)
    fork = Sequence([*s.tokens], s.prompt, root=s.root, exact_prefix=s.exact_prefix)
    self.history[fork] = [*self.history[s]]
    if not self.pool.fork(s, fork):
      may = not self.window or self.reserves(fork, s.fed + 1)
      assert not (self.pool.free() and may) and (s.fed % SIZE or not may) and not fork.table
      assert fork not in self.pool.paths
      return self.waiting.append(fork)
    assert (fork.fed, fork.written, len(fork.table)) == (s.fed, s.written, -(-s.fed // SIZE))
    self.running.append(fork)
    self.states[fork] = self.states[s]

  @rule()
  def evict(self): self.pool.tree.evict()

  @precondition(lambda self: self.window)
  @rule()
  def evict_window(self): self.pool.windows.evict()

  @rule()
  def fill(self):
    """One sequence takes all that free() promises."""
    s, room = Sequence([7] * 99, 99), self.pool.free()
    may = not self.window or self.reserves(s, 99 + 2 * SIZE)
    self.pool.begin(s)
    if not may: return self.pool.release(s)
    assert self.pool.grow(s, room * SIZE) and not self.pool.grow(s, room * SIZE + 1)
    assert len(set(s.table)) == room and self.pool.free() == self.pool.blocks.free == 0
    self.pool.release(s)
    assert self.pool.free() == self.pool.blocks.free == room

  @precondition(lambda self: self.stateful and self.running)
  @rule(pick=PICK, nbytes=st.integers(1, 5))
  def snapshot(self, pick, nbytes):
    s = self.some(self.running, pick)
    kept = self.pool.snapshot(s, self.states[s], nbytes)
    assert not kept or (s.fed and not s.fed % SIZE and nbytes <= 4)

  @invariant()
  def blocks_are_counted(self):
    counts = self.pool.counts()
    holders = {}
    for s in self.running:
      for i, block in enumerate(s.table):
        if block: holders.setdefault(block, []).append((s, i))
    kept = [node.block for name in ("", "adapter") for node, _ in self.nodes(name)]
    assert len(set(kept)) == len(kept) and 0 not in kept
    assert counts.total == COUNT - 1 and counts.referenced == len(holders)
    assert counts.cached == len(set(kept) - set(holders))
    assert counts.free == counts.total - counts.referenced - counts.cached
    assert self.pool.tree.snapshots.nbytes <= 4
    for block, readers in holders.items():
      written = [s.fed // SIZE > i for s, i in readers]
      assert all(written) or (len(readers) == 1 and block not in kept)  # only full blocks are shared

  @invariant()
  def windows_are_counted(self):
    if not self.window: return
    windows, counts = self.pool.windows, self.pool.counts().windows
    held = {block for s in self.running for block in s.window if block}
    kept = [node.window for name in ("", "adapter") for node, _ in self.nodes(name) if node.window]
    assert len(set(kept)) == len(kept) and 0 not in kept and counts.total == self.window.blocks - 1
    assert (counts.referenced, counts.cached) == (len(held), len(set(kept) - held))
    assert counts.free == counts.total - counts.referenced - counts.cached
    for s in self.running:
      assert sum(map(bool, s.window)) <= windows._reserved.get(s, 0) <= windows.most
      assert s not in self.running or not s.fed or len(s.window) >= -(-s.fed // SIZE)
    assert {*windows._reserved} <= {*self.running}
    assert sum(windows._reserved.values()) <= counts.total - windows.spare

  def teardown(self):
    for s in [*self.running]: self.end(s)
    counts = self.pool.counts()
    assert counts.referenced == 0 and self.pool.free() == counts.total == counts.free + counts.cached
    self.copy_and_poison()
    self.fill()
    assert not self.nodes("") and not self.nodes("adapter") and not len(self.pool.tree.snapshots)
    assert not self.window or self.pool.windows.blocks.free == self.window.blocks - 1

class RecurrentEvents(Events):
  """A model with recurrent layers: sequences begin at snapshots."""
  stateful = True

class WindowEvents(Events):
  """Layers with a window have a pool of their own."""
  window = WindowSize(13, 6, 8)

class NarrowEvents(Events):
  """The same with recurrent layers, and room for one window and a piece; the window is no longer than a block."""
  stateful, window = True, WindowSize(7, 3, 10)

class WideEvents(Events):
  """There is room for some windows of several blocks."""
  window = WindowSize(12, 14, 4)

KINDS = Events, RecurrentEvents, WindowEvents, NarrowEvents, WideEvents
TestEvents, TestRecurrentEvents, TestWindowEvents, TestNarrowEvents, TestWideEvents = (x.TestCase for x in KINDS)
for kind in (TestEvents, TestRecurrentEvents, TestWindowEvents, TestNarrowEvents, TestWideEvents):
  kind.settings = settings(max_examples=100, stateful_step_count=60, deadline=None, derandomize=True)
del kind

@pytest.mark.parametrize("kind", KINDS)
def test_random_orders(kind):
  """The same events, most of them on texts with a common prefix, in orders where few evict all."""
  print("seed", seed := random.randrange(2**32))
  rng, counts = random.Random(seed), Counter()
  for _ in range(8):
    m = kind()
    count_begins(m, counts)
    for _ in range(200): step(m, rng)
    m.teardown()
  assert kind.stateful or counts["found"] > 100 and (counts["limited"] or not kind.window), counts

def step(m, rng):
  """One event, with the checks after it."""
  def some(name, *args): return lambda: getattr(m, name)(*args)
  text = [0] * rng.randint(1, 22) if rng.random() < 0.8 else [rng.randint(0, 1) for _ in range(rng.randint(1, 22))]
  pick, decodes = rng.randrange(100), any(s.fed == len(s.tokens) - 1 for s in m.running)
  events = [(5, len(m.waiting) < 6, some("submit", text, rng.random() < 0.2, "")), (8, m.waiting, some("admit", pick)),
            (2, m.running, some("begin_again", pick)), (12, m.running, some("piece", pick, rng.randint(1, 22), 0)),
            (8, decodes, some("decode", [rng.random() < 0.1 for _ in range(8)])),
            (4, m.running, some("cancel", pick, rng.random() < 0.2)), (3, m.running, some("preempt", pick)),
            (2, m.running, some("fork", pick)), (1, True, m.evict), (2, m.window, m.evict_window),
            (0.2, True, m.fill), (4, m.stateful and m.running, some("snapshot", pick, 1))]
  events = [event for event in events if event[1]]
  rng.choices([event[2] for event in events], [event[0] for event in events])[0]()
  m.blocks_are_counted()
  m.windows_are_counted()

def count_begins(m, counts):
  """Counts positions that were found, and begins that a window has limited."""
  begin, windows = m.pool.begin, m.pool.windows
  def counted(s):
    fed = s.fed
    begin(s)
    counts["found"] += s.fed - fed
  m.pool.begin = counted
  if windows is None: return
  usable, evict = windows.usable, windows.evict
  def limited(first, path):
    counts["limited"] += (found := usable(first, path)) < len(path)
    return found
  def evicted():
    counts["evicted"] += (found := evict())
    return found
  windows.usable, windows.evict = limited, evicted
