"""Types that store one number per weight."""
from __future__ import annotations
import numpy as np
from tinygrad import Tensor, dtypes
from tinygrad_llm.quants.bit_fields import to_float
from tinygrad_llm.quants.row import Row

# types that gguf-py does not convert. 8-byte numbers become float32 in memory, because not every device has them
NUMBERS = {"F64": np.float64, "I8": np.int8, "I16": np.int16, "I32": np.int32, "I64": np.int64}

def _float32(x: Tensor) -> Tensor: return x
def _bf16(h: Tensor) -> Tensor: return (h << 16).bitcast(dtypes.float32)

ROWS = (
  Row("F32",  4, _float32, dtype=dtypes.float32),
  Row("F16",  2, to_float, dtype=dtypes.float16),
  Row("BF16", 2, _bf16),
  Row("F64",  4, _float32, dtype=dtypes.float32),
  Row("I8",   1, to_float, dtype=dtypes.int8),
  Row("I16",  2, to_float, dtype=dtypes.int16),
  Row("I32",  4, to_float, dtype=dtypes.int32),
  Row("I64",  4, _float32, dtype=dtypes.float32),
)
