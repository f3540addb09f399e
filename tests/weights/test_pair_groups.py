"""Groups of (row, expert) pairs with one expert each, and their products in a step of several rows, against numpy."""
import itertools, re

import numpy as np
import pytest
from tests.support import child
from tests.support.extended import sample, some
from tests.weights.test_expert_blocks import experts
from tinygrad import Tensor, TinyJit, dtypes
from tinygrad_llm.analysis.programs import capture
from tinygrad_llm.device.device import open_target
from tinygrad_llm.patches.ir.targets import LANES
from tinygrad_llm.patches.tiles.pack_operands import AT_ONCE
from tinygrad_llm.weights import numerics
from tinygrad_llm.weights.linear import ExpertLinear
from tinygrad_llm.weights.pair_groups import group_sizes, pairs

COUNT, OUT, N = 6, 80, 512  # experts, rows and columns of a matrix

def drawn(rng: np.random.Generator, rows: int, used: int, count: int, among: int) -> np.ndarray:
  """int32 (rows, used): each row's distinct experts, all of them from `among` of `count`."""
  of = rng.permutation(count)[:among]
  return np.stack([rng.permutation(of)[:used] for _ in range(rows)]).astype(np.int32)

def check(ids: np.ndarray, sizes: list[int]) -> None:
  """Each pair is in one group of its expert, which has the smallest size with room for the expert's pairs."""
  found, counts = pairs(Tensor(ids).realize(), sizes), np.bincount(ids.flatten())
  np.testing.assert_array_equal(found.counts.numpy(), counts[ids])
  assert [*found.groups] == sizes
  fit = [next((n for n in sizes if n >= count), sizes[-1]) for count in counts]
  for n_slots, groups in found.groups.items():
    of, starts, rows, slots = (x.numpy() for x in (groups.experts, groups.starts, groups.rows, groups.slots))
    assert of.shape == starts.shape == (ids.size,) and rows.shape == (ids.size, n_slots)
    assert (np.diff(of) >= 0).all() and rows.min() >= 0 and rows.max() < len(ids)
    own = [at for at in np.ndindex(ids.shape) if fit[ids[at]] == n_slots]
    for at in own:
      place, slot = divmod(int(slots[at]), n_slots)
      assert of[place] == ids[at] and starts[place] and rows[place, slot] == at[0]
    assert len({int(slots[at]) for at in own}) == len(own)
    assert starts.sum() == sum(-(-count // n_slots) for count, size in zip(counts, fit) if size == n_slots)

@pytest.mark.parametrize("seed", sample(range(12), range(4)))
def test_random_pairs(seed):
  rng = np.random.default_rng([4, seed])
  rows, used, count = (int(rng.integers(*ends)) for ends in ((2, 9), (1, 9), (8, 70)))
  sizes = sorted({1, *map(int, rng.integers(2, 9, int(rng.integers(1, 3))))})
  check(drawn(rng, rows, used, count, int(rng.integers(used, count + 1))), sizes)

@pytest.mark.parametrize("rows", [2, 8])
def test_all_rows_choose_the_same_experts(rows): check(np.tile(np.int32([[5, 0, 63]]), (rows, 1)), [1, 2, 4])

# *** products, in a child process

def products(name: str, m: int, fused: bool, rows: int, used: int) -> tuple[list[float], float]:
  """
  Errors of one captured step for pairs with all, some and the fewest experts, relative to the largest result.

  Also the largest difference of a row's results, relative to the largest, when others choose other experts.
  """
  weight, values = experts(name, m, COUNT, OUT, N, fused)
  sizes = group_sizes(rows, numerics.slots_of_rows())
  linear, rng = ExpertLinear([weight], [None] * m, [None] * m), np.random.default_rng(5)
  x = rng.standard_normal((rows, N), np.float32)
  packed = numerics.unpacked(numerics.pack(Tensor(x)).contiguous().realize()).numpy().astype(np.float64)
  @TinyJit
  def step(x: Tensor, ids: Tensor) -> Tensor:
    found = pairs(ids, sizes)
    each = [found.each(lambda groups, i=i: linear.of_groups(x, groups)[i]) for i in range(m)]
    return Tensor.stack(*each).contiguous()
  errors, seen, parted = list[float](), dict[tuple[int, int], np.ndarray](), 0.
  for among in (COUNT, COUNT, max(used, 2), used, COUNT):
    ids = drawn(rng, rows, used, COUNT, among)
    found = step(Tensor(x).realize(), Tensor(ids).realize()).numpy()  # (m, rows, used, OUT)
    wanted = np.einsum("mbkrn,bn->mbkr", values[:, ids], packed)
    most = np.abs(wanted).max()
    errors.append(float(np.abs(found - wanted).max() / most))
    for b, chosen in enumerate(ids):
      for k, e in enumerate(chosen):
        parted = max(parted, float(np.abs(seen.setdefault((b, e), found[:, b, k]) - found[:, b, k]).max() / most))
  return errors, parted

@pytest.mark.parametrize("name, m, fused, rows, used", some([
  ("Q4_K", 2, False, 8, 2), ("MXFP4", 1, False, 4, 4), ("Q4_0", 2, True, 3, 3), ("Q6_K", 1, False, 8, 2),
  ("Q8_0", 2, False, 2, 6), ("IQ4_NL", 1, False, 5, 3), ("Q4_K", 1, False, 2, 2)], 0, 1))
def test_products_of_rows(name, m, fused, rows, used):
  """Each row has its own experts' products. Their numbers hardly depend on the other rows' choices."""
  errors, parted = child.call(products, name, m, fused, rows, used).value
  assert max(errors) < 1e-5 and parted < 1e-6

# *** kernels

TARGETS = ("CPU:sapphirerapids", "CPU:x86-64-v3", "CPU:arm64")

def slots(target: str) -> int:
  open_target(target)
  return numerics.slots_of_rows()

def sources(target: str, rows: int, used: int) -> list[str]:
  """The sources of the kernels that multiply by 16 experts of 34 x 16 rows of 1024."""
  open_target(target)
  weight, _ = experts("Q4_K", 1, 16, 34 * 16, 1024, False)
  linear, sizes = ExpertLinear([weight], [None], [None]), group_sizes(rows, numerics.slots_of_rows())
  def step(x: Tensor, ids: Tensor) -> Tensor: return pairs(ids, sizes).each(lambda of: linear.of_groups(x, of)[0])
  made, _ = capture(step, Tensor.empty(rows, 1024).realize(), Tensor.empty(rows, used, dtype=dtypes.int32).realize())
  return [text for call in made.src if "prefetch" in (text := call.src[0].src[2].arg)]

@pytest.mark.parametrize("target, rows, used", some([*itertools.product(TARGETS[:2], (2, 4, 8), (2, 8))], 1))
def test_group_is_a_step_of_a_loop(target, rows, used):
  """
  A place without a group is left out. Its threads share the rows of a matrix, and add up activations once for a group.

  16 pairs, as 2 rows with 8 experts each have, are no lanes.
  """
  text = "".join(child.call(sources, target, rows, used, NUM_CPU_THREADS="2", CPU_COUNT="2").value)
  loops = re.split(rf"for \(int (\w+) = 0; \1 < {rows * used}; \1\+\+\) {{\n.*\n.*if \(!\w+\) continue", text)[2::2]
  assert len(loops) == len(group_sizes(rows, 4 if target == TARGETS[0] else 2))
  # few of a row's weights are unpacked at a time: their products hide the reads from memory
  assert all(int(words) <= AT_ONCE * LANES // 4 for words in re.findall(r"unsigned int buf\d+\[(\d+)\]", text))
  for text in loops: assert 0 < text.find("float)(__builtin_bit_cast(int") < text.find("< 17; ") < text.find("prefetch")

def test_slots_of_targets():
  assert {target: child.call(slots, target).value for target in TARGETS} == dict(zip(TARGETS, (4, 2, 2)))
  assert child.call(slots, TARGETS[0], NO_Q8_ACTIVATIONS="1").value == 0

def test_sizes_of_groups():
  assert [group_sizes(rows, 4) for rows in (2, 3, 4, 8)] == [[1, 2], [1, 3], [1, 4], [1, 4, 8]]
  assert [group_sizes(rows, 2) for rows in (2, 4, 8)] == [[1, 2], [1, 2, 4], [1, 2, 4]]
