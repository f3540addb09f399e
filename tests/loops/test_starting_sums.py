"""loops/starting_sums: dot products of whole groups of activations start from their offset times the group's sum."""
import functools
import re

from tests.support import child
import pytest
from tests.support.extended import sample
from tests.tiles.test_pack_operands import MOST, kernel, large
from tinygrad import dtypes
from tinygrad.uop.ops import AxisType, UOp
from tinygrad_llm.patches.ir.indices import evaluate
from tinygrad_llm.patches.loops.starting_sums import starts

OFFSETS = ("Q6_K", "Q3_K", "Q4_0", "Q5_0", "MXFP4", "NVFP4", "IQ4_XS", "IQ4_NL")
GROUP, WORD, BYTE = LOOPS = [UOp.range(n, i, AxisType.REDUCE) for i, n in enumerate((3, 4, 4))]
ROW = UOp.range(64, 9, AxisType.WEAK)
X, WEIGHTS = UOp.param(0, dtypes.uint32, (64,)), UOp.param(1, dtypes.uint32, (4096,))

def of_x(words: int = 6) -> list[UOp]:
  """A byte of x and its group's scale. words: of a group; 6 is as stored."""
  byte = (X.index(GROUP * words + WORD) >> (BYTE * 8).cast(dtypes.uint32)) & 255
  return [byte.cast(dtypes.uint8).bitcast(dtypes.int8).cast(dtypes.float),
          X.index(GROUP * words + 4).bitcast(dtypes.float)]

def products(offset: float = -32.0, words: int = 6, scale: UOp | None = None) -> list[tuple[UOp, ...]]:
  """The products of (weight + offset) * scale by x."""
  weight = ((WEIGHTS.index(ROW * 12 + GROUP * 4 + WORD) >> (BYTE * 8).cast(dtypes.uint32)) & 63).cast(dtypes.float)
  rest = (*of_x(words), WEIGHTS.index(ROW * 12 + GROUP).bitcast(dtypes.float) if scale is None else scale)
  return [(weight, *rest), (UOp.const(offset, dtypes.float), *rest)]

def test_start_is_the_offset_times_the_stored_sum():
  """The stored word is -128 times the sum, the sixth of its group."""
  found, = starts(products(), LOOPS)
  assert {found.first, found.second} == {0, 1} and set(found.group.loops) == {WORD, BYTE}
  stored = next(u for u in found.start.toposort() if u.dtype is dtypes.int and u.op not in (UOp.const(0).op,))
  assert evaluate(found.start, {stored: -128 * 77}) == -32 * 77

def test_order_of_products_does_not_matter():
  found, = starts(products()[::-1], LOOPS)
  assert (found.first, found.second) == (1, 0)

@pytest.mark.parametrize("other", [
  products(offset=-0.5),       # no whole number
  products(words=7),           # no stored group
  products(scale=WEIGHTS.index(ROW * 12 + WORD).bitcast(dtypes.float)),  # a scale within a group
  products()[:1],              # no offset
  [products()[0], products(scale=UOp.const(2.0, dtypes.float))[1]],  # another scale
], ids=["fraction", "layout", "scale", "one", "scales"])
def test_other_products_stay(other): assert starts(other, LOOPS) == []

@functools.cache
def source(name: str, tokens: int) -> str:
  row = child.call(large, name, tokens).value
  assert row["error"] < MOST
  return kernel(row["source"])

def chains(text: str) -> list[str]:
  """The innermost first argument of each dot product, from which it starts."""
  return [re.sub(r"^(add_dots_of_\w+\(|add_pairs\()+", "", found).split(",")[0]
          for found in re.findall(r"convertvector\((?:\()*(add_\w+\(.*)", text)]

@pytest.mark.parametrize("name, tokens", sample([(name, n) for name in OFFSETS for n in (1, 2, 8)], [("Q6_K", 2)]))
def test_no_dot_product_starts_from_zero(name, tokens):
  """With an offset, each starts from a number that all lanes share."""
  text = source(name, tokens)
  zero = set(re.findall(r"int16 (cast\d+) = \(int16\)\{0,", text))
  assert (found := chains(text)) and not zero & set(found)
  assert all(start.startswith("(int16){val") for start in found)

def test_minimums_leave_dot_products_as_they_are():
  """Q4_K subtracts a minimum for each group, no constant: its dot products start from zero."""
  assert {re.sub(r"\d+", "", start) for start in chains(source("Q4_K", 4))} == {"cast"}

@pytest.mark.parametrize("name, tokens", sample([("Q6_K", 2), ("Q6_K", 8), ("NVFP4", 4)], [("Q6_K", 2)]))
def test_starts_are_loaded_after_weights(name, tokens):
  """Starts are loaded one by one between the words of weights, not all of them at once before the first word."""
  text = source(name, tokens)
  inner = next(part for part in text.split("for (")[::-1] if "volatile" in part)
  runs = [len(re.findall(r"int val\d+ = \(\*\(buf\d+\+", part)) for part in inner.split("volatile")]
  assert runs[0] == 0 and sum(n > 0 for n in runs) > 3
