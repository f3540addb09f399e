"""tests/support/cuda_stub.py: the stub driver defers work, and refuses what a real driver refuses."""
import ctypes
import random

import pytest
from tests.support.cuda_stub import (CHOICES, INVALID_HANDLE, INVALID_PTX, INVALID_VALUE, LOST, NEW_PTX, NO_BINARY,
  NO_CARD, NO_MEMORY, NO_RESOURCES, NOT_FOUND, NOT_READY, Driver, functions, kernels)
from tinygrad.runtime.autogen import cuda

PTX = """.version 8.5
.target sm_80
.address_size 64
.visible .entry add(
	.param .u64 .ptr .align 1 add_param_0,
	.param .u64 add_param_1,
	.param .u8 add_param_2,
	.param .u32 add_param_3
)
.maxntid 64, 2, 1
{
	.shared .align 16 .b8 buf0[1024];
	.shared .align 4 .f32 buf1[16];
	ret;
}
.visible .entry none()
{
	ret;
}
"""

class Card:
  """The stub's functions called as tinygrad calls them, with ctypes arguments."""
  def __init__(self, **options):
    self.driver = Driver(**options)
    self.call = functions(self.driver)

  def made(self, name, kind, *args):
    code = self.call[name](ctypes.byref(out := kind()), *args)
    assert code == 0, (name, code)
    return out

  def memory(self, nbytes): return self.made("cuMemAlloc_v2", cuda.CUdeviceptr, nbytes)
  def pinned(self, nbytes): return self.made("cuMemHostAlloc", ctypes.c_void_p, nbytes, 1)

  def read(self, source, nbytes):
    buffer = ctypes.create_string_buffer(nbytes)
    return self.call["cuMemcpyDtoH_v2"](ctypes.addressof(buffer), source, nbytes), buffer.raw

  def kernel(self, ptx=PTX, name=b"add"):
    module = self.made("cuModuleLoadData", cuda.CUmodule, ptx.encode())
    return self.made("cuModuleGetFunction", cuda.CUfunction, module, name)

def arguments(*words, nbytes=24):
  """Launch arguments as ops_cuda.encode_args makes them, and the objects that keep them alive."""
  data, size = (ctypes.c_uint64 * 3)(*words), ctypes.c_size_t(nbytes)
  at = [ctypes.c_void_p(1), ctypes.cast(data, ctypes.c_void_p), ctypes.c_void_p(2),
        ctypes.cast(ctypes.pointer(size), ctypes.c_void_p), ctypes.c_void_p(0)]
  return (ctypes.c_void_p * 5)(*at), (data, size)

def test_kernel_entries_are_parsed():
  found = kernels(PTX)
  assert found["add"].arguments == ((0, 8), (8, 8), (16, 1), (20, 4)) and found["add"].nbytes == 24
  assert (found["add"].threads, found["add"].shared) == (128, 1024 + 64)
  assert (found["none"].nbytes, found["none"].threads, found["none"].shared) == (0, 1024, 0)

def test_asynchronous_copy():
  """Pinned memory is read at the next wait, pageable memory during the call."""
  card = Card()
  to, source = card.memory(16), card.pinned(16)
  assert source.value < card.driver.FAR < to.value  # the host cannot use it
  ctypes.memset(source.value, 1, 16)
  pageable = ctypes.create_string_buffer(b"\1" * 8, 8)
  assert card.call["cuMemcpyHtoDAsync_v2"](to, source, 16, None) == 0
  assert card.call["cuMemcpyHtoDAsync_v2"](cuda.CUdeviceptr(to.value + 8), ctypes.addressof(pageable), 8, None) == 0
  ctypes.memset(source.value, 2, 16)
  ctypes.memset(ctypes.addressof(pageable), 2, 8)
  assert card.read(to, 16) == (0, b"\2" * 8 + b"\1" * 8)

def test_event_waits_for_earlier_work():
  card = Card()
  to, source, first, last = card.memory(8), card.pinned(8), *(card.made("cuEventCreate", cuda.CUevent, 0) for _ in "ab")
  milliseconds = ctypes.byref(ctypes.c_float())
  for event, byte in ((first, 1), (last, 2)):
    ctypes.memset(source.value, byte, 8)
    card.call["cuMemcpyHtoDAsync_v2"](to, source, 8, None)
    assert card.call["cuEventRecord"](event, None) == 0
    if event is first: assert card.call["cuEventSynchronize"](first) == 0
  assert card.driver._memory[to.value][0][:8] == b"\1" * 8
  assert card.call["cuEventElapsedTime"](milliseconds, first, last) == NOT_READY
  assert card.call["cuCtxSynchronize"]() == 0
  assert card.call["cuEventElapsedTime"](milliseconds, first, last) == 0 and milliseconds._obj.value > 0
  assert card.read(to, 8) == (0, b"\2" * 8)

@pytest.mark.parametrize("sizes, shared, code", [
  ((1, 1, 1, 128, 1, 1), 0, 0), ((2**31 - 1, 65535, 65535, 64, 2, 1), 0, 0),
  ((1, 1, 1, 1, 1, 1), 47 << 10, INVALID_VALUE),
  ((0, 1, 1, 1, 1, 1), 0, INVALID_VALUE), ((1, 65536, 1, 1, 1, 1), 0, INVALID_VALUE),
  ((1, 1, 1, 0, 1, 1), 0, INVALID_VALUE), ((1, 1, 1, 1, 1, 65), 0, INVALID_VALUE),
  ((1, 1, 1, 1024, 2, 1), 0, INVALID_VALUE), ((1, 1, 1, 129, 1, 1), 0, NO_RESOURCES)])
def test_launch_validation(sizes, shared, code):
  """A launch is accepted or refused alike by itself, as a new graph node, and as a changed node."""
  card = Card()
  kernel, (words, kept) = card.kernel(), arguments()
  assert card.call["cuLaunchKernel"](kernel, *sizes, shared, None, None, words) == code
  graph = card.made("cuGraphCreate", cuda.CUgraph, 0)
  def params(*of): return ctypes.byref(cuda.CUDA_KERNEL_NODE_PARAMS_v1(kernel, *of, ctypes.cast(0, ctypes.POINTER(
    ctypes.c_void_p)), words))
  node = cuda.CUgraphNode()
  assert card.call["cuGraphAddKernelNode"](ctypes.byref(node), graph, None, 0, params(*sizes, shared)) == code
  if code: card.call["cuGraphAddKernelNode"](ctypes.byref(node), graph, None, 0, params(1, 1, 1, 1, 1, 1, 0))
  instance = card.made("cuGraphInstantiate_v2", cuda.CUgraphExec, graph, None, None, 0)
  assert card.call["cuGraphExecKernelNodeSetParams"](instance, node, params(*sizes, shared)) == code
  assert card.call["cuGraphLaunch"](instance, None) == 0 and card.call["cuCtxSynchronize"]() == 0
  assert card.driver.launches == (1 if code else 2) and kept

def test_kernel_arguments_are_copied_at_launch():
  card = Card()
  keys, other = card.memory(CHOICES), card.memory(16)
  words, kept = arguments(other.value, keys.value)
  assert card.call["cuLaunchKernel"](card.kernel(), 1, 1, 1, 1, 1, 1, 0, None, None, words) == 0
  kept[0][1] = 0  # the launch has its own copy of the arguments
  assert card.read(keys, CHOICES) == (0, card.driver.word.to_bytes(8, "little") * 8)
  assert card.read(other, 16) == (0, bytes(16))
  short, kept = arguments(nbytes=16)
  assert card.call["cuLaunchKernel"](card.kernel(), 1, 1, 1, 1, 1, 1, 0, None, None, short) == INVALID_VALUE and kept

def test_memory_limits():
  """After any allocations and frees, the driver's count equals the memory held, and never exceeds the limit."""
  rng, card = random.Random(3), Card(memory=4000, pinned=3000)
  for alloc, free, kind, most, used in (
      ("cuMemAlloc_v2", "cuMemFree_v2", cuda.CUdeviceptr, 4000, lambda: card.driver.used),
      ("cuMemHostAlloc", "cuMemFreeHost", ctypes.c_void_p, 3000, lambda: card.driver.pinned_now)):
    held, flags = {}, () if kind is cuda.CUdeviceptr else (1,)
    for _ in range(200):
      if held and rng.random() < 0.4:
        address = rng.choice([*held])
        assert card.call[free](kind(address)) == 0
        del held[address]
      else:
        code = card.call[alloc](ctypes.byref(out := kind()), nbytes := rng.randrange(1, 1500), *flags)
        assert code == (NO_MEMORY if sum(held.values()) + nbytes > most else 0)
        if not code: held[out.value] = nbytes
      assert used() == sum(held.values())
  assert 2500 < card.driver.most_pinned <= 3000 < card.driver.most_used <= 4000
  assert card.call["cuMemFree_v2"](cuda.CUdeviceptr(12345)) == INVALID_VALUE
  assert card.call["cuMemAlloc_v2"](ctypes.byref(cuda.CUdeviceptr()), 0) == INVALID_VALUE
  inside = card.memory(10)
  assert [card.read(inside, n)[0] for n in (10, 11)] == [0, INVALID_VALUE]

def test_injected_errors():
  card = Card(lose_at=2)
  kernel, (words, kept) = card.kernel(), arguments()
  launches = [card.call["cuLaunchKernel"](kernel, 1, 1, 1, 1, 1, 1, 0, None, None, words) for _ in range(3)]
  assert launches == [0, 0, 0] and kept  # the loss shows at the next wait
  assert card.call["cuCtxSynchronize"]() == card.call["cuCtxSynchronize"]() == LOST
  assert card.call["cuMemAlloc_v2"](ctypes.byref(cuda.CUdeviceptr()), 8) == LOST
  card.driver.revive()
  card.driver.no_memory_at = card.driver.allocations + 2
  codes = [card.call["cuMemAlloc_v2"](ctypes.byref(cuda.CUdeviceptr()), 8) for _ in range(3)]
  assert codes == [0, NO_MEMORY, NO_MEMORY]
  card.driver.fail["cuEventCreate"] = 46
  assert card.call["cuEventCreate"](ctypes.byref(cuda.CUevent()), 0) == 46

def test_module_loading():
  def load(image, **options): return Card(**options).call["cuModuleLoadData"](ctypes.byref(cuda.CUmodule()), image)
  ptx = PTX.encode()
  assert [load(ptx), load(ptx, ptx=85), load(ptx, ptx=84), load(ptx, arch=75)] == [0, 0, NEW_PTX, NO_BINARY]
  assert [load(b"\x7fELF"), load(b"nonsense")] == [NO_BINARY, INVALID_PTX]
  assert Card(cards=0).call["cuInit"](0) == NO_CARD
  card = Card()
  module = card.made("cuModuleLoadData", cuda.CUmodule, ptx)
  assert card.call["cuModuleGetFunction"](ctypes.byref(cuda.CUfunction()), module, b"sub") == NOT_FOUND
  assert card.call["cuGraphLaunch"](cuda.CUgraphExec(), None) == INVALID_HANDLE
