"""What a dated figure was measured on."""
from __future__ import annotations
import importlib.metadata, os, pathlib, platform, time
from typing import Any
from tinygrad_llm.bench import build, cpu_info
from tinygrad_llm.patches.host.cores import available

RESULTS = pathlib.Path(__file__).resolve().parent / "results"

def cores() -> int:
  """Those that this process may use."""
  return available()

def machine() -> dict[str, Any]:
  """The processor, its cores, and bytes of memory."""
  memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  return {"cpu": cpu_info(), "cores": cores(), "memory": memory, "system": f"{platform.system()} {platform.machine()}"}

def versions() -> dict[str, Any]:
  """Of what runs here, and the commit: "+" if files differ from it."""
  found: dict[str, Any] = {"commit": build()[0], "python": platform.python_version()}
  for name in ("tinygrad", "numpy"):
    try: found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError: found[name] = "unknown"
  return found

def now() -> str:
  """UTC, to the second, as in 2026-11-21T12:34:56Z."""
  return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

def result_file(name: str, date: str) -> pathlib.Path:
  """results/NAME-DATE.json; the date of now() without what file names should not have."""
  return RESULTS / f"{name}-{date[:10]}-{date[11:16].replace(':', '')}.json"
