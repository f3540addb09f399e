"""Resident memory of the test's process, on Linux."""
import pathlib
import resource

def resident() -> int:
  """Bytes."""
  return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
