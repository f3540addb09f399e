"""
Lists the patches: on or off, and their seams. Exit code 1 if a seam is not the one that a patch was made for.

Where that is so nothing can be imported with the patches on: NO_PATCHES=1 python -m tinygrad_llm.patches
"""
import importlib, importlib.metadata, sys
from tinygrad_llm.patches import PATCHES, TINYGRAD, fingerprint, is_on, patch_set

def main() -> int:
  wrong = int((version := importlib.metadata.version("tinygrad")) != TINYGRAD)
  print(f"tinygrad {version}" + (f", made for {TINYGRAD}" if wrong else ""))
  for name in PATCHES:
    module = importlib.import_module(f"tinygrad_llm.patches.{name}")
    why = (module.__doc__ or "").strip().split("\n")[0]
    print(f"{'on ' if is_on(name) else 'off'} {name:16s} {why}")
    for seam, wanted in module.SEAMS.items():
      wrong += (differs := fingerprint(seam) != wanted)
      print(f"      {fingerprint(seam)} {seam}" + (f"  made for {wanted} of tinygrad {TINYGRAD}" if differs else ""))
  print(f"patch set {patch_set()}")
  return min(wrong, 1)

if __name__ == "__main__": sys.exit(main())
