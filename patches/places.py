"""
Places: where passes hook into tinygrad, recorded as each pass is installed.

A pass replaces a function, wraps one, adds rules to a matcher, or adds a function to a collection that another pass
keeps. It does so through this module, which records the name of the pass being installed. explain/ lists the places and
watches the calls there.
"""
from __future__ import annotations
import functools, types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
if TYPE_CHECKING: from tinygrad.uop.ops import PatternMatcher

T = TypeVar("T")
K = TypeVar("K")

@dataclass
class Seat:
  """
  An attribute of a tinygrad module or class that passes have changed. `passes`: the passes with code there, in the
  order of installation. `links`: the functions that were there, tinygrad's own first; each replaces or wraps the one
  before it.
  """
  holder: Any
  key: str
  passes: dict[str, None] = field(default_factory=dict)
  links: list[Callable] = field(default_factory=list)

  @property
  def name(self) -> str:
    if isinstance(self.holder, types.ModuleType): return f"{self.holder.__name__}:{self.key}"
    return f"{self.holder.__module__}:{self.holder.__qualname__}.{self.key}"

seats: dict[tuple[int, str], Seat] = {}
collections: dict[str, Functions | Named] = {}  # by module:name
stock: dict[Callable, Callable] = {}            # {a rule: tinygrad's rule that it replaced and calls}
_installing = ""                                # the pass being installed: once, by one thread

@contextmanager
def of(name: str) -> Iterator[None]:
  """A context: everything put in place in it belongs to the pass `name`."""
  global _installing
  _installing, before = name, _installing
  try: yield
  finally: _installing = before

def _taken(place: Seat | Functions | Named) -> None:
  if _installing: place.passes[_installing] = None

def _seat(holder: Any, name: str) -> Seat:
  _taken(seat := seats.setdefault((id(holder), name), Seat(holder, name)))
  return seat

def replace(holder: Any, name: str, value: Any) -> None:
  """Replaces tinygrad's own value by another."""
  links = _seat(holder, name).links
  assert not links, f"{name} is not tinygrad's own any more"
  if isinstance(value, types.FunctionType): links += (getattr(holder, name), value)
  setattr(holder, name, value)

def wrap(holder: Any, name: str, function: Callable) -> Callable[..., Any]:
  """Puts a function in the place of the one that it wraps; returns a function that calls the wrapped one."""
  return _wrap(holder, name, lambda below: (function, below))

def wrapped(holder: Any, name: str, make: Callable[[Callable], Callable]) -> None:
  """Replaces the function that is there by make(that function)."""
  _wrap(holder, name, lambda below: (make(below), below))

def _wrap(holder: Any, name: str, make: Callable[[Callable], tuple[Callable, Callable]]) -> Callable[..., Any]:
  links = _seat(holder, name).links
  if not links: links.append(getattr(holder, name))
  at = len(links) - 1
  def top(*args: Any, **kwargs: Any) -> Any: return links[-1](*args, **kwargs)
  def below(*args: Any, **kwargs: Any) -> Any: return links[at](*args, **kwargs)
  below.__name__ = links[at].__name__
  function, ret = make(below)
  links.append(function)
  setattr(holder, name, functools.wraps(function)(top))  # matchers may hold it; explain/ replaces `links`
  return ret

def rules(holder: Any, name: str, matcher: PatternMatcher, first: bool = False) -> None:
  """Adds rules to a matcher: after its own rules, or before them (first)."""
  _seat(holder, name)
  now = getattr(holder, name)
  setattr(holder, name, matcher + now if first else now + matcher)

class Functions(list[T]):
  """A list of functions that passes append to, in the order of their calls."""
  def __init__(self, module: str, name: str, functions: Iterable[T] = ()):
    super().__init__(functions)
    self.passes = dict[str, None]()
    collections[f"{module}:{name}"] = self
  def append(self, function: T) -> None: self.extend((function,))
  def extend(self, functions: Iterable[T]) -> None:
    super().extend(functions)
    _taken(self)

class Named(dict[K, T]):
  """A dict of functions that passes add; the key says what a function is for."""
  def __init__(self, module: str, name: str):
    super().__init__()
    self.passes = dict[str, None]()
    collections[f"{module}:{name}"] = self
  def __setitem__(self, key: K, function: T) -> None:
    super().__setitem__(key, function)
    _taken(self)
