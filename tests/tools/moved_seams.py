"""
What another tinygrad would ask of the passes: each seam that is as it was, has another source, or is gone.

  python tests/tools/moved_seams.py FOLDER      of a checkout of tinygrad (make seams TINYGRAD=FOLDER)

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
  """The modules of a checkout that define a name now."""
  defines = re.compile(rf"^\s*(?:def|class) {name.split('.')[-1]}\b|^{name.split('.')[-1]}\b[^\n=]*=[^=]", re.M)
  found = (f for f in sorted((folder / "tinygrad").rglob("*.py")) if defines.search(f.read_text()))
  return [".".join(f.relative_to(folder).with_suffix("").parts).removesuffix(".__init__") for f in found]

def seams() -> dict[str, tuple[str, list[str]]]:
  """{seam: its fingerprint, the passes that rely on it}."""
  found: dict[str, tuple[str, list[str]]] = {}
  for name in patches.PATCHES:
    for seam, wanted in patches.load(name).SEAMS.items(): found.setdefault(seam, (wanted, []))[1].append(name)
  return found

def report(folder: pathlib.Path) -> tuple[list[str], int]:
  """The lines of a report, one a seam that moved, by module; and the number of seams that are as they were."""
  moved, same = defaultdict[str, list[str]](list), 0
  for seam, (wanted, names) in sorted(seams().items()):
    module, name = seam.split(":")
    now = patches.fingerprint_in(_text(folder, module), name)
    if now == wanted: same += 1
    elif now != "-": moved[module].append(f"  {name}: another source; {', '.join(names)}")
    else:
      where = [m for m in elsewhere(folder, name) if m != module]
      moved[module].append(f"  {name}: gone{f', perhaps to {where[0]}' if where else ''}; {', '.join(names)}")
  return [line for module, lines in moved.items() for line in (module, *lines)], same

def main() -> int:
  parser = argparse.ArgumentParser(description="Seams of the passes in another checkout of tinygrad.")
  parser.add_argument("folder", type=pathlib.Path, help="that holds the package tinygrad")
  args = parser.parse_args()
  if not (args.folder / "tinygrad" / "__init__.py").is_file():
    print(f"error: {args.folder}: no tinygrad in it; give the folder of a checkout", file=sys.stderr)
    return 2
  lines, same = report(args.folder)
  print("\n".join(lines))
  touched = {name for line in lines if line.startswith("  ") for name in line.partition("; ")[2].split(", ")}
  print(f"{same} of {len(seams())} seams are as they were; {len(touched)} of {len(patches.PATCHES)} passes want a look")
  return 0

if __name__ == "__main__": sys.exit(main())
