"""
Who may import whom, in the app and in the patches: read off the source, imports inside of functions and under
TYPE_CHECKING included.
"""
import ast, pathlib
import pytest

ROOT = pathlib.Path(__file__).parents[2]
SHARED = ("errors", "standard_streams", "progress", "command", "leave", "forks")  # of the app: whoever needs them
# a room of the app, and those that it may use beside itself; "" are the commands
APP = {"": {"web", "terminal", "engine", "nn", "text", "files", "target"},
       "web": {"engine", "nn", "text", "files", "target"}, "terminal": {"engine", "nn", "text", "files", "target"},
       "engine": {"nn", "text", "files", "target"}, "nn": {"text", "files", "target"}, "text": {"target"},
       "files": {"target"}, "target": set()}
# of the patches: those that they use beside the modules that lie above all rooms
PATCHES = {"lowering": {"cache"}, "schedule": {"rewrite", "vector", "gpu"}, "attention": {"rewrite", "vector", "gpu"},
           "runtime": {"cache"}, "rewrite": set(), "vector": set(), "gpu": set(), "cache": set(),
           "search": {"attention", "schedule", "vector", "gpu", "runtime", "cache"},
           "explain": {"schedule"}}

def modules() -> dict[str, pathlib.Path]:
  """Every module of the project, by the name it is imported under."""
  found = {}
  for folder, package in ((ROOT / "tinygrad_llm", "tinygrad_llm"), (ROOT / "patches", "tinygrad_llm.patches")):
    for path in folder.rglob("*.py"):
      found[".".join((package, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")] = path
  return found

def imported(name: str, source: str, known: set[str]) -> set[str]:
  """The modules of the project that a module of it imports anywhere; of a package, the module that is taken from it."""
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
  """Modules that import each other in turns; [] if there are none."""
  done: set[str] = set()
  def visit(name: str, path: list[str]) -> list[str]:
    if name in path: return [*path[path.index(name):], name]
    if name in done: return []
    for other in sorted(edges[name]):
      if found := visit(other, [*path, name]): return found
    done.add(name)
    return []
  return next((found for name in edges if (found := visit(name, []))), [])

def room(name: str, package: str) -> str | None:
  """Its folder in a package; "" for what lies above all folders, None for what is not in the package."""
  if name != package and not name.startswith(f"{package}."): return None
  parts = name.removeprefix(package).strip(".").split(".")
  return parts[0] if len(parts) > 1 or MODULES[name].name == "__init__.py" else ""

def test_what_is_read_off():
  """The checks below see something."""
  assert len(MODULES) > 70
  assert "tinygrad_llm.engine.llm" in EDGES["tinygrad_llm"]  # inside of a function
  known = {"a", "a.b", "a.c", "a.d"}
  source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING: from a.b import X\ndef f():\n  from a import c, y\n"
  assert imported("a.d", source, known) == {"a", "a.b", "a.c"}
  assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
  assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []

def test_no_circle(): assert circle(EDGES) == []

def app(name: str) -> str | None:
  return None if name.startswith("tinygrad_llm.patches") else room(name, "tinygrad_llm")

@pytest.mark.parametrize("name", [name for name in MODULES if app(name)])
def test_rooms_of_the_app(name):
  used = {other for other in EDGES[name] if app(other) is not None}
  allowed = APP[str(app(name))] | {app(name)}
  assert [o for o in used if app(o) not in allowed and o not in {f"tinygrad_llm.{shared}" for shared in SHARED}] == []

@pytest.mark.parametrize("name", SHARED)
def test_what_the_app_shares(name):
  """It needs the device at most."""
  assert {app(o) for o in EDGES[f"tinygrad_llm.{name}"] if app(o) is not None} <= {"", "target"}
  assert not EDGES[f"tinygrad_llm.{name}"] & {o for o in MODULES if app(o) == "" and o.split(".")[-1] not in SHARED}

@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("tinygrad_llm.patches")])
def test_rooms_of_the_patches(name):
  here = room(name, "tinygrad_llm.patches")
  if name == "tinygrad_llm.patches" or name.endswith(".__main__"): return
  used = {room(o, "tinygrad_llm.patches") for o in EDGES[name] if o != "tinygrad_llm.patches"}
  assert used <= {""} | ({here} | PATCHES[here] if here else set())

def test_rooms_are_known():
  assert {room(name, "tinygrad_llm.patches") for name in MODULES if room(name, "tinygrad_llm.patches")} <= set(PATCHES)
  assert {app(name) for name in MODULES if app(name) is not None} <= set(APP)
