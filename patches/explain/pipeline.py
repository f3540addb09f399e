"""
Where tinygrad calls the patches, in the order in which a kernel gets there.

places.py records which patch is installed where. The order comes from tinygrad's own code: the names that
full_rewrite_to_sink uses, one after the other.
"""
from __future__ import annotations
from collections.abc import Callable, Iterable
from dataclasses import dataclass
import types
from typing import Any
from tinygrad import codegen
from tinygrad.schedule import rangeify
from tinygrad.uop.ops import PatternMatcher
from tinygrad_llm import patches
from tinygrad_llm.patches import hooks, places
from tinygrad_llm.patches.pipeline import BY_NAME, PASSES, Phase
from tinygrad_llm.patches.schedule import choose

SCHEDULER, BEFORE_OPTS, OPTS, AFTER_OPTS, EXPANDER, BEFORE_LINEARIZE, RENDERER, AROUND = STAGES = (
  "the scheduler: a step's tensors become kernels",
  "a kernel, before its loops are chosen",
  "the choice of its loops: opts",
  "its loops are chosen, their bodies not expanded yet",
  "unrolled loops are expanded, vectors taken apart",
  "all is lowered, before it is put in order",
  "the source code",
  "not a kernel's code: BEAM, caches, workers, running")

@dataclass(frozen=True)
class Place:
  """
  A place where code of patches is called: a name of a module or class, or a collection of functions. order: its
  position in the stage.
  """
  name: str
  stage: str
  order: int
  patches: tuple[str, ...]  # whose code is called, in the order of the calls
  value: Any
  seat: places.Seat|None = None  # None: a collection

_names = {f"{patches.__name__}.{p.module}": p.name for p in PASSES}

def owner(code: Any) -> str:
  """The patch whose module defines a function; "" for tinygrad's functions."""
  return _names.get(getattr(code, "__module__", ""), "")

def only_makes_it_sooner(name: str) -> bool:
  """Whether a patch changes no kernel, only how soon a kernel is made or how it is run (by its phase)."""
  return BY_NAME[name].phase in (Phase.LOWERING, Phase.CACHE, Phase.RUNTIME)

def all_places() -> list[Place]:
  """All places, in the order in which a kernel meets them."""
  found = [_of_seat(seat) for seat in places.seats.values() if seat.passes]
  found += [_of_collection(name, kept) for name, kept in places.collections.items() if kept]
  return sorted(found, key=lambda p: (STAGES.index(p.stage), p.order))

def _of_seat(seat: places.Seat) -> Place:
  value, (module, key) = vars(seat.holder)[seat.key], seat.name.split(":")
  # a matcher tries its rules in order; of functions, the one installed last is called first
  called = [f for _, f in value.patterns] if isinstance(value, PatternMatcher) else seat.links[::-1]
  around = all(map(only_makes_it_sooner, seat.passes))
  stage = (AROUND, 0) if around else _stage(module, key.split(".")[0])
  return Place(seat.name, *stage, _owners(called, seat.passes), value, seat)

def _of_collection(name: str, kept: Any) -> Place:
  around = all(only_makes_it_sooner(p) or BY_NAME[p].phase is Phase.SEARCH for p in kept.passes)
  stage = (AROUND, 0) if around else _stage_of(kept, name.split(":")[0])
  return Place(name, *stage, _owners(kept.values() if isinstance(kept, dict) else kept, kept.passes), kept)

def _owners(called: Iterable[Callable], passes: Iterable[str]) -> tuple[str, ...]:
  """The patches of a place in the order of their calls; last, patches whose function is in another patch's module."""
  return tuple(dict.fromkeys([*filter(None, map(owner, called)), *passes]))

def _uses(driver: Callable) -> list[str]:
  """The names that tinygrad's version of a function uses, in that order."""
  return list(_own(driver).__code__.co_names)

def _own(driver: Callable) -> types.FunctionType:
  """tinygrad's version of a function that patches wrap."""
  own = next((s.links[0] for s in places.seats.values() if s.links and vars(s.holder)[s.key] is driver), driver)
  assert isinstance(own, types.FunctionType)
  return own

def _position(driver: Callable, module: str, name: str) -> int|None:
  """
  The position at which a function of tinygrad uses a name of its module, or anything of another module; None if never.
  """
  names, known = _uses(driver), _own(driver).__globals__
  if module == known["__name__"]: return names.index(name) if name in names else None
  return next((i for i, n in enumerate(names) if getattr(known.get(n), "__module__", None) == module), None)

def _stage(module: str, name: str) -> tuple[str, int]:
  if module.startswith("tinygrad.schedule"):
    at = _position(rangeify.get_kernel_graph, module, name)
    return SCHEDULER, len(_uses(rangeify.get_kernel_graph)) if at is None else at
  if module.startswith("tinygrad.renderer"): return RENDERER, 0
  if module == "tinygrad.codegen.opt.search": return AROUND, 0
  driver, last = codegen.full_rewrite_to_sink, "pm_implicit_barriers"
  if (module, name) == (codegen.__name__, "full_rewrite_to_sink"): return BEFORE_OPTS, -1
  opts, end = (_uses(driver).index(n) for n in ("apply_opts", last))
  if module.startswith("tinygrad.codegen.opt"): return OPTS, opts + 1  # apply_opts calls it
  if (at := _position(driver, module, name)) is None: return AROUND, 0
  return BEFORE_OPTS if at < opts else OPTS if at == opts else EXPANDER if at < end else BEFORE_LINEARIZE, at

def _stage_of(kept: Any, module: str) -> tuple[str, int]:
  """
  The stage of a collection. The lists of hooks.py have fixed places; other collections run in the pass that keeps them.
  """
  uses = _uses(codegen.full_rewrite_to_sink)
  opts, last = uses.index("apply_opts"), len(uses)
  if kept is hooks.before_opts: return OPTS, opts
  if kept is hooks.actions or kept is choose.choosers: return OPTS, opts + 1
  if kept is hooks.after_opts: return AFTER_OPTS, 0
  if kept is hooks.before_linearize: return BEFORE_LINEARIZE, last
  mine = [function.__module__ for function in hooks.before_linearize]
  return (BEFORE_LINEARIZE, last + 1) if module in mine else (AFTER_OPTS, 1)

def order() -> dict[str, list[tuple[str, list[str]]]]:
  """{stage: [(a patch that a kernel meets there, the names of its places)]}. A patch may be in several stages."""
  stages: dict[str, dict[str, list[str]]] = {stage: {} for stage in STAGES}
  for place in all_places():
    for name in place.patches: stages[place.stage].setdefault(name, []).append(place.name)
  return {stage: list(found.items()) for stage, found in stages.items()}
