"""The engine of streams over steps whose "KV" is a hash of the token history: fast, and wrong KV gives wrong tokens."""
import threading
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Numbers
from random import Random

import numpy as np
from tests.support.serving import BLOCK, EMPTY, chosen, hashed

from tinygrad_llm.engine.batch.engine import Engine
from tinygrad_llm.engine.batch.request import Request
from tinygrad_llm.engine.batch.row_ahead import Results
from tinygrad_llm.engine.batch.row_steps import Row
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.engine.batch.stream import AsyncStream, TokenStream
from tinygrad_llm.engine.choice.ending import Ending
from tinygrad_llm.engine.prefixes.prefix_tree import Node
from tinygrad_llm.errors import InputError

VOCAB = 97
NAN = -7  # the hash of numbers that are not finite, and of all that is computed from them

class HistorySteps:
  """
  Stands in for RowSteps. before: called with the name of each step, before it; it may raise, or wait.

  damage: how many of the next steps write numbers that are not finite.
  """
  is_ahead = False

  def __init__(self, blocks: int):
    self.blocks, self.states, self.nbytes, self.damage = blocks, [], 0, 0
    self.window = None
    self.cells = [[NAN] * BLOCK for _ in range(blocks)]  # nobody may count on what is free
    self.fed: list[int] = []  # tokens of each piece
    self.before = lambda name: None

  def piece(self, tokens: Numbers[int], start: int, table: Numbers[int], window: Numbers[int] = ()) -> None:
    self.before("piece")
    damaged = self._damaged()
    self.fed.append(len(tokens))
    for i, token in enumerate(tokens, start): self._last = self._feed(token, i, table, damaged)

  def decode(self, rows: Numbers[Row], turn: int = 0) -> tuple[list[int], list[int]]:
    self.before("decode")
    damaged = self._damaged()
    found = [self._feed(*row[:3], damaged) if row.table[0] else EMPTY for row in rows]
    return found, found

  def repeat(self, rows: Numbers[Row]) -> Callable[[Numbers[int], Numbers[int]], tuple[list[int], list[int]]]:
    tables = [[*row.table] for row in rows]
    def again(tokens: Numbers[int], positions: Numbers[int]) -> tuple[list[int], list[int]]:
      assert tables == [row.table for row in rows]
      return self.decode([Row(*row) for row in zip(tokens, positions, tables, strict=True)])
    return again

  def keys(self, keys: list[int]) -> list[int]: return [_key(history, chosen(history)) for history in keys]
  def last_logits(self, length: int) -> np.ndarray: return self.logits([self._last], 0)
  def logits(self, logits: list[int], row: int) -> np.ndarray:
    found = np.zeros(VOCAB, np.float32)
    found[chosen(logits[row])] = np.nan if logits[row] == NAN else 1
    return found

  def copy(self, source: int, target: int, window: bool = False) -> None: self.cells[target] = [*self.cells[source]]
  def clear(self, block: int, window: bool = False) -> None: self.cells[block] = [EMPTY] * BLOCK

  def _damaged(self) -> bool:
    self.damage -= (damaged := self.damage > 0)
    return damaged

  def _feed(self, token: int, position: int, table: Numbers[int], damaged: bool) -> int:
    before = self.cells[table[(position - 1) // BLOCK]][(position - 1) % BLOCK] if position else EMPTY
    history = NAN if damaged or before == NAN else hashed(before, token)
    self.cells[table[position // BLOCK]][position % BLOCK] = history
    return history

class LaterSteps(HistorySteps):
  """
  The same for AheadSteps: what is launched is done when its result, or another step, is waited for.

  It is stricter than a device, which does all in order: no block that a launched step still writes may get anything
  but its sequence's next position. events: "launch" and "read", in order.
  """
  is_ahead = True

  def __init__(self, blocks: int):
    super().__init__(blocks)
    self.events: list[str] = []
    self._queue, self._chosen = list[Callable[[], None]](), [0] * 8
    self._writes: dict[int, tuple[int, int]] = {}  # {block: (row, position)} of the launches in the queue

  @property
  def written(self) -> set[int]:
    """Blocks that launched steps still write."""
    return {*self._writes}

  def launch(self, rows: Numbers[Row], turn: int = 0) -> Results:
    self.before("decode")
    assert len(self._queue) < 2, "a third step under way"
    rows, found, keys_of = [_copied(row) for row in rows], list[int](), list[int]()
    for row in rows:
      block, offset = row.table[row.position // BLOCK], row.position % BLOCK
      before = [at for at in self._writes.values() if row.token < 0 and at == (~row.token, row.position - 1)]
      assert len(before) == (row.token < 0), "the choice of another sequence"
      assert block not in self._writes or before and offset, "a block that another step still writes"
    damaged, writes = self._damaged(), {row.table[row.position // BLOCK]: (i, row.position)
                                        for i, row in enumerate(rows) if row.table[0]}
    def run() -> None:
      last, self._chosen = self._chosen, [0] * 8
      for i, (token, position, table, choice, _) in enumerate(rows):
        fed = last[~token] if token < 0 else token
        found.append(self._feed(fed, position, table, damaged) if table[0] else EMPTY)
        self._chosen[i] = chosen(found[-1])
        if choice is not None:
          random, recent = choice.random / 2**32, [*choice.history[:position], fed]
          self._chosen[i] = moved(self._chosen[i], choice.sampler.seed, recent, random)
        keys_of.append(_key(found[-1], self._chosen[i]))
      self._writes = {block: at for block, at in self._writes.items() if writes.get(block) != at}
    self._writes |= writes
    self._queue.append(run)
    self.events.append("launch")
    def keys() -> list[int]:
      self.before("read")
      while run in self._queue: self._queue.pop(0)()
      self.events.append("read")
      return keys_of
    return Results(keys, found)

  def piece(self, *args) -> None:
    assert not self._queue, "a piece behind a step whose result nobody knows"
    super().piece(*args)
  def copy(self, source: int, target: int, window: bool = False) -> None:
    assert not {source, target} & self.written
    super().copy(source, target)
  def clear(self, block: int, window: bool = False) -> None:
    assert block not in self.written
    super().clear(block)
  def finish(self) -> None:
    """Does all that was launched."""
    while self._queue: self._queue.pop(0)()

def _copied(row: Row) -> Row:
  """As it is at a launch."""
  choice = row.choice and row.choice._replace(history=[*row.choice.history])
  return Row(row.token, row.position, [*row.table], choice)

def _key(history: int, token: int) -> int:
  """As greedy_key: of NaN, or of a logit of 0."""
  return (0xFFFFFFFF if history == NAN else 0x80000000) * 2**32 + 0xFFFFFFFF - token

def moved(token: int, seed: int, tokens: Numbers[int], random: float) -> int:
  """A choice by its seed, by the tokens so far, the last 64 of them, and by a random number."""
  return (token + seed + sum(tokens[-64:]) + int(random * VOCAB)) % VOCAB

class Greedy:
  """A sampler. A seed moves the choice, so that answers with other seeds are other answers."""
  greedy = on_device = False
  def __init__(self, seed: int = 0): self.seed = seed
  def __call__(self, logits: np.ndarray, tokens: Numbers[int], allowed: object = None, ruled_out: object = (),
               random: float | None = None) -> int:
    if np.isnan(logits).any(): raise InputError("largest is nan")
    return self.picks(int(logits.argmax()), tokens, random)
  def picks(self, token: int, tokens: Numbers[int], random: float | None = None) -> int:
    """The choice where `token` is the likeliest one."""
    return (token + self.seed) % VOCAB

class Likeliest(Greedy):
  """The choice that a device makes, too, whatever the seed."""
  greedy = on_device = True
  def __init__(self, seed: int = 0): super().__init__()

class Drawn(Greedy):
  """Choices that a device can make, too, by random numbers, one each, and by the last tokens."""
  on_device = True
  def __init__(self, seed: int = 0):
    super().__init__(seed)
    self._random = Random(seed)
  def random(self) -> float: return self._random.random()
  def picks(self, token: int, tokens: Numbers[int], random: float | None = None) -> int:
    return moved(token, self.seed, tokens, self.random() if random is None else random)

def answer(prompt: Numbers[int], length: int, seed: int = 0, sampler: type[Greedy] = Greedy) -> list[int]:
  """The answer to a prompt, computed without an engine."""
  history, tokens, made = EMPTY, [*prompt], sampler(seed)
  for token in prompt: history = hashed(history, token)
  for _ in range(length):
    tokens.append(made.picks(chosen(history), tokens))
    history = hashed(history, tokens[-1])
  return tokens[len(prompt):]

class HistoryEngine(Engine):
  """An engine over HistorySteps of `blocks` blocks, with streams."""
  steps_of: type[HistorySteps] = HistorySteps

  def __init__(self, blocks: int = 40, context: int = 1024):
    super().__init__(self.steps_of(blocks), context, 256, threading.RLock())

  def streams(self, prompt: Numbers[int], length: int, n: int = 1, kind: type = TokenStream,
              sampler: type[Greedy] = Greedy, ends: Numbers[int] = ()) -> list:
    requests = [Request(Sequence([*prompt], len(prompt), max_tokens=length), sampler(i), Ending(ends, (), 0, length),
                        None) for i in range(n)]
    made = [kind(None, self, request) for request in requests]
    requests[0].forks = requests[1:]
    self.submit(requests[0])
    return made

  def stream(self, prompt: Numbers[int], length: int, **options) -> TokenStream:
    return self.streams(prompt, length, **options)[0]
  def astream(self, prompt: Numbers[int], length: int) -> AsyncStream:
    return self.streams(prompt, length, 1, AsyncStream)[0]

class LaterEngine(HistoryEngine):
  """
  The same over LaterSteps, driven by hand: each step() of the test is one of the engine.

  It checks that no block leaves a sequence while a step writes it.
  """
  steps_of = LaterSteps

  def _open(self) -> None:
    super()._open()
    self._inbox.thread = threading.current_thread()

  def _begin(self) -> None:
    super()._begin()
    self.steps.finish()
    release = self.pool.release
    def checked(s: Sequence) -> None:
      assert not s.launched and not {*s.table} & self.steps.written, "a block leaves while a step writes it"
      assert s.fed <= len(s.tokens), "a position beyond the end counts"
      release(s)
    self.pool.release = checked  # type: ignore[method-assign]

  def step(self) -> bool:
    found = super().step()
    if isinstance(self.failure, InputError) and "AssertionError" in str(self.failure): raise self.failure
    return found

  def check_tree(self) -> None:
    """Each block of the prefix tree holds the histories of its ids, wherever these are valid."""
    def check(node: Node, history: int) -> None:
      assert len(node.key) == 4 * BLOCK or not node.children or node.parent is None
      for i, token in enumerate(array("i", node.key)):
        history = hashed(history, token)
        assert self.steps.cells[node.block][i] == history
      for child in node.children.values(): check(child, history)
    for root in self.pool.tree._roots.values(): check(root, EMPTY)
