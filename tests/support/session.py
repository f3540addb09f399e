"""
Environment shared by all processes of a test run. conftest.py imports it before tinygrad.

The run has a kernel cache of its own, so each kernel is lowered once and the user's cache is neither read nor written.
Cache keys include patches and switches, so a test that switches a pass off gets its own kernels. Compile workers start
only where a test sets PARALLEL: each costs a Python start, and the run's other processes already use the cores.
"""
import atexit
import gc
import os
import shutil
import tempfile

os.environ.setdefault("DEV", "CPU")
os.environ.setdefault("PARALLEL", "0")
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit this process's environment
  folder = tempfile.mkdtemp(prefix="tinygrad_llm-tests-")
  atexit.register(shutil.rmtree, folder, ignore_errors=True)
  os.environ["CACHEDB"] = os.path.join(folder, "cache.db")
  if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # else each of 400 processes compiles the package
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(home, "tinygrad_llm", "tests", "bytecode")
gc.set_threshold(100_000, 20, 100)  # few of a graph's objects are garbage: default collections are 1/8 of lowering time
