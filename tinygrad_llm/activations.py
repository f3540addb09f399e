"""
Activations of 8 bits, for products with weights of a few bits: groups of 16 share a scale.

Only where the target multiplies bytes (patches/int_dots.py) and the rows of a matrix are interleaved (layout.py): a
step of decoding waits for memory then, and a prompt is multiplied three times as fast. NO_Q8_ACTIVATIONS=1 leaves them
as they are.
"""
from __future__ import annotations
from tinygrad import Device, Tensor, dtypes
from tinygrad_llm.patches import int_dots, is_on

GROUP = 16  # 32, as in GGML's Q8_0, brings no speed and more error: no less than llama.cpp's, with the same weights

def multiplies_bytes() -> bool: return is_on("q8_activations") and int_dots.available(Device[Device.DEFAULT].renderer)

def quantize(x: Tensor) -> Tensor:
  """x (.., n), n a multiple of 16 -> the same to 8 bits a group, as an expression of stored int8 and scales."""
  groups = x.reshape(*x.shape[:-1], -1, GROUP)
  top = groups.abs().max(-1, keepdim=True).contiguous()
  q = groups * (top > 0).where(127 / top, 0.0)
  q = (q + (q < 0).where(-0.5, 0.5)).cast(dtypes.int8).contiguous()  # the cast drops the fraction
  return (q.cast(dtypes.float32) * (top * (1 / 127))).reshape(x.shape)
