"""State that a forked child must drop: pipes to the parent's worker processes, and locks held by other threads."""
from __future__ import annotations
import os, weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
_owners: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()

def in_children(owner: T, forget: Callable[[T], None]) -> None:
  """After each fork, the child first calls forget(owner), as long as `owner` lives."""
  _owners[owner] = forget

def _forget() -> None:
  """One owner's error leaves no other's lock held: it is told when all have forgotten."""
  errors = []
  for owner, forget in list(_owners.items()):
    try: forget(owner)
    except Exception as e: errors.append(e)
  if errors: raise errors[0]

if hasattr(os, "register_at_fork"): os.register_at_fork(after_in_child=_forget)
