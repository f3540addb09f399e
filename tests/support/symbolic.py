"""Reads results of symbolic shape, which Tensor.numpy() does not support."""
import math

import numpy as np
from tinygrad import Tensor

def values(lazy: Tensor, shape: tuple[int, ...]) -> np.ndarray:
  """The computed float32 values, cut to `shape` from a buffer of maximal size. The outermost axis is symbolic."""
  found = lazy.contiguous().realize().uop.base.buffer.as_memoryview()
  return np.frombuffer(found, np.float32)[:math.prod(shape)].reshape(shape)
