"""
The allowed imports between modules of the app and of the patches. They are read from the source, including imports
inside functions and under TYPE_CHECKING.
"""
import ast, collections, pathlib
import pytest

ROOT = pathlib.Path(__file__).parents[2]
SHARED = ("errors", "progress", "command")  # modules that the whole app may import
# rooms, the highest floor first: a module imports its own room and lower floors. "" stands for top-level modules
APP = ("", "analysis.pages terminal web", "analysis", "engine", "nn", "weights", "quants", "text files device",
       "process")
PATCHES = ("explain search", "attention", "graph", "schedule search.cost", "tiles", "isa", "vector loops",
           "compile_time runtime", "cache", "host", "", "ir")
INNER = {"nn.mixers": "nn", "nn.cache": "nn", "engine.batch": "engine", "engine.prefixes": "engine",
         "engine.choice": "engine", "web.api": "web"}  # a room in a room, on its floor

def modules() -> dict[str, pathlib.Path]:
  """Every module of the project, by its import name."""
  found = {}
  for folder, package in ((ROOT / "tinygrad_llm", "tinygrad_llm"), (ROOT / "patches", "tinygrad_llm.patches")):
    for path in folder.rglob("*.py"):
      found[".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")] = path
  return found

def imported(name: str, source: str, known: set[str]) -> set[str]:
  """The project's modules that a module imports anywhere; `from package import module` counts as the module."""
  found = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Import): found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"{name} imports relatively"
      found |= {m if (m := f"{node.module}.{alias.name}") in known else str(node.module) for alias in node.names}
  return found & known - {name}

MODULES = modules()
EDGES = {name: imported(name, path.read_text(), set(MODULES)) for name, path in MODULES.items()}

def circle(edges: dict[str, set[str]]) -> list[str]:
  """A cycle of imports; [] if there is none."""
  done: set[str] = set()
  def visit(name: str, path: list[str]) -> list[str]:
    if name in path: return [*path[path.index(name):], name]
    if name in done: return []
    for other in sorted(edges[name]):
      if found := visit(other, [*path, name]): return found
    done.add(name)
    return []
  return next((found for name in edges if (found := visit(name, []))), [])

def folder(name: str) -> tuple[bool, str]:
  """Whether a module is a patch, and its folder ("" for a top-level module)."""
  parts = name.split(".")[1:] if MODULES[name].name == "__init__.py" else name.split(".")[1:-1]
  is_patch = name.startswith("tinygrad_llm.patches")
  return is_patch, ".".join(parts[1:] if is_patch else parts)

def room(name: str) -> tuple[bool, str]:
  """folder(), with the outer room for a room in a room."""
  is_patch, where = folder(name)
  return is_patch, INNER.get(where, where)

def floor(is_patch: bool, folder: str) -> int:
  return next(i for i, rooms in enumerate(PATCHES if is_patch else APP) if folder in (rooms.split() or [""]))

def test_imports_are_parsed():
  """The checks below are not vacuous."""
  assert len(MODULES) > 70
  assert "tinygrad_llm.engine.llm" in EDGES["tinygrad_llm"]  # inside of a function
  known = {"a", "a.b", "a.c", "a.d"}
  source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING: from a.b import X\ndef f():\n  from a import c, y\n"
  assert imported("a.d", source, known) == {"a", "a.b", "a.c"}
  assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
  assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []

def test_no_import_cycles(): assert circle(EDGES) == []

def is_shared(name: str) -> bool: return name.removeprefix("tinygrad_llm.") in SHARED

@pytest.mark.parametrize("name", MODULES)
def test_modules_import_only_lower_floors(name):
  """Modules import only lower floors, so rooms cannot form a cycle."""
  (is_patch, mine), wrong = room(name), []
  if name == "tinygrad_llm.patches.__main__": return  # a command
  for other in EDGES[name]:
    to_patch, its = room(other)
    if is_patch != to_patch:
      if is_patch: wrong.append(other)  # no patch imports the app
    elif is_shared(name) and not is_patch:  # it may import the device's and the process's rooms only
      if not is_shared(other) and its not in ("device", "process"): wrong.append(other)
    elif its != mine and (to_patch or not is_shared(other)) and floor(is_patch, mine) >= floor(is_patch, its):
      wrong.append(other)
  assert wrong == []

def test_rooms_are_small():
  """A room has 3 to 16 modules, so that a reader takes in their names at a glance."""
  counts = collections.Counter(folder(name) for name in MODULES if MODULES[name].name != "__init__.py")
  assert {where: n for where, n in counts.items() if n > 16 or n < 3} == {}

def is_private(name: str) -> bool: return name.startswith("_") and not name.endswith("__")

def private(source: str, name: str) -> set[str]:
  """The private names of other modules of the project that a module uses."""
  tree, ours = ast.parse(source), dict[str, str]()
  found = set()
  for node in ast.walk(tree):
    if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("tinygrad_llm"): continue
    for alias in node.names:
      if is_private(alias.name): found.add(f"{node.module}.{alias.name}")
      elif (module := f"{node.module}.{alias.name}") in MODULES and module != name:
        ours[alias.asname or alias.name] = module
  for node in ast.walk(tree):
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name): continue
    if node.value.id in ours and is_private(node.attr): found.add(f"{ours[node.value.id]}.{node.attr}")
  return found

def test_private_access_is_detected():
  source = "from tinygrad_llm.patches.cache import disk_cache as d\nfrom tinygrad_llm.errors import _x\nd._y()\nd.z()\n"
  assert private(source, "") == {"tinygrad_llm.patches.cache.disk_cache._y", "tinygrad_llm.errors._x"}

@pytest.mark.parametrize("name", MODULES)
def test_private_names_are_not_used_elsewhere(name): assert private(MODULES[name].read_text(), name) == set()
