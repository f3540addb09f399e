"""
Compiler passes that stock tinygrad lacks: one module each, installed at seams that tinygrad looks up at call time.

pipeline.py lists the passes in order. hooks.py has the lists that several passes append to; places.py records where
each pass is installed. The rooms (folders), as a kernel meets them: graph, schedule, attention, loops, tiles, isa,
vector (CPUs). These share the functions of ir. Around them are search, cache, runtime, host and compile_time. explain
shows the passes at work.

A pass is a module with
- a docstring: Why, How, Rewrite (before --> after), Numbers (before -> after, on what), Upstream
- `SEAMS`: {"module:name" or "module:Class.method": fingerprint of its source}, what the pass replaces or relies on
- `install()`: puts the pass in place; called once, before anything is compiled

NO_<ITS NAME>=1 in the environment switches a pass off; NO_PATCHES=1 leaves tinygrad as it is.

  $ python -m tinygrad_llm.patches                   lists the passes in the order in which a kernel meets them, and
  $                                                  whether they are on, and checks the seams
  $ python -m tinygrad_llm.patches --explain ROLE    shows one kernel's way through them
"""
from __future__ import annotations
import ast, functools, hashlib, importlib, importlib.metadata, importlib.util, pathlib, re, types
from tinygrad_llm.patches import places
from tinygrad_llm.patches.pipeline import BY_NAME, PASSES, check, why_off

TINYGRAD = "0.14.0"
MODULES: tuple[str, ...] = tuple(p.module for p in PASSES)  # in the order of installation, as room.name
PATCHES: tuple[str, ...] = tuple(p.name for p in PASSES)
# The first 12 hex digits of the SHA-256 of tinygrad's source files. In a file with this hash every seam is as SEAMS
# says (test_patches.py). Its seams are not looked up one by one, which would cost a third of a start.
SOURCES = {
  "codegen": "3d70cf239134", "codegen.gpudims": "b854c24cca47", "codegen.late.coalesce": "bb648f24ee66",
  "codegen.late.linearizer": "f1454e9caa7c", "codegen.opt.heuristic": "423b2247207a",
  "codegen.opt.postrange": "8c5eaafbea3b", "codegen.opt.search": "188bb27ba6d6", "codegen.simplify": "d49c84f54255",
  "device": "2f062c9ae776", "dtype": "78e4ddbbaa56", "engine.jit": "7f098c3f107e", "engine.realize": "7886ebe44219",
  "engine.worker": "78e2646f9317", "function": "79ac8d746482", "helpers": "7bf5f4d4326f",
  "nn.state": "39982f9e297e", "renderer": "4b3792a0d2c8",
  "renderer.cstyle": "280382aa501d", "renderer.ptx": "eaf37f0995f0", "runtime.graph.cuda": "613edd9b4a89",
  "runtime.ops_cpu": "7749618e303b", "runtime.support.compiler_cpu": "7980be156006",
  "runtime.support.hcq": "056d71e00887", "tensor": "edd156414428", "runtime.graph.metal": "0ef2a17d5fbd",
  "runtime.ops_cuda": "e3d22944295b",
  "schedule": "1d75345bfd19", "schedule.indexing": "d596506ee7f3", "schedule.rangeify": "50f7df12a629",
  "uop.ops": "af8d1b7e9218", "uop.upat": "be02a4ed8d2a"}

class SeamError(ImportError):
  """The installed tinygrad is not the one that the patches were made for."""

def is_on(name: str) -> bool:
  """
  Whether a pass or another switch is on: the environment leaves it on, and its needs are met. KeyError for other names.
  """
  return not why_off(name)

def enabled() -> tuple[str, ...]:
  """The patches that are on, in the order of installation."""
  return tuple(name for name in PATCHES if is_on(name))

def module_of(name: str) -> str:
  """A patch's module within this package: room.name."""
  return BY_NAME[name].module

def load(name: str) -> types.ModuleType:
  """Imports a patch's module."""
  return importlib.import_module(f"{__name__}.{module_of(name)}")

def docstring(name: str) -> str:
  """A patch's docstring; read from its source where Python dropped docstrings, as with python -OO."""
  module = load(name)
  return (module.__doc__ or ast.get_docstring(ast.parse(_source(module.__name__))) or "").strip()

def sentence(name: str) -> str:
  """The first line of a patch's docstring."""
  return docstring(name).split("\n")[0]

def rewrite(name: str) -> list[str]:
  """The Rewrite lines of a patch's docstring (pseudocode, before --> after); [] if it rewrites no kernel."""
  found = re.search(r"^Rewrite:\n((?:  .*\n)+)", docstring(name), re.M)
  return [line[2:] for line in found[1].splitlines()] if found else []

@functools.cache
def patch_set() -> str:
  """A short hash of the enabled patches and of this package's code, for the keys of caches outside of this process."""
  code = sorted(pathlib.Path(__file__).parent.rglob("*.py"))
  return hashlib.sha256(b"\0".join([" ".join(enabled()).encode(), *(f.read_bytes() for f in code)])).hexdigest()[:16]

@functools.cache
def apply() -> tuple[str, ...]:
  """
  Installs the enabled patches, once per process; returns their names.

  SeamError if tinygrad has another version, or if a seam is missing or has another source. Nothing is installed then.
  """
  if wrong := check(): raise SeamError(f"patches/pipeline.py: {'; '.join(wrong)}")
  names = enabled()
  if not names: return ()
  if (version := importlib.metadata.version("tinygrad")) != TINYGRAD:
    raise SeamError(f"tinygrad {version} is installed, the patches are made for {TINYGRAD}; run: pip install "
                    f"tinygrad=={TINYGRAD}, or set NO_PATCHES=1")
  modules = []
  for name in names:
    try: modules.append(load(name))
    except (ImportError, AttributeError) as e:
      raise SeamError(f"{__name__}.{module_of(name)} is made for tinygrad {TINYGRAD} and does not find its seams "
                      f"in the installed {version} ({e}); reinstall tinygrad=={TINYGRAD}, or set NO_PATCHES=1") from e
  for module in modules:
    for seam, wanted in module.SEAMS.items():
      if not is_known(seam.split(":")[0]) and (found := fingerprint(seam)) != wanted:
        raise SeamError(f"{seam} of tinygrad {version} has fingerprint {found}, {module.__name__} is made for {wanted} "
                        f"of {TINYGRAD}; reinstall tinygrad=={TINYGRAD}, or set NO_PATCHES=1")
  for name, module in zip(names, modules):
    with places.of(name): module.install()
  return names

def fingerprint(seam: str) -> str:
  """
  The first 12 hex digits of the SHA-256 of the source of "module:name" or "module:Class.method"; "-" if there is none.
  """
  module, name = seam.split(":")
  return fingerprint_in(_source(module), name)

def fingerprint_in(text: str, name: str) -> str:
  """The fingerprint of a name in the source of its module; "-" if it is not there."""
  for indent, part in enumerate(name.split(".")): text = _statement(text, part, " " * 2 * indent)
  return hashlib.sha256(text.encode()).hexdigest()[:12] if text else "-"

@functools.cache
def is_known(module: str) -> bool:
  """Whether a module's file has its hash of SOURCES; every seam in it is right then."""
  known = SOURCES.get(module.removeprefix("tinygrad."))
  return known is not None and hashlib.sha256(_source(module).encode()).hexdigest()[:12] == known

@functools.cache
def _source(module: str) -> str:
  spec = importlib.util.find_spec(module)
  return pathlib.Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin else ""

def _statement(text: str, name: str, indent: str) -> str:
  """The source of the statements that define `name` at `indent`, with their decorators; "" if there are none."""
  decorators = rf"(?:^{indent}@.*\n(?:^{indent}[ )\]}}].*\n)*)*"
  targets = rf"(?:[\w.]+, *)*{name}\b(?:, *[\w.]+)*\s*(?::[^=\n]+)?[-+|&*/]?=[^=]"
  head = re.compile(rf"{decorators}^{indent}(?:(?:async )?def {name}\b|class {name}\b|{targets})", re.M)
  ends = re.compile(rf"^ {{0,{len(indent)}}}[^\s)\]}}#]", re.M)
  found, position = [], 0
  while (start := head.search(text, position)) is not None:
    for position in (*(end.start() for end in ends.finditer(text, start.end())), len(text)):
      if _is_whole(part := text[start.start():position].rstrip(), indent): break  # else the cut is inside the statement
    found.append(part)
  return "\n".join(found)

def _is_whole(statements: str, indent: str) -> bool:
  try: return bool(ast.parse("".join(f"{' ' * i}if 1:\n" for i in range(0, len(indent), 2)) + statements))
  except SyntaxError: return False
