"""The machine and versions behind a dated figure, and the name of its results file."""
from __future__ import annotations
import importlib.metadata, os, pathlib, platform, time
from typing import Any
from tinygrad_llm.bench import build, cpu_info
from tinygrad_llm.patches.host.cores import available

RESULTS = pathlib.Path(__file__).resolve().parent / "results"

def cores() -> int:
  """Returns the number of cores that this process may use."""
  return available()

def machine() -> dict[str, Any]:
  """Returns the processor, its cores, bytes of memory, and the system."""
  memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  return {"cpu": cpu_info(), "cores": cores(), "memory": memory, "system": f"{platform.system()} {platform.machine()}"}

def versions() -> dict[str, Any]:
  """Returns the versions of Python, tinygrad and numpy, and the commit, with "+" if files differ from it."""
  found: dict[str, Any] = {"commit": build()[0], "python": platform.python_version()}
  for name in ("tinygrad", "numpy"):
    try: found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: found[name] = "unknown"
  return found

def now() -> str:
  """Returns the time in UTC, to the second, as in 2026-11-21T12:34:56Z."""
  return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

def result_file(name: str, date: str) -> pathlib.Path:
  """Returns results/NAME-DATE.json, where DATE is now()'s date and time to the minute, without colons."""
  return RESULTS / f"{name}-{date[:10]}-{date[11:16].replace(':', '')}.json"
