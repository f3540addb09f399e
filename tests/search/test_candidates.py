"""The data on which candidates are timed and checked."""
import numpy as np
import pytest
import tinygrad_llm  # noqa: F401  # before tinygrad: it applies the patches
from tests.support import child
from tests.tools.kernel_cases import has_cuda_wheels
from tinygrad import Tensor
from tinygrad.uop.ops import Ops
from tinygrad_llm.device.captured import scheduled
from tinygrad_llm.patches.cache import serialize
from tinygrad_llm.patches.search.candidates import Candidates
from tinygrad_llm.quants.table import QUANT_TYPES, QuantType
from tinygrad_llm.weights.decode import dequantize

PACKED = [qt for qt in QUANT_TYPES.values() if qt.block > 1]

@pytest.mark.parametrize("qt", PACKED, ids=lambda qt: qt.name)
def test_random_weights_are_finite_and_normal(qt: QuantType):
  """Random weights are finite and not subnormal: subnormals slow Intel's CPUs down a hundred times."""
  packed = Tensor.empty(16, qt.row_items(1024), dtype=qt.dtype)
  linear, variables = scheduled(lambda w: dequantize(qt, w, 1024).contiguous(), packed)
  ast, = [call.src[0] for call in linear.src if call.src[0].op is Ops.SINK]
  weights, = Candidates(serialize.dump([ast]), "CPU", variables, 1 << 20).reference(0)
  small = np.finfo(weights.dtype).tiny
  assert np.isfinite(weights).all()
  assert np.mean((np.abs(weights) < small) & (weights != 0)) == 0
  assert len(np.unique(weights)) > 16

def timed_on_cuda(rows: int, columns: int) -> dict:
  """Times a kernel with large input and output on the stub driver: the times, and the nodes of its graphs."""
  from tests.support import cuda_stub
  driver = cuda_stub.install()
  linear, variables = scheduled(lambda x: (x + 1).contiguous(), Tensor.empty(rows, columns, device="CUDA"))
  ast, = [call.src[0] for call in linear.src if call.src[0].op is Ops.SINK]
  made = Candidates(serialize.dump([ast]), "CUDA", variables, 1 << 22)
  made.add(None, made.compile(None))
  made.prepare()
  launches = driver.launches
  times, = made.time([None], 3)
  slow, = made.time([None], 3, enough=-1.0)
  graphs = [[(node.after, node.work.words()) for node in graph] for graph in driver.graphs]
  return {"times": times, "slow": slow, "graphs": graphs, "launches": driver.launches - launches}

@pytest.mark.skipif(not has_cuda_wheels(), reason="NVIDIA makes no NVRTC wheel for this machine")
def test_timed_gpu_launches_are_one_graph():
  """Timed launches are one graph: each launch is cold and waits for the last. A slow kernel is launched once, alone."""
  found = child.call(timed_on_cuda, 64, 4096, DEV="CUDA").value
  graph, = found["graphs"]
  assert len(found["times"]) == 3 and len(found["slow"]) == 1 and 16 <= len(graph) <= 64
  for i, (after, (out, read)) in enumerate(graph):
    assert list(after) == ([i - 1] if i else []) and out == graph[0][1][0]
    assert read != graph[i - 1][1][1]
  assert found["launches"] == 7  # one alone, five times the graph, one of the slow kernel
