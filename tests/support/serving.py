"""A simulated engine: a pool whose "KV" is a hash of the token history, a clock, and costs of steps as numbers."""
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tinygrad_llm.engine.batch.scheduler import Decode, Piece, Scheduler
from tinygrad_llm.engine.batch.sequence import Sequence

BLOCK = 64
EMPTY = 0  # the hash before the first token

def hashed(before: int, token: int) -> int: return (before * 1000003 + token + 1) % (2**61 - 1)
def chosen(history: int) -> int: return history % 97

def answer(prompt: list[int], length: int) -> list[int]:
  """The answer to a prompt, computed without any pool."""
  history, tokens = EMPTY, list[int]()
  for token in prompt: history = hashed(history, token)
  for _ in range(length):
    tokens.append(chosen(history))
    history = hashed(history, tokens[-1])
  return tokens

class HistoryPool:
  """
  Blocks of 64 positions, each of which holds the hash of the history up to it.

  A feed reads the position before through the table, so a wrong, lost or foreign position changes all tokens after it.
  Full blocks stay cached by their hash until they are evicted, the least recently used first.
  """
  def __init__(self, blocks: int, scattered: random.Random | None = None):
    self.free_blocks, self.scattered = set(range(1, blocks + 1)), scattered
    self.readers = dict.fromkeys(self.free_blocks, 0)
    self.cells = {b: [-1] * BLOCK for b in self.free_blocks}
    self.cached: dict[int, int] = {}   # hash of a full block's end: the block; least recently used first
    self.keys: dict[int, int] = {}     # the other way round
    self.entries: dict[Sequence, int] = {}  # blocks of a sequence that were looked at by entered()

  def begin(self, s: Sequence) -> None:
    if s.table: return  # it has begun
    history = EMPTY
    for i in range((len(s.tokens) - 1) // BLOCK):
      for token in s.tokens[BLOCK * i:BLOCK * (i + 1)]: history = hashed(history, token)
      if (block := self.cached.get(history)) is None: break
      self._touch(block)
      self.readers[block] += 1
      s.table.append(block)
    s.fed = BLOCK * len(s.table)
    self.entries[s] = len(s.table)

  def free(self) -> int: return len(self.free_blocks) + sum(not self.readers[b] for b in self.keys)

  def grow(self, s: Sequence, positions: int) -> bool:
    need = -(-positions // BLOCK) - len(s.table)
    if need > len(self.free_blocks) and need > self.free(): return False
    for _ in range(need):
      if not self.free_blocks: self._evict()
      block = s.table[-1] + 1 if s.table else 0
      if block not in self.free_blocks:
        block = self.scattered.choice(sorted(self.free_blocks)) if self.scattered else min(self.free_blocks)
      self.free_blocks.remove(block)
      self.readers[block] = 1
      self.cells[block] = [-1] * BLOCK
      s.table.append(block)
    return True

  def piece(self, s: Sequence, count: int) -> int: return count

  def entered(self, s: Sequence) -> None:
    for i in range(self.entries.get(s, 0), s.fed // BLOCK):
      block, key = s.table[i], self.cells[s.table[i]][-1]
      if key not in self.cached: self.cached[key], self.keys[block] = block, key
    self.entries[s] = s.fed // BLOCK

  def release(self, s: Sequence) -> None:
    for block in s.table:
      assert self.readers[block] > 0
      self.readers[block] -= 1
      if not self.readers[block]:
        if block in self.keys: self._touch(block)
        else: self.free_blocks.add(block)
    s.table.clear()
    self.entries.pop(s, None)

  def feed(self, s: Sequence, count: int) -> int:
    """Writes the next positions of a sequence; the hash after the last one."""
    history = self.cells[s.table[(s.fed - 1) // BLOCK]][(s.fed - 1) % BLOCK] if s.fed else EMPTY
    for p in range(s.fed, s.fed + count):
      block = s.table[p // BLOCK]
      assert self.readers[block] == 1 and block not in self.keys, "writes into a shared block"
      self.cells[block][p % BLOCK] = history = hashed(history, s.tokens[p])
    s.fed += count
    return history

  def check(self, s: Sequence) -> None:
    """Each position below `fed` holds its history."""
    history = EMPTY
    for p in range(s.fed):
      history = hashed(history, s.tokens[p])
      assert self.cells[s.table[p // BLOCK]][p % BLOCK] == history, f"position {p} is lost"

  def _touch(self, block: int) -> None:
    key = self.keys[block]
    del self.cached[key]
    self.cached[key] = block

  def _evict(self) -> None:
    block = next(b for b in self.cached.values() if not self.readers[b])
    del self.cached[self.keys.pop(block)]
    self.free_blocks.add(block)

@dataclass
class Costs:
  """Seconds of steps: a decode step by rows, a piece by tokens. factor: noise or outliers, drawn for each step."""
  decode: float = 0.025
  row: float = 0.002
  piece: float = 0.003
  token: float = 0.004
  depth: float = 0.0  # more, for each position before a piece or a row, as a part
  factor: Callable[[], float] = field(default=lambda: 1.0, compare=False)

  def of_rows(self, rows: int) -> float:
    """A step of 3 rows runs as one of 4."""
    return self.decode + self.row * ((1 << (rows - 1).bit_length()) - 1)

  def turn(self, decoding: int, rows: int) -> float:
    """Seconds of a turn without noise and depth."""
    full, rest = divmod(decoding, rows)
    return full * self.of_rows(rows) + (self.of_rows(rest) if rest else 0.0)

  def of_chunk(self, tokens: int = 256) -> float: return self.piece + self.token * tokens

  def of(self, action: Piece | Decode) -> float:
    if isinstance(action, Piece):
      return (self.piece + self.token * action.count * (1 + self.depth * action.first)) * self.factor()
    deepest = max(s.fed for s in action.sequences)
    return self.of_rows(len(action.sequences)) * (1 + self.depth * deepest) * self.factor()

@dataclass(eq=False)
class Request:
  """A sequence with its times on the simulated clock. given: the times of its tokens, since a preemption."""
  prompt: list[int]
  length: int
  at: float = 0.0
  cancel: float | None = None
  sequence: Sequence = field(init=False)
  given: list[float] = field(default_factory=list)
  read: float | None = None   # when its prompt had been read for the first time
  ended: float | None = None
  worst: float = 0.0          # longest gap between two tokens, as a part of what is allowed
  allowed: float = 0.0        # seconds to the next token: 4 turns, the longest since the last one counts, or 0.15 s
  submitted: float = 0.0
  pieces: list[tuple[float, int, int]] = field(default_factory=list)  # end, first, count

  def __post_init__(self) -> None: self.sequence = Sequence(list(self.prompt), len(self.prompt), max_tokens=self.length)

class Simulation:
  """Runs requests to their ends, and checks each action against what a scheduler has promised."""
  def __init__(self, pool: HistoryPool, costs: Costs, requests: Iterable[Request], context: int = 8192, rows: int = 8,
               **options: float):
    self.pool, self.costs, self.rows, self.now = pool, costs, rows, 0.0
    self.scheduler = Scheduler(pool, context, rows, **options)
    self.requests = sorted(requests, key=lambda r: r.at)
    self.of = {r.sequence: r for r in self.requests}
    self.actions = list[tuple[float, float, Piece | Decode, bool]]()  # start, seconds, action, somebody decodes

  def run(self, until: float = float("inf"), read: Request | None = None) -> None:
    """Runs until nobody is left, or until a time, or until a request's prompt has been read."""
    arriving = [r for r in self.requests if r.at >= self.now]
    while self.now < until and (read is None or read.read is None):
      while arriving and arriving[0].at <= self.now:
        arriving[0].submitted = self.now
        self.scheduler.submit(arriving.pop(0).sequence)
      for r in self.requests:
        if r.cancel is not None and r.cancel <= self.now: r.sequence.cancelled = True
      action = self.scheduler.next()
      self._ended()
      if action is None:
        assert self.scheduler.running == self.scheduler.waiting == 0, "idle, though somebody could run"
        if not arriving: return
        self.now = arriving[0].at
      else: self._step(action)

  def _ended(self) -> None:
    for s in self.scheduler.ended:
      assert (s.finish is not None or s.error is not None) and not s.table
      self.of[s].ended = self.now
    self.scheduler.ended.clear()
    for r in self.requests:
      if not r.sequence.table: r.given.clear()  # preempted: the next gap begins with its next token

  def _step(self, action: Piece | Decode) -> None:
    seconds, decoding = self.costs.of(action), self._decoding()
    self.actions.append((self.now, seconds, action, bool(decoding)))
    self.now += seconds
    allowed = max(4 * self.costs.turn(len(decoding), self.rows), 0.15)
    for s in decoding: self.of[s].allowed = max(self.of[s].allowed, allowed)
    if isinstance(action, Piece): self._read(action, allowed)
    else:
      assert 1 <= len(action.sequences) == len(set(action.sequences)) <= self.rows
      for s in action.sequences:
        assert s.fed == len(s.tokens) - 1 and self._runs(s)
        r = self.of[s]
        if r.given: r.worst = max(r.worst, (self.now - r.given[-1]) / r.allowed)
        self._token(s, self.pool.feed(s, 1), allowed)
    self.scheduler.done(action, seconds)

  def _read(self, piece: Piece, allowed: float) -> None:
    s, last = piece.sequence, piece.first + piece.count - 1
    assert piece.first == s.fed and piece.count >= 1 and last < len(s.tokens) and self._runs(s)
    blocks = s.table[piece.first // BLOCK:last // BLOCK + 1]
    assert blocks == list(range(blocks[0], blocks[0] + len(blocks))), "a piece crosses the end of a run"
    self.of[s].pieces.append((self.now, piece.first, piece.count))
    self.of[s].given.clear()  # a gap is between decode steps
    history = self.pool.feed(s, piece.count)
    if s.fed == len(s.tokens):
      self.pool.check(s)
      self._token(s, history, allowed)

  def _token(self, s: Sequence, history: int, allowed: float) -> None:
    r = self.of[s]
    s.tokens.append(chosen(history))
    r.given.append(self.now)
    r.allowed = allowed
    if r.read is None: r.read = self.now
    if len(s.tokens) - s.prompt == r.length: s.finish = "length"

  def _decoding(self) -> list[Sequence]:
    return [r.sequence for r in self.requests if r.sequence.table and r.sequence.fed == len(r.sequence.tokens) - 1]

  def _runs(self, s: Sequence) -> bool: return not s.cancelled and s.finish is None and s.error is None
