"""
The registry of patches/: what it refuses, what switches it off, and that it gets to wherever kernels are compiled.

`stamped` is this project in a folder of its own with one patch more, `stamp`: it writes the id of the process that
renders a kernel into the kernel's source. So a kernel shows whether the patches were there, and in which process.
"""
import ast
import importlib
import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import textwrap

import pytest
import tinygrad
from tinygrad_llm import patches

ROOT = pathlib.Path(patches.__file__).parent.parent
STAMP = '''"""
A mark in the source of every kernel.

Why: a test. How: a comment with the id of the process. Numbers: none. Upstream: no.
"""
import os
from tinygrad.renderer.cstyle import ClangRenderer

SEAMS = {"tinygrad.renderer.cstyle:ClangRenderer.render_kernel": "FINGERPRINT"}

_stock = ClangRenderer.render_kernel

def render_kernel(self, *args, **kwargs) -> str: return f"// stamp {os.getpid()}\\n{_stock(self, *args, **kwargs)}"
def install() -> None: ClangRenderer.render_kernel = render_kernel
'''
# the ids of the processes that stamped each of four kernels, which compile workers have made, and of this process
COMPILE = '''
import json, os, re
import tinygrad_llm
from tinygrad import Device, Tensor
from tinygrad.engine import realize, worker
calls = [call for n in (3, 5, 7, 9) for call in (Tensor.empty(n) + 1).contiguous().linear_with_vars()[0].src]
context = {v.key: v.value for v in realize.to_program_context}
tasks = [(i, realize._get_call_to_compile(call), context) for i, call in enumerate(calls)]
sources = [program.src[2].arg for _, program in worker.get_worker_pool().map(realize._compile_kernel, tasks)]
print(json.dumps({"stamps": [[int(x) for x in re.findall(r"// stamp (\\d+)", source)] for source in sources],
                  "pid": os.getpid(), "from": tinygrad_llm.__file__}))
'''

def run(code: str, cwd: pathlib.Path = ROOT, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
  """A process that finds the package in `cwd`, with no switches but `env`."""
  kept = {k: v for k, v in os.environ.items() if not k.startswith("NO_") and k != "PYTHONPATH"}
  done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=kept | env, capture_output=True, text=True)
  assert not check or done.returncode == 0, done.stderr[-2000:]
  return done

@pytest.fixture(scope="module")
def stamped(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("stamped") / "project"
  for name in ("tinygrad_llm", "patches"):
    shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
  for name in ("setup.py", "pyproject.toml"): shutil.copy(ROOT / name, folder)
  registry = folder / "patches" / "__init__.py"
  text = registry.read_text()
  assert (was := "PATCHES: tuple[str, ...] = (") in text
  registry.write_text(text.replace(was, was + '"stamp", '))
  seam = "tinygrad.renderer.cstyle:ClangRenderer.render_kernel"
  (folder / "patches" / "stamp.py").write_text(STAMP.replace("FINGERPRINT", patches.fingerprint(seam)))
  return folder

@pytest.fixture(scope="module")
def installed(stamped: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """The folder into which a wheel of it was installed; offline."""
  folder, pip = tmp_path_factory.mktemp("installed"), [sys.executable, "-m", "pip", "-q", "--no-cache-dir"]
  offline = ["--no-deps", "--no-index"]
  subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", "-w", str(folder), str(stamped)], check=True)
  [wheel] = folder.glob("tinygrad_llm-*.whl")
  subprocess.run([*pip, "install", *offline, "--target", str(folder / "site"), str(wheel)], check=True)
  return folder / "site"

# *** modules ***

@pytest.mark.parametrize("name", patches.PATCHES)
def test_module(name: str):
  module = importlib.import_module(f"tinygrad_llm.patches.{name}")
  parts = [module.__doc__.find(f"\n{part}: ") for part in ("Why", "How", "Numbers", "Upstream")]
  assert -1 not in parts
  assert parts == sorted(parts)
  assert module.__doc__.strip().splitlines()[0].endswith(".")
  assert module.SEAMS
  assert callable(module.install)
  assert pathlib.Path(module.__file__) == ROOT / "patches" / f"{name}.py"

def test_nothing_of_the_app_is_used():
  for path in (ROOT / "patches").glob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
      names = [x.name for x in node.names] if isinstance(node, ast.Import) else \
              [f"{node.module}.{x.name}" for x in node.names] if isinstance(node, ast.ImportFrom) else []
      assert all(n.startswith("tinygrad_llm.patches") for n in names if n.split(".")[0] == "tinygrad_llm"), path

def test_listing():
  done = subprocess.run([sys.executable, "-m", "tinygrad_llm.patches"], cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("on ")] == list(patches.PATCHES)
  assert f"patch set {patches.patch_set()}" in done.stdout

def test_listing_of_a_wrong_seam(stamped: pathlib.Path, tmp_path: pathlib.Path):
  shutil.copytree(stamped, tmp_path / "wrong")
  path = tmp_path / "wrong" / "patches" / "stamp.py"
  path.write_text(path.read_text().replace(patches.fingerprint("tinygrad.renderer.cstyle:ClangRenderer.render_kernel"),
                                           "0123456789ab"))
  command = [sys.executable, "-m", "tinygrad_llm.patches"]
  done = subprocess.run(command, cwd=path.parent.parent, env=os.environ | {"NO_PATCHES": "1"}, capture_output=True,
                        text=True)
  assert done.returncode == 1
  assert "ClangRenderer.render_kernel  made for 0123456789ab of tinygrad 0.14.0" in done.stdout
  done = run("import tinygrad_llm", path.parent.parent, check=False)
  assert "SeamError: tinygrad.renderer.cstyle:ClangRenderer.render_kernel of tinygrad 0.14.0" in done.stderr

# *** apply() ***

def test_apply_is_idempotent(monkeypatch):
  calls = []
  for name in patches.PATCHES:
    module = importlib.import_module(f"tinygrad_llm.patches.{name}")
    monkeypatch.setattr(module, "install", lambda name=name: calls.append(name))
  assert patches.apply() == patches.enabled()
  assert patches.apply() == patches.enabled()
  assert calls == []  # importing tinygrad_llm has done it

@pytest.fixture
def not_installed(monkeypatch):
  """The names of the patches that are installed from here on."""
  calls: list[str] = []
  for name in patches.PATCHES:
    module = importlib.import_module(f"tinygrad_llm.patches.{name}")
    monkeypatch.setattr(module, "install", lambda name=name: calls.append(name))
  return calls

def test_another_version_of_tinygrad(monkeypatch, not_installed):
  monkeypatch.setattr(patches, "TINYGRAD", "0.15.1")
  with pytest.raises(patches.SeamError, match=r"tinygrad 0\.14\.0 is installed, the patches are made for 0\.15\.1"):
    patches.apply.__wrapped__()
  assert not_installed == []

def test_another_source_of_a_seam(monkeypatch, not_installed):
  seam, module = "tinygrad.engine.worker:_init_worker", importlib.import_module("tinygrad_llm.patches.workers")
  monkeypatch.setitem(module.SEAMS, seam, "0123456789ab")
  with pytest.raises(patches.SeamError, match=f"{seam} of tinygrad 0.14.0 has fingerprint {patches.fingerprint(seam)}, "
                                              "tinygrad_llm.patches.workers is made for 0123456789ab of 0.14.0"):
    patches.apply.__wrapped__()
  assert not_installed == []

def test_a_seam_that_is_gone(monkeypatch, not_installed):
  """A patch that does not even import, where what it patches has another name, is no reason to go on without it."""
  name = "tinygrad_llm.patches.workers"
  monkeypatch.delitem(sys.modules, name)
  monkeypatch.delattr(patches, "workers")
  monkeypatch.delattr(tinygrad.engine.worker, "_init_worker")
  with pytest.raises(patches.SeamError, match=f"{name} is made for tinygrad 0.14.0 and does not find its seams"):
    patches.apply.__wrapped__()
  assert not_installed == []

def test_seam_error_is_an_import_error(): assert issubclass(patches.SeamError, ImportError)

INSTALLED = """
from tinygrad.engine import worker
from tinygrad.codegen.opt import search
import tinygrad_llm
print(worker._init_worker.__module__, search.diskcache_get.__module__)
"""
@pytest.mark.parametrize(("env", "modules"), [
  ({}, "tinygrad_llm.patches.workers tinygrad_llm.patches.beam_cache"),
  ({"NO_PATCHES": "0", "NO_WORKERS": ""}, "tinygrad_llm.patches.workers tinygrad_llm.patches.beam_cache"),
  ({"NO_WORKERS": "1"}, "tinygrad.engine.worker tinygrad_llm.patches.beam_cache"),
  ({"NO_BEAM_CACHE": "1"}, "tinygrad_llm.patches.workers tinygrad.helpers"),
  ({"NO_PATCHES": "1"}, "tinygrad.engine.worker tinygrad.helpers")])
def test_switches(env, modules): assert run(INSTALLED, **env).stdout.strip() == modules

def test_without_patches_nothing_of_tinygrad_is_checked():
  code = "import importlib.metadata as m; v = m.version; m.version = lambda n: '9.9' if n == 'tinygrad' else v(n)\n"
  assert run(code + INSTALLED, NO_PATCHES="1").returncode == 0
  done = run(code + INSTALLED, check=False)
  assert "SeamError: tinygrad 9.9 is installed, the patches are made for 0.14.0" in done.stderr

# *** workers, checkouts, wheels ***

def stamps(cwd: pathlib.Path, tmp_path: pathlib.Path, **env: str) -> dict:
  return json.loads(run(COMPILE, cwd, PARALLEL="2", CACHEDB=str(tmp_path / "cache.db"), **env).stdout)

def test_kernels_of_workers_are_patched(stamped, tmp_path):
  found = stamps(stamped, tmp_path)
  assert found["from"].startswith(str(stamped))
  assert [len(x) for x in found["stamps"]] == [1] * 4
  assert found["pid"] not in {x[0] for x in found["stamps"]}

@pytest.mark.parametrize("switch", ["NO_STAMP", "NO_PATCHES", "NO_WORKERS"])
def test_kernels_of_workers_without(stamped, tmp_path, switch):
  """NO_WORKERS shows what the patch `workers` is for."""
  found = stamps(stamped, tmp_path, **{switch: "1"})
  assert found["stamps"] == [[]] * 4

def test_an_installed_wheel(installed, tmp_path):
  found = stamps(installed, tmp_path)
  assert found["from"].startswith(str(installed))
  assert not (installed / "patches").exists()
  assert (installed / "tinygrad_llm" / "patches" / "stamp.py").exists()
  assert [len(x) for x in found["stamps"]] == [1] * 4
  assert found["pid"] not in {x[0] for x in found["stamps"]}

def test_a_worker_without_patches_does_not_go_on():
  """Whatever keeps them from being installed there, kernels must not come out unpatched."""
  code = """
from tinygrad_llm import patches
from tinygrad_llm.patches.workers import init_worker
patches.TINYGRAD = "0.15.1"
patches.apply.cache_clear()
try: init_worker()
except patches.SeamError: print("stopped")
"""
  assert run(code).stdout == "stopped\n"

# *** keys of caches ***

def test_patch_set_tells_sets_apart(stamped):
  code = "from tinygrad_llm import patches; print(patches.patch_set())"
  sets = [run(code, stamped, **env).stdout for env in ({}, {"NO_STAMP": "1"}, {"NO_WORKERS": "1"}, {"NO_PATCHES": "1"})]
  assert len(set(sets)) == 4
  assert run(code, stamped).stdout == sets[0]
  assert run(code).stdout not in sets  # without the patch `stamp` in the folder
  path = stamped / "patches" / "helper.py"
  try:
    path.write_text("# code that a patch may import")
    assert run(code, stamped).stdout not in sets
  finally: path.unlink()

def beam_rows(path: pathlib.Path) -> dict[str, list[str]]:
  """{table: the patch sets of its rows} of BEAM's results in a cache."""
  with sqlite3.connect(path) as db:
    tables = [name for name, in db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'beam_search%'")]
    return {name.rsplit("_", 1)[0]: [row[0] for row in db.execute(
      f"SELECT {'patches' if 'patched' in name else 'suffix'} FROM '{name}' ORDER BY rowid")] for name in tables}

def test_beam_results_are_kept_by_patch_set(tmp_path):
  """A search is repeated under other patches, found again under the same; stock tinygrad keeps its own results."""
  cache = tmp_path / "cache.db"
  code = """
from tinygrad_llm import patches
from tinygrad import Tensor
from tinygrad.codegen.opt import search
searches, stock = [], search.get_worker_pool
search.get_worker_pool = lambda: searches.append(1) or stock()  # what a search asks for when the cache has nothing
(Tensor.ones(16, 8).contiguous().realize() + 1).contiguous().realize()
print(patches.patch_set(), len(searches) > 0)
"""
  def beam(**env: str) -> list[str]: return run(code, BEAM="1", PARALLEL="0", CACHEDB=str(cache), **env).stdout.split()
  stock, searched = beam(NO_PATCHES="1")
  assert searched == "True"
  a, searched = beam()
  assert searched == "True"
  assert beam() == [a, "False"]
  b, searched = beam(NO_WORKERS="1")
  assert searched == "True"
  assert a != b
  assert beam(NO_PATCHES="1") == [stock, "False"]
  rows = beam_rows(cache)
  assert set(rows["beam_search_patched"]) == {a, b}
  assert rows["beam_search"]

# *** fingerprints ***

MODULE = textwrap.dedent('''
  @overload
  def f(x: int) -> int: ...
  @overload
  def f(x: str) -> str: ...
  @cache(
    size=4,
  )
  @other
  def f(
    x,
    y=(1,
  2),
  ):
    """Text
  at the margin, f = 1.
    """

    # a comment
  # and one at the margin
    return x
  async def g(): return 1
  class C(Base):
    """C"""
    a: int = 1
    b, c = 2, [
      3,
    ]
    @property
    def f(self): return self._f
    @f.setter
    def f(self, f):
      self._f = f

    def last(self): return (
  0)
  table = {
    "f": f,
  }
  table |= {"g": g}
  x, y = 1, 2
  def ff(): return f
  if C:
    def hidden(): pass
''').lstrip()

@pytest.mark.parametrize(("name", "first", "last"), [
  ("f", "@overload", "  return x"), ("g", "async def g(): return 1", "async def g(): return 1"),
  ("C", "class C(Base):", "0)"), ("C.a", "  a: int = 1", "  a: int = 1"), ("C.b", "  b, c = 2, [", "  ]"),
  ("C.c", "  b, c = 2, [", "  ]"), ("C.f", "  @property", "    self._f = f"),
  ("C.last", "  def last(self): return (", "0)"), ("table", "table = {", 'table |= {"g": g}'),
  ("x", "x, y = 1, 2", "x, y = 1, 2"), ("y", "x, y = 1, 2", "x, y = 1, 2"),
  ("ff", "def ff(): return f", "def ff(): return f")])
def test_statement(name, first, last):
  """All of it, and nothing else, but what lies between definitions of the name."""
  text = MODULE
  for i, part in enumerate(name.split(".")): text = patches._statement(text, part, "  " * i)
  assert text == MODULE[MODULE.index(first + "\n"):MODULE.index(last + "\n", MODULE.index(first)) + len(last)]

@pytest.mark.parametrize("name", ["hidden", "missing", "missing.f", "C.x", "C.hidden"])
def test_no_statement(name):
  text = MODULE
  for i, part in enumerate(name.split(".")): text = patches._statement(text, part, "  " * i)
  assert text == ""

def defined(node: ast.stmt) -> list[str]:
  """The names that a statement defines."""
  if isinstance(node, (ast.FunctionDef, ast.ClassDef)): return [node.name]
  targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
  return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]

def test_seams_are_whole_statements():
  """What is fingerprinted has every definition that Python's own parser finds under the seam's name."""
  for name in patches.PATCHES:
    for seam in importlib.import_module(f"tinygrad_llm.patches.{name}").SEAMS:
      module, path = seam.split(":")
      text = source = patches._source(module)
      nodes = [ast.parse(source)]
      for i, part in enumerate(path.split(".")):
        text = patches._statement(text, part, "  " * i)
        nodes = [n for parent in nodes for n in parent.body if part in defined(n)]
      assert nodes, seam
      assert all(ast.get_source_segment(source, node) in text for node in nodes), seam
      assert patches.fingerprint(seam) != "-"

def test_fingerprint_of_nothing():
  assert patches.fingerprint("tinygrad.engine.worker:nothing") == "-"
  assert patches.fingerprint("tinygrad.engine.nothing:f") == "-"
