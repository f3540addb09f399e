"""device/buffers.py on a device whose memory the host cannot reach: which bytes are copied, and how often."""
import numpy as np
import pytest
from tests.support import child, cuda_stub
from tests.tools.kernel_cases import missing

pytestmark = pytest.mark.skipif(bool(missing("CUDA:sm_89")), reason=missing("CUDA:sm_89"))

def copied() -> list:
  """Fills and reads buffers on the tests' CUDA stub: whether reads are right, and the bytes that each call copies."""
  cuda_stub.install()
  from tinygrad import Tensor, dtypes
  from tinygrad.device import Buffer
  from tinygrad.runtime.autogen import cuda
  from tinygrad_llm.device import buffers
  counted = list[int]()
  for name in ("cuMemcpyHtoDAsync_v2", "cuMemcpyDtoH_v2"):
    stock = getattr(cuda, name)
    def call(to, source, n, *rest, stock=stock):
      counted.append(int(n))
      return stock(to, source, n, *rest)
    setattr(cuda, name, call)
  rows, wanted = buffers.empty((6, 5), dtypes.int32), np.arange(30, dtype=np.int32).reshape(6, 5)
  def write(memory: np.ndarray) -> None: memory[:] = wanted
  buffers.fill(rows, write)
  whole, two, none = (buffers.read(rows, n, 5).copy() for n in (6, 2, 0))
  first = buffers.read(rows, 4, 3)
  again = buffers.read(rows, 1, 5)
  other = buffers.empty((6, 5), dtypes.int32)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(Buffer, "copy_from", None)  # nothing is scheduled
    buffers.copy(other, rows)
  return [buffers.read(other, 6, 5).tolist() == wanted.tolist(),
          whole.tolist() == wanted.tolist(), two.tolist() == wanted[:2].tolist(), none.shape == (0, 5),
          first.tolist() == wanted[:4, :3].tolist(), np.shares_memory(first, again), counted,
          Tensor(wanted).numpy().tolist() == wanted.tolist()]

def test_only_requested_part_is_copied() -> None:
  *right, counted, last = child.call(copied, DEV="CUDA").value
  assert all(right) and last
  assert counted[:5] == [120, 120, 40, (3 * 5 + 3) * 4, 20]
