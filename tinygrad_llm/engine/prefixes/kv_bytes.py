"""Blocks of KV as bytes: copies between host memory, and the tensors of a pool."""
from __future__ import annotations
from collections.abc import Callable, Sequence
import numpy as np
from tinygrad_llm.nn.cache.place import BLOCK

class KVBytes:
  """
  The blocks of all layers, in the memory of a device that the host reaches.

  - layers: an array of each layer, (parts, heads, positions, D); the pool's blocks are one after the other
  - wait: returns when the device has done all its work
  - apart: for each layer, whether it is in the pool of layers with a window
  """
  def __init__(self, layers: Sequence[np.ndarray], wait: Callable[[], None], apart: Sequence[bool] = ()):
    self._wait, self._apart = wait, apart or [False] * len(layers)
    self._layers, self.nbytes = layers, sum(x.itemsize * x.size // x.shape[2] * BLOCK for x in layers)

  def read(self, block: int, window: int = 0) -> np.ndarray:
    """
    A copy of a block's KV, uint8 (nbytes,): layer by layer, (parts, heads, 64, D). window: the window pool's block.
    """
    self._wait()
    data, at = np.empty(self.nbytes, np.uint8), 0
    for x, apart in zip(self._layers, self._apart):
      of = self._of(x, window if apart else block)
      data[at:at + of.nbytes].view(x.dtype).reshape(of.shape)[:] = of
      at += of.nbytes
    return data

  def write(self, block: int | None, kv: np.ndarray, window: int = 0) -> None:
    """Writes a block as read() gave it. None, and 0 for the window pool: these layers are left out."""
    self._wait()
    at = 0
    for x, apart in zip(self._layers, self._apart):
      to = (window or None) if apart else block
      of = self._of(x, to or 0)
      if to is not None: of[:] = kv[at:at + of.nbytes].view(x.dtype).reshape(of.shape)
      at += of.nbytes

  @staticmethod
  def _of(x: np.ndarray, block: int) -> np.ndarray:
    found: np.ndarray = x[:, :, block * BLOCK:(block + 1) * BLOCK]
    return found
