"""A row of x has the same product with a matrix, to the bit, whatever number of rows shares the matrix's weights."""
import numpy as np
import pytest
from tests.patches.test_codegen import held
from tests.support import child
from tests.support.extended import some
from tinygrad import Tensor, TinyJit
from tinygrad_llm.weights.linear import Linear
from tinygrad_llm.weights.weight import Weight

ROWS = 8  # of x
SUMS_ALONE = ("IQ4_XS", "Q1_0")  # one row unrolls a whole block of these, several rows do not

def products(name: str, sizes: list[tuple[int, int]]) -> list[float]:
  """The largest difference of a row's products from those alone, relative to the largest, for each size of matrix."""
  found = []
  for rows, n in sizes:
    qt, stored, how, _ = held(name, rows, n, True)
    linear = Linear([Weight(qt, stored, (rows, n), how)], [[rows]], [None], [None])
    x = np.random.default_rng([rows, n]).standard_normal((ROWS, 1, n), np.float32)
    alone, *others = (in_steps(linear, x, of) for of in (1, 2, 4, 8))
    found.append(max(float(np.abs(y - alone).max() / np.abs(alone).max()) for y in others))
  return found

def in_steps(linear: Linear, x: np.ndarray, of: int) -> np.ndarray:
  """The products of all rows x (ROWS, 1, n), `of` rows a step."""
  step = TinyJit(lambda x: linear(x)[0].contiguous())
  return np.concatenate([step(Tensor(x[i:i + of]).realize()).numpy() for i in range(0, ROWS, of)])

@pytest.mark.parametrize("name", some([
  "Q4_K", "F16", "Q8_0", "BF16", "F32", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4",
  "NVFP4", "IQ4_NL", "IQ2_XS", *SUMS_ALONE], 0, 1))
def test_rows_do_not_depend_on_company(name):
  """For small matrices, which caches hold, and for large ones, whose loads are in order."""
  rng = np.random.default_rng(len(name))
  sizes = [(16 * int(rng.integers(2, 20)), 256 * int(rng.integers(1, 4))), (16 * int(rng.integers(60, 120)), 1024)]
  found = child.call(products, name, sizes).value
  assert max(found) < 1e-6 if name in SUMS_ALONE else not any(found), found
