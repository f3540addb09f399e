"""Copies of recurrent layers' states at places of the prefix tree, under a budget of bytes."""
from __future__ import annotations
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

class Snapshots:
  """
  {place: a copy of the states there}. The least recently used copy goes first where their bytes exceed the budget.

  A place is a node of the tree, a copy is whatever the engine loads. nbytes: bytes of all copies.
  """
  def __init__(self, budget: int = 0):
    self.budget, self.nbytes = budget, 0
    self._copies = OrderedDict[Hashable, tuple[Any, int]]()

  def __contains__(self, place: Hashable) -> bool: return place in self._copies
  def __len__(self) -> int: return len(self._copies)

  def put(self, place: Hashable, copy: Any, nbytes: int) -> bool:
    """Keeps a copy, the only one at its place; False: it exceeds the budget alone."""
    if nbytes > self.budget: return False
    self.drop(place)
    self._copies[place], self.nbytes = (copy, nbytes), self.nbytes + nbytes
    while self.nbytes > self.budget: self.drop(next(iter(self._copies)))
    return True

  def use(self, place: Hashable) -> Any:
    """The copy at a place, which is now the last used."""
    self._copies.move_to_end(place)
    return self._copies[place][0]

  def drop(self, place: Hashable) -> None:
    """Forgets the copy at a place, if there is one."""
    if place in self._copies: self.nbytes -= self._copies.pop(place)[1]
