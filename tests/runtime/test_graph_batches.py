"""runtime/graph_batches.py: a captured step is one launch."""
import json

import pytest
from tests.support.child import run
from tests.support.extended import extended, sample
from tests.tools.kernel_cases import missing
from tinygrad_llm.patches import is_on

CHAIN = '''
import json, tinygrad_llm
from tinygrad import Tensor, TinyJit, UOp
@TinyJit
def step(x, v):
  for _ in range(100): x = (x + v).contiguous()
  return x.realize()
for _ in range(3): y = step(Tensor.zeros(16).contiguous().realize(), UOp.variable("v", -9, 9).bind(2))
assert (y.numpy() == 200).all()
print(json.dumps([len(call.src[0].src[0].src) for call in step.captured.linear.src]))
'''
STEPS = '''
import json, tinygrad_llm
from tinygrad.uop.ops import Ops
llm = tinygrad_llm.load({model!r}, max_context=64)
list(llm.generate([5, 17, 300], max_tokens=3, ignore_eos=True))
steps = llm.engine.steps
graphs = [x.src for x in (steps._piece.captured.linear, steps._last.captured.linear, steps.linear)]
print(json.dumps([[call.src[0].op is Ops.CUSTOM_FUNCTION for call in calls] for calls in graphs]))
'''
# the NULL device runs nothing and has no graphs, so it gets the base class of all graph runners
COMPILED = '''
import json, tinygrad_llm
from tinygrad_llm.device.device import open_target
open_target({target!r})
from tinygrad import Device
from tinygrad.engine import jit
from tinygrad.helpers import JIT_BATCH_SIZE
from tinygrad_llm.engine.batch.row_steps import RowSteps
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.nn.reader import read_config
from tinygrad_llm.nn.model import Model
from tinygrad_llm.weights.loader import Loader
from tinygrad_llm.analysis import programs
from tinygrad_llm.device.buffers import without_memory
file = open_gguf({model!r})
with without_memory(), Loader(file, progress=False) as loader:
  steps = RowSteps(Model(read_config(file), loader, 64), 64, 16, 2)
  linear, _ = steps.decode_schedule(1, 5)
linear = programs.compiled(linear)
Device["NULL"].graph = jit.GraphRunner
print(json.dumps([len(linear.src), *(len(call.src[0].src[0].src)
                                     for call in jit.graph_split_rewrite(linear, JIT_BATCH_SIZE.value).src)]))
'''

def batches(code: str, **env: str) -> list:
  return json.loads(run(code, **{"DEV": "CPU", **env}).stdout)

@pytest.mark.skipif(not is_on("graph_batches") or not is_on("dispatch"), reason="no graphs to test")
def test_captured_step_is_one_launch():
  assert batches(CHAIN) == [100]
  assert batches(CHAIN, NO_GRAPH_BATCHES="1") == [32, 64, 4]
  assert batches(CHAIN, JIT_BATCH_SIZE="32") == [32, 64, 4]  # an explicit size counts, even if it is the default
  assert batches(CHAIN, JIT_BATCH_SIZE="40") == [40, 60]

@extended
@pytest.mark.parametrize("types", ["Q8_0", "Q4_K_M"])
def test_model_steps_are_graphs_only(model_file, types):
  """A model's steps are graphs only: nothing runs outside, as a copy would."""
  model = str(model_file(arch="llama", types=types, vocab=384, context=96))
  assert batches(STEPS.format(model=model)) == [[True]] * 3

@extended
@pytest.mark.parametrize("target", sample(["CUDA:sm_90", "METAL:Apple9"], ["CUDA:sm_90"]))
def test_gpu_decode_step_is_one_launch(model_file, target):
  if why := missing(target): pytest.skip(why)
  code = COMPILED.format(model=str(model_file(arch="llama", types="Q8_0", vocab=384, context=96)), target=target)
  kernels, *launched = batches(code)
  assert launched == [kernels] and kernels > 10
  kernels, *launched = batches(code, JIT_BATCH_SIZE="5")
  assert len(launched) > 1 and sum(launched) == kernels
