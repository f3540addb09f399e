"""
Where tinygrad calls the patches, in the order in which a kernel gets there.

It is read off what is installed: functions, classes and rules of patches that tinygrad's modules hold by now, and the
lists of functions that patches keep for each other. The order is that of tinygrad's own code: which names
full_rewrite_to_sink uses, one after the other.
"""
from __future__ import annotations
from collections.abc import Callable, Iterator
from dataclasses import dataclass
import functools, sys, types
from typing import Any
from tinygrad import codegen
from tinygrad.schedule import rangeify
from tinygrad.uop.ops import PatternMatcher
from tinygrad_llm import patches
from tinygrad_llm.patches import hooks
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

Link = tuple[Callable, Callable[[Callable], None]]  # a function, and what puts another in its place

@dataclass(frozen=True)
class Place:
  """Where code of patches is called: a name of a module or class, or a list (key ""). order: within the stage."""
  name: str
  stage: str
  order: int
  holder: Any
  key: str

  @property
  def value(self) -> Any: return self.holder if self.key == "" else vars(self.holder)[self.key]

  @property
  def patches(self) -> tuple[str, ...]:
    """Whose code it is, in the order in which it is called."""
    return tuple(dict.fromkeys(name for code in _codes(self.value) for name in owners(code)))

def owners(code: Any) -> tuple[str, ...]:
  """The patches that a function or class is of; of a module that several share, those that took it from there."""
  if not _is_ours(code): return ()
  by_module = {module.__name__: name for name, module in _installed()}
  if code.__module__ in by_module: return (by_module[code.__module__],)
  return tuple(name for name, module in _installed() if any(code in _codes(value) for value in vars(module).values()))

def _installed() -> list[tuple[str, types.ModuleType]]: return [(name, patches.load(name)) for name in patches.apply()]

def _is_ours(code: Any) -> bool:
  return isinstance(code, (types.FunctionType, type)) and code.__module__.startswith(f"{patches.__name__}.") \
    and not code.__module__.startswith(f"{__package__}.")

def _is_for_kernels(value: Any) -> bool:
  """Whether it may change them, unlike what only makes them sooner."""
  return any(_is_ours(code) and not only_makes_it_sooner(code) for code in _codes(value))

def only_makes_it_sooner(code: Any) -> bool:
  """Whether a function is of the room that changes no kernel, or of the modules that change none in others."""
  name = str(code.__module__).removeprefix(f"{patches.__name__}.")
  return name.startswith(("compile_time.", "cache.sqlite_cache", "host.thread_safety"))

def _codes(value: Any) -> list[Any]:
  """The functions and classes that something installed is made of, in the order of their calls."""
  if isinstance(value, staticmethod): value = value.__func__
  if isinstance(value, PatternMatcher): return [function for _, function in value.patterns]
  if isinstance(value, dict): value = list(value.values())
  if isinstance(value, list): return [x for x in value if isinstance(x, types.FunctionType)]
  if isinstance(value, types.FunctionType): return [link for link, _ in chain(value)]
  if not isinstance(value, type): value = type(value)  # an object of a patch
  return [value] if _is_ours(value) else []

def chain(function: Callable, put: Callable[[Callable], None] = lambda _: None) -> list[Link]:
  """A function of a patch, that which it wraps, and so on, to tinygrad's own."""
  if not isinstance(function, types.FunctionType) or not _is_ours(function): return [(function, put)]
  name, cells = function.__name__.strip("_"), function.__closure__ or ()
  def is_below(x: Any) -> bool:
    return callable(x) and x is not function and getattr(x, "__name__", "").strip("_") == name
  held: list[Link] = [(cell.cell_contents, functools.partial(setattr, cell, "cell_contents")) for cell in cells]
  held += [(found, functools.partial(function.__globals__.__setitem__, key)) for key in function.__code__.co_names
           if (found := function.__globals__.get(key)) is not None]
  below = next((link for link in held if is_below(link[0])), None)
  return [(function, put), *(chain(*below) if below is not None else [])]

def places() -> list[Place]:
  """All of them, in order."""
  def place(module: types.ModuleType, name: str, holder: Any, value: Any) -> Place:
    at = _stage(module.__name__, name.split(".")[0]) if _is_for_kernels(value) else (AROUND, 0)
    return Place(f"{module.__name__}:{name}", *at, holder, name.split(".")[-1])
  found = [place(module, *member) for module in _modules("tinygrad") for member in _members(module)
           if any(map(_is_ours, _codes(member[-1])))]
  ours = _modules(patches.__name__)
  lists = {id(value): Place(f"{module.__name__}:{name}", *_stage_of_list(value, module), value, "")
           for module in ours for name, value in vars(module).items()
           if (isinstance(value, list) or _is_of_opts(value)) and any(map(_is_ours, _codes(value)))
           and not name.startswith("_")}
  return sorted([*found, *lists.values()], key=lambda p: (STAGES.index(p.stage), p.order))

def _modules(package: str) -> list[types.ModuleType]:
  return [module for name, module in sorted(sys.modules.items()) if name.split(".")[0] == package or
          name.startswith(f"{package}.")]

def _members(module: types.ModuleType) -> Iterator[tuple[str, Any, Any]]:
  """What a module and its own classes hold: the name, who holds it, the value."""
  for name, value in list(vars(module).items()):
    yield name, module, value
    if isinstance(value, type) and value.__module__ == module.__name__:
      yield from ((f"{name}.{key}", value, x) for key, x in list(vars(value).items()))

def _names(driver: Callable) -> list[str]:
  """The names that tinygrad's own of a function uses, in that order."""
  return list(chain(driver)[-1][0].__code__.co_names)

def _position(driver: Callable, module: str, name: str) -> int|None:
  """When a function of tinygrad's gets to a name of one of its modules; None if it never does."""
  names, globals = _names(driver), chain(driver)[-1][0].__globals__
  if module == globals["__name__"]: return names.index(name) if name in names else None
  return next((i for i, n in enumerate(names) if getattr(globals.get(n), "__module__", None) == module), None)

def _stage(module: str, name: str) -> tuple[str, int]:
  if module.startswith("tinygrad.schedule"): return SCHEDULER, _position(rangeify.get_kernel_graph, module, name) or 0
  if module.startswith("tinygrad.renderer"): return RENDERER, 0
  if module == "tinygrad.codegen.opt.search": return AROUND, 0
  driver, last = codegen.full_rewrite_to_sink, "pm_implicit_barriers"
  if (module, name) == (codegen.__name__, driver.__name__): return BEFORE_OPTS, -1
  opts, end = (_names(driver).index(n) for n in ("apply_opts", last))
  if module.startswith("tinygrad.codegen.opt"): return OPTS, opts + 1  # apply_opts calls it
  if (at := _position(driver, module, name)) is None: return AROUND, 0
  return BEFORE_OPTS if at < opts else OPTS if at == opts else EXPANDER if at < end else BEFORE_LINEARIZE, at

def _is_of_opts(value: Any) -> bool: return value is hooks.actions or value is choose.choosers

def _stage_of_list(kept: list|dict, module: types.ModuleType) -> tuple[str, int]:
  """Those of hooks.py are at the places that they are for, others are run by the pass of the patch that keeps them."""
  if not _is_for_kernels(kept): return AROUND, 0
  opts = _names(codegen.full_rewrite_to_sink).index("apply_opts")
  if kept is hooks.before_opts: return OPTS, opts
  if _is_of_opts(kept): return OPTS, opts + 1
  if kept is hooks.after_opts: return AFTER_OPTS, 0
  last = len(_names(codegen.full_rewrite_to_sink))
  if kept is hooks.before_linearize: return BEFORE_LINEARIZE, last
  mine = [function.__module__ for function in hooks.before_linearize]
  return (BEFORE_LINEARIZE, last + 1) if module.__name__ in mine else (AFTER_OPTS, 1)

def order() -> dict[str, list[tuple[str, list[str]]]]:
  """{stage: the patches that a kernel meets there, and the names of the places}. A patch may be in several stages."""
  stages: dict[str, dict[str, list[str]]] = {stage: {} for stage in STAGES}
  for place in places():
    for name in place.patches: stages[place.stage].setdefault(name, []).append(place.name)
  return {stage: list(found.items()) for stage, found in stages.items()}
