"""Fixtures that tests share. The device is the CPU unless DEV says otherwise."""
import os

os.environ.setdefault("DEV", "CPU")

import pathlib
from collections.abc import Callable

import pytest
from synthetic import write_model
from tinygrad_llm.compiler import use_c_compiler

use_c_compiler()  # before tinygrad looks for it, and remembers


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., pathlib.Path]:
  """model_file(**arguments of synthetic.write_model) -> a file, written once a session."""
  folder = tmp_path_factory.mktemp("models")
  made: dict[str, pathlib.Path] = {}
  def make(**arguments) -> pathlib.Path:
    key = repr(sorted(arguments.items()))
    if key not in made: made[key] = write_model(folder / f"{len(made)}.gguf", **arguments)
    return made[key]
  return make
