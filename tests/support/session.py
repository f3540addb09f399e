"""
What the processes of one run of the tests share; conftest.py imports it before tinygrad is.

Kernels are kept for the run, in a folder of its own: what one test has lowered no other lowers again, and nothing is
found in the user's cache nor left there. The keys carry patches and switches, so a test that switches something off has
kernels of its own. Compile workers start only where a test asks for them by PARALLEL: each costs a start of Python, and
the other processes of the run have the cores.
"""
import atexit
import gc
import os
import shutil
import tempfile

os.environ.setdefault("DEV", "CPU")
os.environ.setdefault("PARALLEL", "0")
if "PYTEST_XDIST_WORKER" not in os.environ:  # those have this process's environment
  folder = tempfile.mkdtemp(prefix="tinygrad_llm-tests-")
  atexit.register(shutil.rmtree, folder, ignore_errors=True)
  os.environ["CACHEDB"] = os.path.join(folder, "cache.db")
  if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # each of 600 processes would compile the package
    os.environ["PYTHONPYCACHEPREFIX"] = os.path.join(folder, "bytecode")
gc.set_threshold(100_000, 20, 100)  # of a graph's many objects few are garbage: to look for it is an eighth of lowering
