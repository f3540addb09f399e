"""Activations of two bytes, used only in decode steps, as with Q8_ACTIVATIONS=1 on GPUs (weights/linear.py)."""
import pathlib

import numpy as np
import pytest
from tests.support.child import call
from tests.support.extended import extended
from tests.tools.kernel_cases import missing
from tinygrad import Tensor
from tinygrad_llm.device.buffers import without_memory
from tinygrad_llm.device.captured import scheduled
from tinygrad_llm.device.device import open_target
from tinygrad_llm.engine.batch.row_steps import RowSteps
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.nn.cache.place import BLOCK
from tinygrad_llm.nn.reader import read_config
from tinygrad_llm.nn.model import Model
from tinygrad_llm.patches.cache import schedules
from tinygrad_llm.weights import numerics
from tinygrad_llm.weights.loader import Loader

TARGET = "CUDA:sm_90"

def kernels(path: str) -> list[list[str]]:
  """The keys of the kernels of a prefill chunk and of a decode step, which say what they compute."""
  open_target(TARGET)
  file = open_gguf(pathlib.Path(path))
  with without_memory(), Loader(file, progress=False) as loader:
    steps = RowSteps(Model(read_config(file), loader, 64), 64, 16, 2)
    chunk = scheduled(steps._piece.fxn, *steps._place(0, BLOCK, 16))
    return [[schedules.key_of(call.src[0]) for call in linear.src]
            for linear, _ in (chunk, steps.decode_schedule(1, 5))]

@extended
@pytest.mark.parametrize("arch", ["llama", "qwen3moe"])
def test_prefill_kernels_are_unchanged(model_file, arch):
  if why := missing(TARGET): pytest.skip(why)
  path = str(model_file(arch=arch, types="Q4_K_M", vocab=384, context=96))
  (prompt, step), (prompt8, step8) = (call(kernels, path, Q8_ACTIVATIONS=asked).value for asked in ("", "1"))
  assert prompt == prompt8 and len(prompt) > 10
  assert len({*step8} - {*step}) >= 4  # matvecs, and the kernels that quantise their x

@pytest.mark.parametrize("seed", range(3))
def test_two_byte_error_bound(seed):
  """The error is at most half a step of 1/32,639 of a group's largest value; a group of zeros stays zero."""
  rng = np.random.default_rng(seed)
  x = rng.standard_normal((2, 5, 160)).astype(np.float32) * 10.0 ** rng.integers(-20, 20, (2, 5, 10)).repeat(16, -1)
  x[0, 0, :16], x[0, 1, 16], x[1, 2, 40] = 0, 3e38, -3e38
  x = x.astype(np.float32)
  found, groups = numerics.fine(Tensor(x)).numpy(), x.reshape(2, 5, 10, 16)
  top = np.abs(groups.astype(np.float64)).max(-1, keepdims=True)
  off = np.abs(found.reshape(groups.shape) - groups.astype(np.float64))
  assert np.isfinite(found).all() and (off <= top * (0.51 / numerics.FINEST)).all()
  assert (found[0, 0, :16] == 0).all()
