"""
How many cores this process may use: as many as its affinity allows, and as a container's quota pays for.

Why: tinygrad reads the quota of the root group only (/sys/fs/cgroup/cpu.max), and on Python 3.13 none. In a container
  of 2 of 64 cores a kernel would have 64 threads, which wait for each other while the system throttles them.
How: the quotas of the process's own group and of the groups above it count, in version 1 and 2 of Linux's control
  groups (https://docs.kernel.org/admin-guide/cgroup-v2.html). The groups are found by /proc/self/cgroup and
  /proc/self/mountinfo. A part of a core counts as one: the system throttles all threads together, and together they get
  the quota.
  The user's settings come first: NUM_CPU_THREADS, then Python 3.13's -X cpu_count and PYTHON_CPU_COUNT.
"""
from __future__ import annotations
import math, os, pathlib, re, sys
from collections.abc import Iterator

def threads() -> int:
  """How many threads share this process's work, at least 1: NUM_CPU_THREADS, or one for each available core."""
  return _number(os.environ.get("NUM_CPU_THREADS")) or available()

def available(root: pathlib.Path = pathlib.Path("/")) -> int:
  """How many cores there are for this process, at least 1. root: where /proc and /sys are."""
  if counted := _number(sys._xoptions.get("cpu_count", os.environ.get("PYTHON_CPU_COUNT"))): return counted
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
  return max(1, min([cores, *map(math.ceil, quotas(root))]))

def _number(text: str | bool | None) -> int:
  """The value of a decimal number; 0 for anything else."""
  return int(text) if isinstance(text, str) and text.isdecimal() else 0

def quotas(root: pathlib.Path) -> Iterator[float]:
  """The cores that each group around this process may use on average, for groups with a limit."""
  for folder, version in _groups(root):
    try:
      if version == 2: quota, period = (folder / "cpu.max").read_text().split()
      else: quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
      if quota.isdecimal() and int(quota) > 0 and int(period) > 0: yield int(quota) / int(period)
    except (OSError, ValueError): continue  # no such file, or an unknown format

def _groups(root: pathlib.Path) -> Iterator[tuple[pathlib.Path, int]]:
  """The folders of this process's group and of the groups above it, each with its hierarchy's version."""
  paths = dict(_paths(root))
  for version, within, mount in _mounts(root):
    path = paths.get(version, "/")
    inside = path[len(within.rstrip("/")):] if path == within or path.startswith(within.rstrip("/") + "/") else ""
    parts = [part for part in inside.split("/") if part]
    if ".." in parts: parts = []  # a group that this namespace does not show
    for count in range(len(parts), -1, -1): yield root / mount.lstrip("/") / "/".join(parts[:count]), version

def _paths(root: pathlib.Path) -> Iterator[tuple[int, str]]:
  """The group of this process, by version, from lines "hierarchy:controllers:path"."""
  for line in _lines(root / "proc/self/cgroup"):
    number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    if number == "0" and not controllers: yield 2, path
    elif "cpu" in controllers.split(","): yield 1, path

def _mounts(root: pathlib.Path) -> list[tuple[int, str, str]]:
  """The mounted hierarchies that limit processors: (version, the group at its top, where it is mounted)."""
  found = list[tuple[int, str, str]]()
  for line in _lines(root / "proc/self/mountinfo"):
    before, _, after = line.partition(" - ")
    fields, kind = before.split(), after.split()
    if len(fields) < 5 or len(kind) < 1: continue
    top, mount = (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), x) for x in fields[3:5])
    if kind[0] == "cgroup2": found.append((2, top, mount))
    elif kind[0] == "cgroup" and "cpu" in kind[-1].split(","): found.append((1, top, mount))
  return found or [(2, "/", "/sys/fs/cgroup"), (1, "/", "/sys/fs/cgroup/cpu")]

def _lines(path: pathlib.Path) -> list[str]:
  try: return path.read_text(errors="replace").splitlines()
  except OSError: return []
