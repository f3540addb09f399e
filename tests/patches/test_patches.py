"""
The registry of patches/: its refusals, its switches, and its presence in every process that compiles kernels.

`stamped` is a copy of this project with one more patch, `stamp`, which writes the rendering process's id into the
source of each kernel. So a kernel shows whether the patches were installed, and in which process.
"""
import ast
import hashlib
import importlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import textwrap

import pytest
from tests.support.extended import extended, some
import tinygrad
from tests.support.child import ROOT, run
from tinygrad_llm import patches

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
# prints the ids of the processes that stamped each of four kernels from compile workers, and of this process
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

@pytest.fixture(scope="module")
def stamped(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  folder = tmp_path_factory.mktemp("stamped") / "project"
  for name in ("tinygrad_llm", "patches"):
    shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
  for name in ("setup.py", "pyproject.toml"): shutil.copy(ROOT / name, folder)
  registry = folder / "patches" / "pipeline.py"
  text, was = registry.read_text(), "PASSES: tuple[Pass, ...] = ("
  assert was in text
  registry.write_text(text.replace(was, was + '_pass("stamp", RENDER), '))
  seam = "tinygrad.renderer.cstyle:ClangRenderer.render_kernel"
  (folder / "patches" / "stamp.py").write_text(STAMP.replace("FINGERPRINT", patches.fingerprint(seam)))
  return folder

@pytest.fixture(scope="module")
def installed(stamped: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """The folder in which a wheel of `stamped` is installed, offline."""
  folder, pip = tmp_path_factory.mktemp("installed"), [sys.executable, "-m", "pip", "-q", "--no-cache-dir"]
  offline = ["--no-deps", "--no-index"]
  subprocess.run([*pip, "wheel", *offline, "--no-build-isolation", "-w", str(folder), str(stamped)], check=True)
  [wheel] = folder.glob("tinygrad_llm-*.whl")
  subprocess.run([*pip, "install", *offline, "--target", str(folder / "site"), str(wheel)], check=True)
  return folder / "site"

# *** modules ***

@pytest.mark.parametrize("name", patches.PATCHES)
def test_module_docstring_form(name: str):
  module = patches.load(name)
  parts = [module.__doc__.find(f"\n{part}: ") for part in ("Why", "How", "Numbers", "Upstream")]
  assert -1 not in parts
  assert parts == sorted(parts)
  assert module.__doc__.strip().splitlines()[0].endswith(".")
  assert module.SEAMS
  assert callable(module.install)
  assert pathlib.Path(module.__file__).resolve() == ROOT / "patches" / f"{patches.module_of(name).replace('.', '/')}.py"

def test_patches_do_not_import_the_app():
  for path in (ROOT / "patches").rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
      names = [x.name for x in node.names] if isinstance(node, ast.Import) else \
              [f"{node.module}.{x.name}" for x in node.names] if isinstance(node, ast.ImportFrom) else []
      assert all(n.startswith("tinygrad_llm.patches") for n in names if n.split(".")[0] == "tinygrad_llm"), path
      # nor by name at run time, except by the command, which runs the app's command `kernels` and exits like it
      if isinstance(node, ast.Constant) and re.fullmatch(r"tinygrad_llm(\.\w+)*", str(node.value)):
        allowed = ("tinygrad_llm.kernels", "tinygrad_llm.command") if path == ROOT / "patches" / "__main__.py" else ()
        assert str(node.value).startswith("tinygrad_llm.patches") or node.value in allowed, path

def test_patches_do_not_import_command_or_explain():
  """Patches import neither the command nor the modules of explain/."""
  shows = {"tinygrad_llm.patches.__main__", *(f"tinygrad_llm.patches.explain.{path.stem}"
                                             for path in (ROOT / "patches" / "explain").glob("*.py"))}
  code = "import sys, tinygrad_llm; print(*(name for name in sys.modules if name.startswith('tinygrad_llm.patches')))"
  assert shows.isdisjoint(run(code).stdout.split())

def listing(*args: str, **env: str) -> list[str]:
  done = subprocess.run([sys.executable, "-m", "tinygrad_llm.patches", *args], cwd=ROOT, env=os.environ | env,
                        capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return done.stdout.splitlines()

def test_listing_of_patches():
  """The listing has each patch once, under the stage where a kernel first meets it; further stages say "again"."""
  lines = listing("--seams")
  on = [line.split()[1] for line in lines if line.startswith("on ")]
  assert sorted(on) == sorted(patches.MODULES)
  assert on != list(patches.MODULES)
  stages = [on.index(name) for name in ("schedule.gemv", "vector.lanes", "vector.vectorizer", "cache.programs")]
  assert stages == sorted(stages)
  again = [line.split()[0] for line in lines if " again: " in line]
  assert again.count("loops.factor_sums") == 2
  seams = {seam for name in patches.PATCHES for seam in patches.load(name).SEAMS}
  assert {f"{patches.fingerprint(seam)} {seam}" for seam in seams} <= {line.strip() for line in lines}
  assert lines[-1] == f"patch set {patches.patch_set()}"

def test_listing_of_disabled_patches():
  lines = listing(NO_GEMV="1")
  at = lines.index("switched off")
  off = {line.split()[1]: line.rpartition("[")[2] for line in lines[at + 1:-2]}
  assert (off["schedule.gemv"], off["vector.lanes"]) == ("NO_GEMV=1]", "needs gemv]")
  assert {line.split()[1] for line in lines[:at] if line.startswith("on ")} == set(patches.MODULES) - off.keys()

def test_listing_of_mismatched_seam(stamped: pathlib.Path, tmp_path: pathlib.Path):
  shutil.copytree(stamped, tmp_path / "wrong", symlinks=True)
  path = tmp_path / "wrong" / "patches" / "stamp.py"
  path.write_text(path.read_text().replace(patches.fingerprint("tinygrad.renderer.cstyle:ClangRenderer.render_kernel"),
                                           "0123456789ab"))
  registry = path.with_name("__init__.py")
  text, known = registry.read_text(), '"renderer.cstyle": "'
  assert known in text
  registry.write_text(text.replace(known, known + "another "))  # as for an unknown file
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
    module = patches.load(name)
    monkeypatch.setattr(module, "install", lambda name=name: calls.append(name))
  assert patches.apply() == patches.enabled()
  assert patches.apply() == patches.enabled()
  assert calls == []  # importing tinygrad_llm has installed them

@pytest.fixture
def not_installed(monkeypatch):
  """Records the names of the patches that would be installed from here on."""
  calls: list[str] = []
  for name in patches.PATCHES:
    module = patches.load(name)
    monkeypatch.setattr(module, "install", lambda name=name: calls.append(name))
  return calls

def test_other_tinygrad_version_is_refused(monkeypatch, not_installed):
  monkeypatch.setattr(patches, "TINYGRAD", "0.15.1")
  with pytest.raises(patches.SeamError, match=r"tinygrad 0\.14\.0 is installed, the patches are made for 0\.15\.1"):
    patches.apply.__wrapped__()
  assert not_installed == []

def test_changed_seam_source_is_refused(monkeypatch, not_installed):
  seam = "tinygrad.engine.worker:_init_worker"
  module = importlib.import_module("tinygrad_llm.patches.compile_time.workers")
  monkeypatch.setitem(module.SEAMS, seam, "0123456789ab")
  monkeypatch.setattr(patches, "is_known", lambda module: False)
  with pytest.raises(patches.SeamError, match=f"{seam} of tinygrad 0.14.0 has fingerprint {patches.fingerprint(seam)}, "
                                              "tinygrad_llm.patches.compile_time.workers is made for 0123456789ab of "):
    patches.apply.__wrapped__()
  assert not_installed == []

def test_missing_seam_raises_seam_error(monkeypatch, not_installed):
  """A patch whose import fails because its seam is gone raises SeamError; it is not skipped."""
  name = "tinygrad_llm.patches.compile_time.workers"
  monkeypatch.delitem(sys.modules, name)
  monkeypatch.delattr(patches.compile_time, "workers")
  monkeypatch.delattr(tinygrad.engine.worker, "_init_worker")
  with pytest.raises(patches.SeamError, match=f"{name} is made for tinygrad 0.14.0 and does not find its seams"):
    patches.apply.__wrapped__()
  assert not_installed == []

def test_seam_error_is_an_import_error(): assert issubclass(patches.SeamError, ImportError)

INSTALLED = """
from tinygrad.engine import worker
from tinygrad.codegen.opt.postrange import Scheduler
import tinygrad_llm
print(worker._init_worker.__module__, Scheduler.apply_opt.__module__)
"""
@pytest.mark.parametrize(("env", "modules"), some([
  ({}, "tinygrad_llm.patches.compile_time.workers tinygrad_llm.patches.hooks"),
  ({"NO_PATCHES": "0", "NO_WORKERS": ""},
   "tinygrad_llm.patches.compile_time.workers tinygrad_llm.patches.hooks"),
  ({"NO_WORKERS": "1"}, "tinygrad.engine.worker tinygrad_llm.patches.hooks"),
  ({"NO_HOOKS": "1"}, "tinygrad_llm.patches.compile_time.workers tinygrad.codegen.opt.postrange"),
  ({"NO_PATCHES": "1"}, "tinygrad.engine.worker tinygrad.codegen.opt.postrange")], 0, 2, 4))
def test_patch_switches(env, modules): assert run(INSTALLED, **env).stdout.strip() == modules

def test_no_patches_skips_seam_checks():
  code = "import importlib.metadata as m; v = m.version; m.version = lambda n: '9.9' if n == 'tinygrad' else v(n)\n"
  assert run(code + INSTALLED, NO_PATCHES="1").returncode == 0
  done = run(code + INSTALLED, check=False)
  assert "SeamError: tinygrad 9.9 is installed, the patches are made for 0.14.0" in done.stderr

# *** workers, checkouts, wheels ***

def stamps(cwd: pathlib.Path, tmp_path: pathlib.Path, **env: str) -> dict:
  return json.loads(run(COMPILE, cwd, PARALLEL="2", CACHEDB=str(tmp_path / "cache.db"), **env).stdout)

def test_worker_kernels_are_patched(stamped, tmp_path):
  found = stamps(stamped, tmp_path)
  assert found["from"].startswith(str(stamped))
  assert [len(x) for x in found["stamps"]] == [1] * 4
  assert found["pid"] not in {x[0] for x in found["stamps"]}

@pytest.mark.parametrize("switch", some(["NO_STAMP", "NO_PATCHES", "NO_WORKERS"], 1))
def test_worker_kernels_without_patches(stamped, tmp_path, switch):
  """Without the patch, all patches, or `workers` (which patches the workers), workers' kernels have no stamp."""
  found = stamps(stamped, tmp_path, **{switch: "1"})
  assert found["stamps"] == [[]] * 4

def test_installed_wheel(installed, tmp_path):
  found = stamps(installed, tmp_path)
  assert found["from"].startswith(str(installed))
  assert not (installed / "patches").exists()
  assert (installed / "tinygrad_llm" / "patches" / "stamp.py").exists()
  assert (installed / "tinygrad_llm" / "analysis" / "pages" / "timeline.html").exists()
  assert [len(x) for x in found["stamps"]] == [1] * 4
  assert found["pid"] not in {x[0] for x in found["stamps"]}

def test_checkout_without_symlinks(stamped, tmp_path):
  """Where git cannot make symlinks, it writes a file with the link's target; the import says so."""
  assert str((ROOT / "tinygrad_llm" / "patches").readlink()) == "../patches"
  shutil.copytree(stamped, tmp_path / "project", symlinks=True)
  (link := tmp_path / "project" / "tinygrad_llm" / "patches").unlink()
  link.write_text("../patches")
  done = run("import tinygrad_llm", tmp_path / "project", check=False)
  assert done.returncode == 1
  assert f"ImportError: {link}: not a folder; it is a link to ../patches" in done.stderr

def test_worker_without_patches_stops():
  """A worker that cannot install the patches stops instead of making unpatched kernels."""
  code = """
from tinygrad_llm import patches
from tinygrad_llm.patches.compile_time.workers import init_worker
patches.TINYGRAD = "0.15.1"
patches.apply.cache_clear()
try: init_worker()
except patches.SeamError: print("stopped")
"""
  assert run(code).stdout == "stopped\n"

# *** keys of caches ***

ROOMS = [min(init.parent.glob("[a-z]*.py")) for init in sorted((ROOT / "patches").glob("*/__init__.py"))]

def patch_set(cwd: pathlib.Path, **env: str) -> str:
  return run("from tinygrad_llm import patches; print(patches.patch_set())", cwd, **env).stdout

@pytest.fixture(scope="module")
def as_it_is(stamped) -> str: return patch_set(stamped)

def test_patch_set_distinguishes_sets(stamped, as_it_is):
  sets = [as_it_is, *(patch_set(stamped, **{off: "1"}) for off in ("NO_STAMP", "NO_WORKERS", "NO_PATCHES"))]
  assert len(set(sets)) == 4
  assert patch_set(stamped) == as_it_is
  assert f"{patches.patch_set()}\n" not in sets  # without the patch `stamp` in the folder
  for path in (stamped / "patches" / "helper.py", stamped / "patches" / "vector" / "helper.py"):
    try:
      path.write_text("# code that a patch may import")
      assert patch_set(stamped) not in sets
    finally: path.unlink()

@pytest.mark.parametrize("path", some(ROOMS, 0, -1), ids=lambda p: p.parent.name)
def test_patch_set_covers_every_room(stamped, as_it_is, path):
  """An edit in any room changes the patch set, so cached kernels become stale."""
  edited = stamped / path.relative_to(ROOT)
  text = edited.read_text()
  try:
    edited.write_text(text + "\n# edited\n")
    assert patch_set(stamped) != as_it_is
  finally: edited.write_text(text)

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
def test_statement_finds_whole_definition(name, first, last):
  """_statement finds a name's whole definition, from the first one to the last, and nothing else."""
  text = MODULE
  for i, part in enumerate(name.split(".")): text = patches._statement(text, part, "  " * i)
  assert text == MODULE[MODULE.index(first + "\n"):MODULE.index(last + "\n", MODULE.index(first)) + len(last)]

@pytest.mark.parametrize("name", ["hidden", "missing", "missing.f", "C.x", "C.hidden"])
def test_statement_of_missing_name(name):
  text = MODULE
  for i, part in enumerate(name.split(".")): text = patches._statement(text, part, "  " * i)
  assert text == ""

def defined(node: ast.stmt) -> list[str]:
  """The names that a statement defines."""
  if isinstance(node, (ast.FunctionDef, ast.ClassDef)): return [node.name]
  targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
  return [n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)]

@extended
def test_seams_are_whole_statements():
  """The fingerprinted text contains every definition of the seam's name that Python's parser finds."""
  for name in patches.PATCHES:
    for seam in patches.load(name).SEAMS:
      module, path = seam.split(":")
      text = source = patches._source(module)
      nodes = [ast.parse(source)]
      for i, part in enumerate(path.split(".")):
        text = patches._statement(text, part, "  " * i)
        nodes = [n for parent in nodes for n in parent.body if part in defined(n)]
      assert nodes, seam
      assert all(ast.get_source_segment(source, node) in text for node in nodes), seam
      assert patches.fingerprint(seam) != "-"

def test_seams_of_known_files():
  """Files with a known hash are not searched at installation, so the fingerprints in SEAMS must match them."""
  seams = {seam: wanted for name in patches.PATCHES for seam, wanted in patches.load(name).SEAMS.items()}
  assert {seam: patches.fingerprint(seam) for seam in seams} == seams
  files = {module: hashlib.sha256(patches._source(module).encode()).hexdigest()[:12]
           for module in sorted({seam.split(":")[0] for seam in seams})}
  assert {f"tinygrad.{name}": known for name, known in patches.SOURCES.items()} == files, "what SOURCES should be"

def test_unknown_file_is_checked(monkeypatch):
  """A single changed byte makes a file unknown, and its seams are checked."""
  source = patches._source("tinygrad.codegen")
  patches.is_known.cache_clear()
  monkeypatch.setattr(patches, "_source", lambda module: source + "#" if module == "tinygrad.codegen" else source)
  assert not patches.is_known("tinygrad.codegen") and not patches.is_known("tinygrad.nothing")
  monkeypatch.undo()
  patches.is_known.cache_clear()
  assert patches.is_known("tinygrad.codegen") and not patches.is_known("json")

def test_fingerprint_of_missing_seam():
  assert patches.fingerprint("tinygrad.engine.worker:nothing") == "-"
  assert patches.fingerprint("tinygrad.engine.nothing:f") == "-"
