"""From a model's name to its path."""
from __future__ import annotations
import pathlib
from tinygrad_llm.errors import InputError

DEFAULT_MODEL = pathlib.Path(__file__).parent / "models" / "stories.gguf"

def resolve(model: str | None) -> pathlib.Path:
  """None is the bundled default model; anything else is a path."""
  if model is None: return DEFAULT_MODEL
  if not (path := pathlib.Path(model).expanduser()).exists():
    raise InputError(f"{model}: no such file; give the path of a .gguf file, or none for the bundled model")
  return path
