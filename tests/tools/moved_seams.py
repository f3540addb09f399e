"""
Compares the passes' seams with another version of tinygrad: each is unchanged, has another source, or is gone.

  python tests/tools/moved_seams.py FOLDER      FOLDER: a checkout of tinygrad (make seams TINYGRAD=FOLDER)

Nothing of the other tinygrad is imported. docs/compiler/seams.md says what to do with the report.
"""
import argparse
import pathlib
import re
import sys
from collections import defaultdict
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tinygrad_llm import patches

def _text(folder: pathlib.Path, module: str) -> str:
  path = folder.joinpath(*module.split("."))
  return next((f.read_text() for f in (path.with_suffix(".py"), path / "__init__.py") if f.is_file()), "")

def elsewhere(folder: pathlib.Path, name: str) -> list[str]:
  """The modules of a checkout that define a name."""
  defines = re.compile(rf"^\s*(?:def|class) {name.split('.')[-1]}\b|^{name.split('.')[-1]}\b[^\n=]*=[^=]", re.M)
  found = (f for f in sorted((folder / "tinygrad").rglob("*.py")) if defines.search(f.read_text()))
  return [".".join(f.relative_to(folder).with_suffix("").parts).removesuffix(".__init__") for f in found]

def seams() -> dict[str, tuple[str, list[str]]]:
  """{seam: its fingerprint, the passes that rely on it}."""
  found: dict[str, tuple[str, list[str]]] = {}
  for name in patches.PATCHES:
    for seam, wanted in patches.load(name).SEAMS.items(): found.setdefault(seam, (wanted, []))[1].append(name)
  return found

def moved(folder: pathlib.Path) -> dict[str, tuple[str, list[str]]]:
  """{changed seam: (what became of it, the passes that rely on it)}."""
  found = {}
  for seam, (wanted, names) in sorted(seams().items()):
    module, name = seam.split(":")
    if (now := patches.fingerprint_in(_text(folder, module), name)) == wanted: continue
    where = [] if now != "-" else [m for m in elsewhere(folder, name) if m != module]
    gone = f"gone{f', perhaps to {where[0]}' if where else ''}"
    found[seam] = ("another source" if now != "-" else gone), names
  return found

def told(found: dict[str, tuple[str, list[str]]]) -> list[str]:
  """The lines of a report, one for each changed seam, by module."""
  lines = defaultdict[str, list[str]](list)
  for seam, (what, names) in found.items():
    module, name = seam.split(":")
    lines[module].append(f"  {name}: {what}; {', '.join(names)}")
  return [line for module, below in lines.items() for line in (module, *below)]

def report(folder: pathlib.Path) -> tuple[list[str], int]:
  """The lines of a report, and the number of unchanged seams."""
  return told(found := moved(folder)), len(seams()) - len(found)

def main() -> int:
  parser = argparse.ArgumentParser(description="Seams of the passes in another checkout of tinygrad.")
  parser.add_argument("folder", type=pathlib.Path, help="that holds the package tinygrad")
  args = parser.parse_args()
  if not (args.folder / "tinygrad" / "__init__.py").is_file():
    print(f"error: {args.folder}: no tinygrad in it; give the folder of a checkout", file=sys.stderr)
    return 2
  found, of = moved(args.folder), len(seams())
  print("\n".join(told(found)))
  touched = {name for _, names in found.values() for name in names}
  print(f"{of - len(found)} of {of} seams are as they were; "
        f"{len(touched)} of {len(patches.PATCHES)} passes want a look")
  return 0

if __name__ == "__main__": sys.exit(main())
