"""
What stock tinygrad lacks, one module a patch, installed at seams that tinygrad looks up at call time.

A patch module has
  a docstring        Why, How, Numbers (before -> after, on what), Upstream
  SEAMS              {"module:name" or "module:Class.method": fingerprint of its source}, what it replaces or relies on
  install()          puts it in place; called once, before anything was compiled
and is switched off by NO_<ITS NAME>=1 in the environment; NO_PATCHES=1 leaves tinygrad as it is.

  python -m tinygrad_llm.patches    lists the patches, whether they are on, and checks the seams
"""
from __future__ import annotations
import ast, functools, hashlib, importlib, importlib.metadata, importlib.util, os, pathlib, re

TINYGRAD = "0.14.0"
# in the order of installation
PATCHES: tuple[str, ...] = (
  "workers", "beam_cache", "programs", "threads", "dispatch", "huge_pages", "passes", "reshapes", "gathers", "fields",
  "shared_sums", "shared_factors", "vectors", "tables", "narrow", "lanes", "nested_reduce", "word_dots", "splice",
  "int_dots", "group_factors", "matvec", "elementwise", "streams", "warp_sums", "wide_halves", "captures")

class SeamError(ImportError):
  """The installed tinygrad is not the one that the patches were made for."""

def is_on(name: str) -> bool:
  """Whether the environment leaves a patch on."""
  return not any(os.environ.get(switch, "0") not in ("", "0") for switch in ("NO_PATCHES", f"NO_{name.upper()}"))

def enabled() -> tuple[str, ...]:
  """The patches that the environment leaves on, in the order of installation."""
  return tuple(name for name in PATCHES if is_on(name))

@functools.cache
def patch_set() -> str:
  """A short key of the enabled patches and of this folder's code, for whatever is cached outside of this process."""
  code = sorted(pathlib.Path(__file__).parent.glob("*.py"))
  return hashlib.sha256(b"\0".join([" ".join(enabled()).encode(), *(f.read_bytes() for f in code)])).hexdigest()[:16]

@functools.cache
def apply() -> tuple[str, ...]:
  """
  Installs the enabled patches, once a process; returns their names.

  SeamError if tinygrad is another version, or lacks a seam or has another source of it: then nothing is installed.
  """
  names = enabled()
  if not names: return ()
  if (version := importlib.metadata.version("tinygrad")) != TINYGRAD:
    raise SeamError(f"tinygrad {version} is installed, the patches are made for {TINYGRAD}; run: pip install "
                    f"tinygrad=={TINYGRAD}, or set NO_PATCHES=1")
  modules = []
  for name in names:
    try: modules.append(importlib.import_module(f"{__name__}.{name}"))
    except (ImportError, AttributeError) as e:
      raise SeamError(f"{__name__}.{name} is made for tinygrad {TINYGRAD} and does not find its seams in the installed "
                      f"{version} ({e}); reinstall tinygrad=={TINYGRAD}, or set NO_PATCHES=1") from e
  for module in modules:
    for seam, wanted in module.SEAMS.items():
      if (found := fingerprint(seam)) != wanted:
        raise SeamError(f"{seam} of tinygrad {version} has fingerprint {found}, {module.__name__} is made for {wanted} "
                        f"of {TINYGRAD}; reinstall tinygrad=={TINYGRAD}, or set NO_PATCHES=1")
  for module in modules: module.install()
  return names

def fingerprint(seam: str) -> str:
  """12 hexadecimal digits of the SHA-256 of the source of "module:name" or "module:Class.method"; "-" if it is none."""
  module, name = seam.split(":")
  text = _source(module)
  for indent, part in enumerate(name.split(".")): text = _statement(text, part, " " * 2 * indent)
  return hashlib.sha256(text.encode()).hexdigest()[:12] if text else "-"

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
