"""Expert routing against numpy in float64 (numbers of experts, gatings, groups, ties), and its kernels."""
from tests.support import child
from tests.gpu import gpu_numbers
from tests.gpu import gpu_renderers
import numpy as np
import pytest
from tests.support.extended import sample, some
from tests.tools.kernel_cases import has_cuda_wheels
from tests.support.reference_moe import softmax
from tinygrad import Tensor
from tinygrad_llm.analysis.programs import capture
from tinygrad_llm.device import metal
from tinygrad_llm.device.device import open_target
from tinygrad_llm.nn.layers import MoEConfig
from tinygrad_llm.nn.moe import MoE

class Bias:
  """The part of Weight's interface that MoE needs from its bias."""
  def __init__(self, values: np.ndarray): self.values = values
  def float(self) -> Tensor: return Tensor(self.values).realize()

def router(config: MoEConfig, bias: np.ndarray | None) -> MoE:
  """A MoE without matrices, whose input is the router's logits."""
  moe = MoE.__new__(MoE)
  moe.moe, moe.bias, moe.router = config, None if bias is None else Bias(bias), lambda x: [x]  # type: ignore
  return moe

def wanted(config: MoEConfig, logits: np.ndarray, bias: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
  """Logits (T, experts) -> the chosen experts (T, used), the first of equal ones, and their weights."""
  x = logits.astype(np.float64)
  probs = {"softmax": softmax(x), "sigmoid": 1 / (1 + np.exp(-x))}.get(config.gating, x)
  scores = (probs + (0 if bias is None else bias)).astype(np.float32)
  if config.groups_used < config.groups:
    by_group = scores.reshape(len(scores), config.groups, -1)
    top = np.argsort(-np.sort(by_group, -1)[..., -2:].sum(-1), -1, kind="stable")[:, :config.groups_used]
    allowed = np.zeros(by_group.shape, bool)
    for row, groups in zip(allowed, top): row[groups] = True
    scores = np.where(allowed, by_group, -np.inf).reshape(scores.shape)
  chosen = np.argsort(-scores, -1, kind="stable")[:, :config.n_used]
  weights = np.take_along_axis(probs, chosen, -1)
  if config.gating == "softmax_chosen": weights = softmax(weights)
  if config.norm_weights: weights = weights / weights.sum(-1, keepdims=True)
  return chosen, weights * config.scale

def drawn(rng: np.random.Generator) -> tuple[MoEConfig, np.ndarray, np.ndarray | None]:
  gating = str(rng.choice(["softmax", "sigmoid", "softmax_chosen"]))
  groups = int(rng.choice([1, 1, 2, 4])) if gating == "sigmoid" else 1
  experts = groups * int(rng.integers(2, 40))
  groups_used = int(rng.integers(1, groups + 1))
  used = int(rng.integers(1, min(experts // groups * groups_used, 12) + 1))
  norm, scale = bool(rng.integers(2)), float(rng.choice([1, 2.5]))
  config = MoEConfig(experts, used, 0, 0, "silu", gating, norm, scale, groups, groups_used)
  logits = rng.standard_normal((int(rng.integers(1, 6)), experts)).astype(np.float32)
  bias = rng.standard_normal(experts).astype(np.float32) if gating == "sigmoid" and rng.integers(2) else None
  return config, logits, bias

@pytest.mark.parametrize("seed", sample(range(12), (0, 5)))
def test_random_routings(seed):
  config, logits, bias = drawn(np.random.default_rng([12, seed]))
  ids, weights = router(config, bias).route(Tensor(logits).realize().unsqueeze(0))
  Tensor.realize(ids, weights)
  of, shares = wanted(config, logits, bias)
  np.testing.assert_array_equal(ids.numpy()[0], of, str(config))
  np.testing.assert_allclose(weights.numpy()[0], shares, 1e-5, 1e-7, err_msg=str(config))

def test_ties_select_lowest_index():
  logits = np.repeat(np.float32([[0, 2, 1]]), 20, 1)  # each value 20 times
  config = MoEConfig(60, 25, 0, 0, "silu", "softmax", True, 1.0, 1, 1)
  ids, _ = router(config, None).route(Tensor(logits).realize().unsqueeze(0))
  assert ids.numpy()[0, 0].tolist() == [*range(20, 40), *range(40, 45)]

def kernels(experts: int, gating: str, groups: int, target: str = "CPU") -> int:
  """The number of kernels that route one token."""
  open_target(target)
  config = MoEConfig(experts, min(8, experts), 0, 0, "silu", gating, True, 2.5, groups, min(groups, 2))
  bias = np.zeros(experts, np.float32) if groups > 1 else None
  route = router(config, bias).route(Tensor.empty(1, 1, experts))
  return len(Tensor.linear_with_vars(*route)[0].src)

@pytest.mark.parametrize("experts, gating, groups", some([
  (8, "softmax", 1), (32, "softmax_chosen", 1), (128, "softmax", 1), (160, "sigmoid", 8), (500, "softmax", 1),
  (512, "sigmoid", 8)], 0, 5))
def test_routing_is_one_kernel(experts, gating, groups): assert child.call(kernels, experts, gating, groups).value == 1

@pytest.mark.skipif(not has_cuda_wheels(), reason="no CUDA compiler for this machine")
@pytest.mark.parametrize("experts, groups", some([(128, 1), (256, 8), (512, 1)], 0))
def test_routing_is_one_kernel_on_gpus(experts, groups):
  assert child.call(kernels, experts, "sigmoid", groups, "CUDA:sm_90").value == 1

def source(experts: int) -> str:
  open_target("CPU")
  route = router(MoEConfig(experts, 8, 0, 0, 0, "softmax", True, 1.0, 1, 1), None).route(Tensor.empty(1, 1, experts))
  return capture(lambda: list(route))[0].src[-1].src[0].src[2].arg

def test_ranks_are_vectorised():
  """Ranks are counted in vectors, and by one thread: the stages of a chained kernel are not split over threads."""
  text = child.call(source, 512, NUM_CPU_THREADS="4", CPU_COUNT="4").value
  assert "int16" in text and "core_id" not in text and "const int" not in text

def languages(experts: int) -> dict[str, str]:
  """The routing kernel's source in each language of GPUs."""
  open_target("CUDA:sm_90")
  route = router(MoEConfig(experts, 8, 0, 0, 0, "softmax", True, 1.0, 1, 1), None).route(Tensor.empty(1, 1, experts))
  call, = Tensor.linear_with_vars(*route)[0].src
  return {name: gpu_renderers.render(call.src[0], name) for name in gpu_renderers.RENDERERS}

@pytest.mark.skipif(not has_cuda_wheels(), reason="no CUDA compiler for this machine")
def test_global_memory_barrier_in_each_language():
  """A barrier makes each thread of a group see the others' stores to global memory."""
  found = child.call(languages, 64).value
  assert metal.errors(found["Metal"]) == ""
  waits = {"Metal": "mem_flags::mem_device", "CUDA": "__syncthreads()", "PTX": "bar.sync",
           "OpenCL": "CLK_GLOBAL_MEM_FENCE"}
  assert [name for name, wait in waits.items() if wait not in found[name]] == []

def executed(experts: int) -> tuple[list[int], list[float]]:
  """The chosen experts and their weights, computed on the default device."""
  config = MoEConfig(experts, 8, 0, 0, 0, "softmax", True, 1.0, 1, 1)
  ids, weights = router(config, None).route(Tensor(logits_of(experts)).realize().unsqueeze(0))
  Tensor.realize(ids, weights)
  return ids.flatten().tolist(), weights.flatten().tolist()

def logits_of(experts: int) -> np.ndarray: return np.random.default_rng(3).standard_normal((1, experts), np.float32)

@pytest.mark.parametrize("experts", [48, 512])
def test_results_on_opencl(experts):
  if (env := gpu_numbers.opencl()) is None: pytest.skip("no OpenCL runtime with halves is here")
  ids, weights = child.call(executed, experts, **env).value
  of, shares = wanted(MoEConfig(experts, 8, 0, 0, 0, "softmax", True, 1.0, 1, 1), logits_of(experts), None)
  assert ids == of[0].tolist()
  np.testing.assert_allclose(weights, shares[0], 1e-5)

def test_disabled_by_switch(): assert child.call(kernels, 128, "softmax", 1, NO_KERNEL_CHAINS="1").value > 4
