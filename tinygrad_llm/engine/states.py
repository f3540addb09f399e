"""
Which tokens the states of recurrent layers have seen, and copies of states that a later prompt may start from.

A KV cache can be cut back to any prefix of its tokens, a state cannot. So a prompt starts at the deepest state whose
tokens are a prefix of its own, and no prefix is too short for that. A chat template drops earlier thinking: the next
prompt then shares tokens with the last prompt, not with the answer. The state at the end of the last prompt is
therefore kept; it is the one that prompts are fed into, and answers leave it alone.
"""
from __future__ import annotations
from collections.abc import Sequence
from typing import NamedTuple
import numpy as np
from tinygrad import Tensor
from tinygrad_llm.device.buffers import copy, empty, host_view
from tinygrad_llm.nn.cache.state import PROMPT, State

CHECKPOINTS, BUDGET = 4, 1 << 30  # copies at most, and their bytes at most; one copy is always kept

def most_checkpoints(nbytes: int) -> int:
  """How many copies of states of so many bytes are kept."""
  return max(1, min(CHECKPOINTS, BUDGET // nbytes))

class Checkpoint(NamedTuple):
  """A copy of all layers' states after so many tokens."""
  tokens: int
  copies: list[Tensor]

class States:
  """
  The states of one slot. A state that has seen n tokens has seen the first n of the KV cache.

  seen: tokens of each turn that holds a state, 0, 1 or PROMPT (see state.State). A model without recurrent layers has
  no states; then every position can be reached.
  """
  def __init__(self, states: Sequence[State]):
    self.states, self.seen, self.checkpoints = states, dict[int, int](), list[Checkpoint]()
    self._spare = list[list[Tensor]]()  # memory of checkpoints that are forgotten

  @property
  def nbytes(self) -> int:
    """Bytes of all states and checkpoints."""
    copies = [*self._spare, *(c.copies for c in self.checkpoints)]
    return sum(state.nbytes for state in self.states) + sum(x.nbytes() for held in copies for x in held)

  def cut(self, position: int) -> None:
    """Forgets states that have seen more than `position` tokens."""
    self.seen = {turn: n for turn, n in self.seen.items() if n <= position}
    self._spare += [c.copies for c in self.checkpoints if c.tokens > position]
    self.checkpoints = [c for c in self.checkpoints if c.tokens <= position]

  def resume(self, most: int) -> int:
    """
    Loads the deepest state of at most `most` tokens for the prompt that follows; returns how many it has seen.

    A prompt has to be fed from there; 0: from its first token. Without recurrent layers, that is `most`.
    """
    if not self.states: return most
    held = [*self.seen.values(), *(c.tokens for c in self.checkpoints)]
    best = max((n for n in held if n <= most), default=0)
    if self.seen.get(PROMPT) == best: return best
    if self.seen.get(PROMPT, 0) < best: self.keep()
    if best: self._load(best)
    else: self.seen.pop(PROMPT, None)
    return best

  def keep(self) -> None:
    """Makes a checkpoint of the state at the end of the tokens fed last in chunks, which are about to go on."""
    n = self.seen.get(PROMPT, 0)
    if not n or any(c.tokens == n for c in self.checkpoints): return
    held = self._tensors(PROMPT)
    full = len(self.checkpoints) >= most_checkpoints(sum(x.nbytes() for x in held))
    if full: self._spare.append(self._dropped().copies)
    copies = self._spare.pop() if self._spare else alike(held)
    copy_all(copies, held)
    self.checkpoints = sorted([*self.checkpoints, Checkpoint(n, copies)], key=lambda c: c.tokens)

  def fed_prompt(self, position: int) -> None:
    """Notes that a chunk was fed, up to and without `position`."""
    if self.states: self.seen[PROMPT] = position

  def is_ready(self, position: int) -> bool:
    """Whether a decode step can feed the token at `position`."""
    return not self.states or not position or position in (self.seen.get(position % 2), self.seen.get(PROMPT))

  def before_decode(self, position: int) -> None:
    """Puts the state where the decode step at `position` reads it; that step overwrites the other turn."""
    if not self.states: return
    if position and self.seen.get(turn := position % 2) != position:
      copy_all(self._tensors(turn), self._tensors(PROMPT))
      self.seen[turn] = position
    self.seen.pop(1 - position % 2, None)

  def decoded(self, position: int) -> None:
    """Notes that the decode step at `position` has run, and the token that it fed is known."""
    if self.states: self.seen[1 - position % 2] = position + 1

  def free_turns(self) -> None:
    """Leaves both turns to steps that are run to capture them; a state in a turn alone is kept for prompts."""
    if not self.states: return
    best = max(self.seen.values(), default=0)
    if best != self.seen.get(PROMPT, 0):
      self.keep()
      self._load(best)
    self.seen = {turn: n for turn, n in self.seen.items() if turn == PROMPT}

  def save(self, tokens: int) -> list[np.ndarray] | None:
    """
    Copies of the states that have seen so many tokens; None if there is none, or the host cannot reach the memory.
    """
    if (turn := self._turn(tokens)) is None: return [] if not self.states else None
    views = [host_view(x) for x in self._tensors(turn)]
    return [x.copy() for x in views if x is not None] if all(x is not None for x in views) else None

  def restore(self, tokens: int, copies: Sequence[np.ndarray]) -> None:
    """Writes back copies that save() made."""
    if not self.states: return
    for x, values in zip(self._tensors(tokens % 2), copies):
      view = host_view(x)
      assert view is not None, "save() reached it"
      np.copyto(view, values)
    self.seen[tokens % 2] = tokens

  def _load(self, tokens: int) -> None:
    """Copies the state of so many tokens to where prompts read it."""
    turn = self._turn(tokens)
    source = next(c.copies for c in self.checkpoints if c.tokens == tokens) if turn is None else self._tensors(turn)
    copy_all(self._tensors(PROMPT), source)
    self.seen[PROMPT] = tokens

  def _turn(self, tokens: int) -> int | None:
    """The turn that holds the state of so many tokens; None if there is none."""
    return next((turn for turn, n in self.seen.items() if n == tokens), None)

  def _tensors(self, turn: int) -> list[Tensor]:
    """The tensors of all layers' states of one turn."""
    return [x for state in self.states for x in (state.prompt if turn == PROMPT else state.turns[turn])]

  def _dropped(self) -> Checkpoint:
    """
    Removes the checkpoint whose absence costs least: its neighbours are near each other, and it is far from the end.

    The gaps between those that stay double, about, with their distance from the end.
    """
    ends = [0, *(c.tokens for c in self.checkpoints), end := self.seen[PROMPT]]
    def cost(i: int) -> float: return (ends[i + 2] - ends[i]) / (end - ends[i + 1] + 1)
    return self.checkpoints.pop(min(range(len(self.checkpoints)), key=cost))

def copy_all(to: Sequence[Tensor], of: Sequence[Tensor]) -> None:
  """Copies each tensor's contents to its counterpart."""
  for x, y in zip(to, of): copy(x, y)

def alike(tensors: Sequence[Tensor]) -> list[Tensor]:
  """Uninitialised tensors of the same shapes and types."""
  return [empty(x.max_shape, x.dtype) for x in tensors]
