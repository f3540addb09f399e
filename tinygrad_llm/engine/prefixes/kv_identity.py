"""A name for all that KV depends on beside its tokens: the model's file, this project's code, and the device."""
from __future__ import annotations
import hashlib
from collections.abc import Iterator
from tinygrad import Device
from tinygrad_llm.files.gguf import GGUF
from tinygrad_llm.nn.model import Model
from tinygrad_llm.patches.cache import captures, disk_cache
from tinygrad_llm.weights import numerics

SAMPLE = 1 << 10  # bytes at the start, in the middle and at the end of each tensor

def kv_identity(file: GGUF, model: Model, max_context: int, dequantize: bool) -> bytes:
  """
  32 bytes, equal where the same tokens give the same KV, up to rounding.

  Two files count as one model if their headers, sizes and a sample of each tensor are equal.
  """
  layers = [(str(kv.dtype), kv.shape[:2], kv.shape[3:]) for kv in (cache.pool.kv for cache in model.caches)]
  ropes = [bool(rope.long_factors) and max_context > rope.short_context for rope in model.config.ropes]
  numbers = [f() for f in (numerics.multiplies_bytes, numerics.multiplies_bytes_of_prompts, numerics.multiplies_halves,
                           numerics.multiplies_tiles)]
  ren = Device[Device.DEFAULT].renderer
  device = Device.DEFAULT.split(":")[0], type(ren).__name__, str(ren.target)
  code = captures.source("tinygrad_llm"), disk_cache.surroundings()
  told = repr((layers, ropes, numbers, dequantize, device, code))
  return hashlib.sha256(b"\0".join((told.encode(), *_parts(file)))).digest()

def _parts(file: GGUF) -> Iterator[bytes]:
  """For each file of a model: its size, and the SHA-256 of its header and of samples of its tensors."""
  paths = dict.fromkeys((file.path, *(info.path for info in file.tensors.values())))
  for path in paths:
    infos = sorted((info.offset, info.nbytes) for info in file.tensors.values() if info.path == path)
    with path.open("rb") as f:
      digest = hashlib.sha256(f.read(infos[0][0] if infos else -1))
      for offset, nbytes in infos:
        for at in (0, nbytes // 2, nbytes - SAMPLE):
          f.seek(offset + max(0, at))
          digest.update(f.read(min(SAMPLE, nbytes)))
    yield f"{path.stat().st_size} {digest.hexdigest()}".encode()
