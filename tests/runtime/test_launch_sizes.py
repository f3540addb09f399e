"""runtime/launch_sizes.py: no graph node has a grid of 0, whatever values the graph is made with."""
import itertools
import math
import random

from tests.support import child
import pytest
from tests.support.extended import extended, sample
from tests.tools.kernel_cases import has_cuda_wheels, missing
from tinygrad import UOp
from tinygrad.uop.ops import ProgramInfo
from tinygrad_llm.patches import load

launch_sizes = load("launch_sizes")

def test_launch_dims_are_clamped_to_minimum():
  a, b = UOp.variable("a", 1, 8), UOp.variable("b", 3, 5)
  info = ProgramInfo(global_size=(a, (a + b) // 2, 7), local_size=(b, 1, 1))
  for values in itertools.product(range(1, 9), range(3, 6)):
    named = dict(zip("ab", values))
    assert launch_sizes.launch_dims(info, named) == launch_sizes._stock(info, named)
  assert launch_sizes._stock(info, {"a": 0, "b": 0}) == ((0, 0, 7), (0, 1, 1))
  assert launch_sizes.launch_dims(info, {"a": 0, "b": 0, "c": 0}) == ((1, 2, 7), (3, 1, 1))
  assert launch_sizes.launch_dims(ProgramInfo(global_size=(2, 3, 4)), {"a": 0}) == ((2, 3, 4), None)

def made_graphs(model: str) -> dict:
  """An answer to a prompt of several chunks, on a driver that refuses a grid of 0, and figures of the graphs' nodes."""
  from tests.support import cuda_stub
  driver = cuda_stub.install()
  import tinygrad_llm
  llm = tinygrad_llm.load(model, max_context=64, chunk=16)
  tokens = [*llm.generate([5] * 21, max_tokens=4, ignore_eos=True)]
  nodes = [node.work for graph in driver.graphs for node in graph]
  return {"tokens": len(tokens), "nodes": len(nodes), "graphs": len(driver.graphs), "without": without_the_patch(),
          "least": min(math.prod((*node.grid, *node.block)) for node in nodes), "device": llm.device}

def without_the_patch() -> str:
  from tinygrad import Tensor, TinyJit
  step = TinyJit(lambda x: ((x + 1).contiguous() * 2).contiguous().realize())
  x, n = Tensor.empty(8, 512).contiguous().realize(), UOp.variable("n", 1, 8).bind(2)
  ProgramInfo.launch_dims = load("launch_sizes")._stock
  try:
    for _ in range(2): step(x[:n])
  except RuntimeError as e: return str(e)
  return ""

@pytest.mark.skipif(not has_cuda_wheels(), reason="NVIDIA makes no NVRTC wheel for this machine")
def test_prefill_on_cuda(model_file):
  model = str(model_file(types="F32", layers=1, vocab=384, context=96))
  found = child.call(made_graphs, model, DEV="CUDA").value
  assert found["device"] == "CUDA" and found["tokens"] == 4 and found["graphs"] >= 4 and found["nodes"] > 30
  assert found["least"] >= 1
  assert found["without"] == "CUDA Error 1, invalid argument"

def sizes(model: str, target: str) -> list:
  """
  [smallest size with all variables 0, smallest size with valid values, whether sizes are symbolic] of each kernel.

  Variables are 0 when graphs are made, and valid when graphs and queues are launched. The list covers the kernels of a
  prompt's steps and of decode steps of one row and of eight.
  """
  from tinygrad_llm.device.device import open_target
  open_target(target)
  from tinygrad_llm.analysis import programs
  from tinygrad_llm.device.buffers import without_memory
  from tinygrad_llm.engine.batch.row_steps import RowSteps
  from tinygrad_llm.files.gguf import open_gguf
  from tinygrad_llm.nn.reader import read_config
  from tinygrad_llm.nn.model import Model
  from tinygrad_llm.weights.loader import Loader
  file = open_gguf(model)
  with without_memory(), Loader(file, progress=False) as loader:
    steps = RowSteps(Model(read_config(file), loader, 64), 64, 16, 2)
    schedules = steps.piece_schedule(), steps.decode_schedule(1, 5), steps.decode_schedule(8, 5)
  found, rng = [], random.Random(1)
  for linear, _ in schedules:
    for call in programs.compiled(linear).src:
      info = call.src[0].arg
      each = (*info.global_size, *(info.local_size or ()))
      named = {v.expr: v for size in each if isinstance(size, UOp) for v in size.variables()}
      values = [{name: int(at(v)) for name, v in named.items()}
                for at in (lambda v: v.vmin, lambda v: v.vmax, *[lambda v: rng.randint(v.vmin, v.vmax)] * 20)]
      def least(at: dict[str, int], info=info) -> int:
        grid, block = info.launch_dims(at)
        return min(*grid, *(block or ()))
      found.append([least(dict.fromkeys(named, 0)), min(map(least, values)), bool(named)])
  return found

@extended
@pytest.mark.parametrize("target", sample(["CUDA:sm_89", "NV:PTX:sm_90", "METAL:Apple9"], ["METAL:Apple9"]))
@pytest.mark.parametrize("arch", sample(["llama", "qwen3moe", "deepseek2"], ["llama"]))
def test_every_program_has_positive_launch_sizes(model_file, target, arch):
  if why := missing(target): pytest.skip(why)
  found = child.call(sizes, str(model_file(arch=arch, types="Q8_0", vocab=384, context=96)), target).value
  assert len(found) > 20 and any(symbolic for *_, symbolic in found)
  assert min(made for made, *_ in found) >= 1
  assert min(least for _, least, _ in found) >= 1
