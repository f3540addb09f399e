"""What candidates are timed and checked on."""
import numpy as np
import pytest
import tinygrad_llm  # noqa: F401  # before tinygrad: it applies the patches
from tinygrad import Tensor
from tinygrad.uop.ops import Ops
from tinygrad_llm.device.captured import scheduled
from tinygrad_llm.patches.cache import serialize
from tinygrad_llm.patches.search.candidates import Candidates
from tinygrad_llm.quants.table import QUANT_TYPES, QuantType
from tinygrad_llm.weights.decode import dequantize

PACKED = [qt for qt in QUANT_TYPES.values() if qt.block > 1]

@pytest.mark.parametrize("qt", PACKED, ids=lambda qt: qt.name)
def test_weights_are_as_those_of_models(qt: QuantType):
  """Neither infinite nor so small that a processor is slower with them: Intel's are, by a hundred times."""
  packed = Tensor.empty(16, qt.row_items(1024), dtype=qt.dtype)
  linear, variables = scheduled(lambda w: dequantize(qt, w, 1024).contiguous(), packed)
  ast, = [call.src[0] for call in linear.src if call.src[0].op is Ops.SINK]
  weights, = Candidates(serialize.dump([ast]), "CPU", variables, 1 << 20).reference(0)
  small = np.finfo(weights.dtype).tiny
  assert np.isfinite(weights).all()
  assert np.mean((np.abs(weights) < small) & (weights != 0)) == 0
  assert len(np.unique(weights)) > 16
