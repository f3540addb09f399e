"""host/pinned_copies.py: copies pin little memory and arrive right; they work without pinned memory, too."""
import random

from tests.support import child
import pytest
from tests.support.extended import sample
from tinygrad_llm.patches import is_on, load

pytestmark = pytest.mark.skipif(not is_on("pinned_copies"), reason="it is off")
MOST = 64 << 20

def copies(total: int, pinned: int, seed: int) -> dict:
  """
  Copies buffers of random sizes (`total` bytes and a bit more) to a stub GPU that reads as late as it may.

  Returns whether all arrived right, and counts of the driver's memory and calls.
  """
  from tests.support import cuda_stub
  driver = cuda_stub.install(pinned=pinned)
  import numpy as np
  from tinygrad.device import Buffer
  from tinygrad.dtype import dtypes
  rng, held, right = random.Random(seed), [], []
  numbers = np.random.default_rng(seed).integers(0, 2**32, total // 2, np.uint32)
  def is_right(buffer: Buffer, first: int, size: int) -> bool:
    return bytes(buffer.as_memoryview()) == numbers[first:first + size // 4 + 1].tobytes()[:size]
  while total > 0:
    size = rng.choice((1, 3, 250, 1000, 4 << 20, (16 << 20) - 64, 16 << 20, 35 << 20)) // rng.randrange(1, 3) or 1
    first = rng.randrange(1000)
    data = bytearray(numbers[first:first + size // 4 + 1].tobytes()[:size])
    buffer = Buffer("CUDA", size, dtypes.uint8).allocate()
    buffer.copy_from(Buffer("PYTHON", size, dtypes.uint8, opaque=memoryview(data)))
    held.append((buffer, first, size))
    data[:] = bytes(size)  # the copy must have read it
    if rng.random() < 0.1: buffer.allocator.dev.synchronize()
    if rng.random() < 0.2: right.append(is_right(*rng.choice(held)))  # while other copies are pending
    total -= size
  right += [is_right(*row) for row in held]
  return {"right": all(right), "copies": len(held), "most": driver.most_pinned, "used": driver.most_used,
          "waits": driver.calls["cuEventSynchronize"], "pageable": driver.calls["cuMemcpyHtoD_v2"]}

@pytest.mark.parametrize("pinned", sample([0, 20 << 20, 1 << 20], [0, 1 << 20]))
def test_pinned_memory_limit(pinned):
  """pinned: 0 means no limit; 20 MB allow one block, 1 MB allows none, and copies are pageable."""
  found = child.call(copies, 100 << 20, pinned, pinned % 7, DEV="CUDA").value
  assert found["right"] and found["copies"] > 10 and found["used"] > 100 << 20
  if pinned == 1 << 20: assert found["most"] == 0 and found["pageable"] == found["copies"]
  else: assert 0 < found["most"] <= (pinned or MOST) and found["waits"] > 3 and not found["pageable"]

def loaded(model: str, pinned: int) -> dict:
  """Loads a model of some MB: bytes on the GPU, pinned bytes, and bytes of the weights."""
  from tests.support import cuda_stub
  driver = cuda_stub.install(pinned=pinned)
  import tinygrad_llm
  llm = tinygrad_llm.load(model, max_context=64, chunk=16)
  return {"used": driver.used, "pinned": driver.most_pinned, "weights": sum(w.nbytes for w in llm.weights.values())}

def test_model_load_with_pinned_limits(model_file):
  """A model loads with no limit of pinned memory, and with less than the 8 bytes of a reader."""
  model = str(model_file(types="F16", vocab=20000, dim=1024, ffn=256, heads=8, kv_heads=2, layers=1, context=96))
  blocks = load("pinned_copies")
  for pinned in (0, 4):
    found = child.call(loaded, model, pinned, DEV="CUDA").value
    assert found["used"] > found["weights"] > 40e6
    assert found["pinned"] <= (pinned or blocks.BLOCK * blocks.BLOCKS + 16) < MOST
