"""
Lists the patches in the order in which a kernel meets them: on or off, what each does, and where tinygrad calls it.

`--seams` also lists the seams of tinygrad that each patch relies on. The exit code is 1 if tinygrad has another version
or a seam differs from the one that a patch was made for. Nothing can be imported with the patches on then; use
NO_PATCHES=1 python -m tinygrad_llm.patches

`--explain ROLE` shows one kernel's way through the patches. This needs a model, so it runs the app's command `kernels`.
No patch imports this module, the only one here that knows of the app.
"""
import importlib.metadata, runpy, sys
from tinygrad_llm.patches import PATCHES, TINYGRAD, enabled, fingerprint, load, module_of, patch_set, sentence
from tinygrad_llm.patches.pipeline import BY_NAME, Pass, Status, why_off

EXPLAIN = "tinygrad_llm.kernels"
COMMAND = "tinygrad_llm.command"  # its guarded() ends this command like the app's own

def _seams(name: str, all_of_them: bool) -> int:
  """Prints the seams of a patch, or only those that differ; returns how many differ."""
  wrong = 0
  for seam, wanted in load(name).SEAMS.items():
    wrong += (differs := (found := fingerprint(seam)) != wanted)
    if differs or all_of_them:
      print(f"      {found} {seam}" + (f"  made for {wanted} of tinygrad {TINYGRAD}" if differs else ""))
  return wrong

def _line(name: str, state: str) -> str:
  return f"{state:4}{module_of(name):26} {sentence(name)}"

def _needs(p: Pass) -> str:
  """A pass's row of the pipeline: needs -> provides, targets, and a note if it was not timed."""
  edges = " ".join([*p.needs, *(("->", *p.provides) if p.provides else ())])
  return ", ".join(part for part in (edges, p.targets, p.status.value * (p.status is Status.UNMEASURED)) if part)

def main() -> int:
  if any(arg.split("=")[0] == "--explain" for arg in sys.argv[1:]):
    runpy.run_module(EXPLAIN, run_name="__main__")
    return 0
  if {"-h", "--help"} & set(sys.argv[1:]):
    print((__doc__ or "").strip())
    return 0
  if unknown := [arg for arg in sys.argv[1:] if arg != "--seams"]:
    print(f"error: {unknown[0]}: give --seams, --explain ROLE or nothing", file=sys.stderr)
    return 2
  seams, wrong = "--seams" in sys.argv, int((version := importlib.metadata.version("tinygrad")) != TINYGRAD)
  print(f"tinygrad {version}" + (f", made for {TINYGRAD}" if wrong else ""))
  shown = set[str]()
  if on := enabled():
    from tinygrad_llm.patches.explain import pipeline
    for stage, met in pipeline.order().items():
      print(f"\n{stage}")
      for name, places in met:
        print(f"    {module_of(name):26} again: {', '.join(places)}" if name in shown else
              f"{_line(name, 'on')} [{_needs(BY_NAME[name])}]")
        if name not in shown: wrong += _seams(name, seams)
        shown.add(name)
  if off := [name for name in PATCHES if name not in on]:
    print("\nswitched off")
    for name in off:
      print(f"{_line(name, 'off')} [{why_off(name)}]")
      wrong += _seams(name, seams)
  print(f"\npatch set {patch_set()}")
  return min(wrong, 1)

if __name__ == "__main__": importlib.import_module(COMMAND).guarded(main)
