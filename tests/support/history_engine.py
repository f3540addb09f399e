"""The engine of streams over steps whose "KV" is a hash of the token history: fast, and wrong KV gives wrong tokens."""
import threading
from collections.abc import Sequence as Numbers

import numpy as np
from tests.support.serving import BLOCK, EMPTY, chosen, hashed

from tinygrad_llm.engine.batch.engine import Engine
from tinygrad_llm.engine.batch.request import Request
from tinygrad_llm.engine.batch.row_steps import Row
from tinygrad_llm.engine.batch.sequence import Sequence
from tinygrad_llm.engine.batch.stream import AsyncStream, TokenStream
from tinygrad_llm.engine.choice.ending import Ending
from tinygrad_llm.errors import InputError

VOCAB = 97
NAN = -7  # the hash of numbers that are not finite, and of all that is computed from them

class HistorySteps:
  """
  Stands in for RowSteps. before: called with the name of each step, before it; it may raise, or wait.

  damage: how many of the next steps write numbers that are not finite.
  """
  def __init__(self, blocks: int):
    self.blocks, self.states, self.nbytes, self.damage = blocks, [], 0, 0
    self.cells = [[NAN] * BLOCK for _ in range(blocks)]  # nobody may count on what is free
    self.fed: list[int] = []  # tokens of each piece
    self.before = lambda name: None

  def piece(self, tokens: Numbers[int], start: int, table: Numbers[int]) -> None:
    self.before("piece")
    damaged = self._damaged()
    self.fed.append(len(tokens))
    for i, token in enumerate(tokens, start): self._last = self._feed(token, i, table, damaged)

  def decode(self, rows: Numbers[Row], turn: int = 0) -> tuple[list[int], None]:
    self.before("decode")
    damaged = self._damaged()
    return [self._feed(*row, damaged) if row.table[0] else EMPTY for row in rows], None

  def last_logits(self, length: int) -> np.ndarray: return self.logits([self._last], 0)
  def logits(self, logits: list[int], row: int) -> np.ndarray:
    found = np.zeros(VOCAB, np.float32)
    found[chosen(logits[row])] = np.nan if logits[row] == NAN else 1
    return found

  def copy(self, source: int, target: int) -> None: self.cells[target] = [*self.cells[source]]
  def clear(self, block: int) -> None: self.cells[block] = [EMPTY] * BLOCK

  def _damaged(self) -> bool:
    self.damage -= (damaged := self.damage > 0)
    return damaged

  def _feed(self, token: int, position: int, table: Numbers[int], damaged: bool) -> int:
    before = self.cells[table[(position - 1) // BLOCK]][(position - 1) % BLOCK] if position else EMPTY
    history = NAN if damaged or before == NAN else hashed(before, token)
    self.cells[table[position // BLOCK]][position % BLOCK] = history
    return history

class Greedy:
  """A sampler. A seed moves the choice, so that answers with other seeds are other answers."""
  greedy = False
  def __init__(self, seed: int = 0): self.seed = seed
  def __call__(self, logits: np.ndarray, tokens: Numbers[int], allowed: object = None, ruled_out: object = ()) -> int:
    if np.isnan(logits).any(): raise InputError("largest is nan")
    return (int(logits.argmax()) + self.seed) % VOCAB

def answer(prompt: Numbers[int], length: int, seed: int = 0) -> list[int]:
  """The answer to a prompt, computed without an engine."""
  history, tokens = EMPTY, list[int]()
  for token in prompt: history = hashed(history, token)
  for _ in range(length):
    tokens.append((chosen(history) + seed) % VOCAB)
    history = hashed(history, tokens[-1])
  return tokens

class HistoryEngine(Engine):
  """An engine over HistorySteps of `blocks` blocks, with streams."""
  def __init__(self, blocks: int = 40, context: int = 1024):
    super().__init__(HistorySteps(blocks), context, 256, threading.RLock())

  def streams(self, prompt: Numbers[int], length: int, n: int = 1, kind: type = TokenStream) -> list:
    requests = [Request(Sequence([*prompt], len(prompt), max_tokens=length), Greedy(i), Ending((), (), 0, length), None)
                for i in range(n)]
    made = [kind(None, self, request) for request in requests]
    requests[0].forks = requests[1:]
    self.submit(requests[0])
    return made

  def stream(self, prompt: Numbers[int], length: int) -> TokenStream: return self.streams(prompt, length)[0]
  def astream(self, prompt: Numbers[int], length: int) -> AsyncStream:
    return self.streams(prompt, length, 1, AsyncStream)[0]
