"""Blocks of (token, expert) pairs with one expert each, and their products for any prompt length, against numpy."""
import itertools

from tests.support import child
from tests.gpu import gpu_prompts
import numpy as np
import pytest
from tests.support.extended import extended, sample, some
from tests.support import symbolic
from tests.patches.test_codegen import held
from tinygrad import Tensor, TinyJit, Variable
from tinygrad_llm.patches.schedule import gemv_cpu
from tinygrad_llm.weights import numerics
from tinygrad_llm.weights.expert_blocks import ExpertBlocks, expert_blocks
from tinygrad_llm.weights.linear import ExpertLinear
from tinygrad_llm.weights.numerics import GPU_SLOTS, SLOTS
from tinygrad_llm.weights.weight import FusedExperts, Weight

MOST = 40  # tokens

def assignment(ids: np.ndarray, experts: int, n_slots: int) -> list[np.ndarray]:
  """
  The arrays experts, tokens and slots of the blocks of all tokens, each with the greatest possible number of rows.
  """
  T, K = ids.shape
  padded = np.zeros((MOST, K), np.int32)
  padded[:T] = ids
  blocks = expert_blocks(Tensor(padded).realize()[:Variable("tokens", 1, MOST).bind(T)], experts, n_slots)
  n, found = T * -(-K // n_slots) + experts, (blocks.experts, blocks.tokens, blocks.slots)
  shapes: list[tuple[int, ...]] = [(n,), (n, n_slots), (T, K)]
  return [symbolic.values(lazy, shape).view(np.int32) for lazy, shape in zip(found, shapes)]

def check(ids: np.ndarray, experts: int, n_slots: int) -> None:
  of, tokens, slots = assignment(ids, experts, n_slots)
  for t, chosen in enumerate(ids):
    np.testing.assert_array_equal(of[slots[t] // n_slots], chosen)
    assert (tokens[slots[t] // n_slots, slots[t] % n_slots] == t).all()
  assert len(np.unique(slots)) == ids.size and tokens.min() >= 0 and tokens.max() < len(ids)
  assert (np.diff(of) >= 0).all()
  assert (of < experts).sum() == sum(-(-n // n_slots) for n in np.bincount(ids.flatten()))

of_slots = pytest.mark.parametrize("n_slots", [SLOTS, GPU_SLOTS])

@of_slots
@pytest.mark.parametrize("seed", range(6))
def test_random_assignments(seed, n_slots):
  rng = np.random.default_rng([3, seed])
  experts = int(rng.integers(2, 70))
  used = int(rng.integers(1, min(experts, 8) + 1))
  of = rng.permutation(experts)[:int(rng.integers(used, experts + 1))]  # other experts get no token
  ids = np.stack([rng.permutation(of)[:used] for _ in range(int(rng.integers(1, MOST + 1)))]).astype(np.int32)
  check(ids, experts, n_slots)

@of_slots
@pytest.mark.parametrize("expert", [0, 4])
def test_all_tokens_choose_one_expert(expert, n_slots): check(np.full((MOST, 1), expert, np.int32), 5, n_slots)

# *** products, in a child process

def experts(name: str, m: int, count: int, rows: int, n: int, fused: bool) -> tuple[Weight, np.ndarray]:
  """Random experts, and their dequantised values (m, count, rows, n)."""
  qt, stored, how, values = held(name, m * count * rows, n, True)
  weight = (FusedExperts if fused else Weight)(qt, stored, (m, count, rows, n), how)
  return weight, values.reshape(count, m, rows, n).swapaxes(0, 1) if fused else values.reshape(m, count, rows, n)

def products(name: str, m: int, fused: bool, lengths: list[int], least: int, used: int = 2) -> dict:
  """
  Errors of one captured step for prompts of some lengths, relative to the largest result, and its number of traces.
  """
  gemv_cpu.LEAST = least
  count, rows, n = 6, 80, 512
  weight, values = experts(name, m, count, rows, n, fused)
  linear, rng, traced = ExpertLinear([weight], [None] * m, [None] * m), np.random.default_rng(5), list[bool]()
  x, ids = rng.standard_normal((MOST, n), np.float32), np.stack([rng.permutation(count)[:used] for _ in range(MOST)])
  packed = numerics.unpacked(numerics.pack(Tensor(x)).contiguous().realize()).numpy().astype(np.float64)
  xs, choices = Tensor(x).realize(), Tensor(ids.astype(np.int32)).realize()
  out, errors = Tensor.zeros(m, MOST, rows).contiguous().realize(), list[float]()
  @TinyJit
  def step(x: Tensor, ids: Tensor) -> Tensor:
    traced.append(True)
    blocks: ExpertBlocks = expert_blocks(ids, count, SLOTS)
    weights = Tensor.ones(ids.shape[0], used)
    ys = [blocks.of_tokens(blocks.filled(y), weights) for y in linear.of_blocks(x, blocks)]
    return out[:, :ids.shape[0]].assign(Tensor.stack(*ys))
  for tokens in lengths:
    of = Variable("tokens", 1, MOST).bind(tokens)
    step(xs[:of], choices[:of]).realize()
    wanted = np.einsum("mtkrn,tn->mtr", values[:, ids[:tokens]], packed[:tokens])
    errors.append(float(np.abs(out.numpy()[:, :tokens] - wanted).max() / np.abs(wanted).max()))
  return {"errors": errors, "traced": len(traced)}

@pytest.mark.parametrize("name, m, fused, least", some([
  ("Q4_0", 2, False, 0), ("Q4_0", 2, True, 0), ("MXFP4", 1, False, 0), ("IQ4_NL", 1, False, 1 << 18)], 1))
def test_expert_product_results(name, m, fused, least):
  found = child.call(products, name, m, fused, [7, MOST, 1, 13, 4], least, NO_AMX_TILES="1").value
  assert max(found["errors"]) < 1e-5 and found["traced"] <= 2

@pytest.mark.parametrize("used", sample([1, 5, 6], [5]))
def test_several_experts_per_token(used):
  found = child.call(products, "Q8_0", 1, False, [1, 3, MOST], 1 << 18, used, NO_AMX_TILES="1").value
  assert max(found["errors"]) < 1e-5

# *** kernels for GPUs, run by numpy

@extended
@pytest.mark.parametrize(("target", "name", "tokens"),
                         [*itertools.product(["CUDA", "Metal"], ["Q4_K", "MXFP4", "Q6_K"], [1, 37])])
def test_tensor_cores_on_gpu(target, name, tokens):
  """
  Both block products use tensor cores. An unused block computes nothing, because a loop's end depends on a number.
  """
  error, products = child.call(gpu_prompts.experts, name, target, tokens, NO_AMX_TILES="1").value
  assert error < 4e-3 and len(products) == 2
  for block, wmma, ended in products: assert block[0] == numerics.GPU_SLOTS and wmma and ended == 1
