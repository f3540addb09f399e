"""
The compiler passes that stock tinygrad lacks, a module each, installed at seams that tinygrad looks up at call time.

pipeline.py lists them in order; hooks.py has the lists that several of them add to; places.py records who is where. The
rooms, as a kernel meets them: graph, schedule, attention, loops, tiles, isa, vector (CPUs); ir is what these share.
Around them: search, cache, runtime, host, compile_time. explain shows them at work.

A pass is a module with
  a docstring        Why, How, Rewrite (before --> after), Numbers (before -> after, on what), Upstream
  SEAMS              {"module:name" or "module:Class.method": fingerprint of its source}, what it replaces or relies on
  install()          puts it in place; called once, before anything was compiled
and is switched off by NO_<ITS NAME>=1 in the environment; NO_PATCHES=1 leaves tinygrad as it is.

  python -m tinygrad_llm.patches                   lists the patches in the order in which a kernel gets to them, and
                                                   whether they are on, and checks the seams
  python -m tinygrad_llm.patches --explain ROLE    shows one kernel's way through them
"""
from __future__ import annotations
import ast, functools, hashlib, importlib, importlib.metadata, importlib.util, pathlib, re, types
from tinygrad_llm.patches import places
from tinygrad_llm.patches.pipeline import BY_NAME, PASSES, check, why_off

TINYGRAD = "0.14.0"
MODULES: tuple[str, ...] = tuple(p.module for p in PASSES)  # in the order of installation, as room.name
PATCHES: tuple[str, ...] = tuple(p.name for p in PASSES)
# 12 hexadecimal digits of the SHA-256 of files of tinygrad's: to look for each seam in them costs a third of a start,
# and in these they are as SEAMS says (test_patches.py)
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
  """Whether a pass or another switch is on: the environment leaves it, and what it needs. KeyError for other names."""
  return not why_off(name)

def enabled() -> tuple[str, ...]:
  """The patches that the environment leaves on, in the order of installation."""
  return tuple(name for name in PATCHES if is_on(name))

def module_of(name: str) -> str:
  """Where a patch is in this package: room.name."""
  return BY_NAME[name].module

def load(name: str) -> types.ModuleType:
  """A patch's module."""
  return importlib.import_module(f"{__name__}.{module_of(name)}")

def docstring(name: str) -> str:
  """A patch's docstring, from its source if there are no docstrings, as with python -OO."""
  module = load(name)
  return (module.__doc__ or ast.get_docstring(ast.parse(_source(module.__name__))) or "").strip()

def sentence(name: str) -> str:
  """The first line of a patch's docstring."""
  return docstring(name).split("\n")[0]

def rewrite(name: str) -> list[str]:
  """What a patch makes of what, before --> after in pseudocode, from its docstring; [] where it rewrites no kernel."""
  found = re.search(r"^Rewrite:\n((?:  .*\n)+)", docstring(name), re.M)
  return [line[2:] for line in found[1].splitlines()] if found else []

@functools.cache
def patch_set() -> str:
  """A short key of the enabled patches and of all rooms' code, for whatever is cached outside of this process."""
  code = sorted(pathlib.Path(__file__).parent.rglob("*.py"))
  return hashlib.sha256(b"\0".join([" ".join(enabled()).encode(), *(f.read_bytes() for f in code)])).hexdigest()[:16]

@functools.cache
def apply() -> tuple[str, ...]:
  """
  Installs the enabled patches, once a process; returns their names.

  SeamError if tinygrad is another version, or lacks a seam or has another source of it: then nothing is installed.
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
  """12 hexadecimal digits of the SHA-256 of the source of "module:name" or "module:Class.method"; "-" if it is none."""
  module, name = seam.split(":")
  return fingerprint_in(_source(module), name)

def fingerprint_in(text: str, name: str) -> str:
  """The fingerprint of a name in the source of its module."""
  for indent, part in enumerate(name.split(".")): text = _statement(text, part, " " * 2 * indent)
  return hashlib.sha256(text.encode()).hexdigest()[:12] if text else "-"

@functools.cache
def is_known(module: str) -> bool:
  """Whether a module's file is the one of SOURCES, in which every seam is right."""
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
      if _is_whole(part := text[start.start():position].rstrip(), indent): break  # else it ends inside of it
    found.append(part)
  return "\n".join(found)

def _is_whole(statements: str, indent: str) -> bool:
  try: return bool(ast.parse("".join(f"{' ' * i}if 1:\n" for i in range(0, len(indent), 2)) + statements))
  except SyntaxError: return False
