"""Calls the simulated driver in this process, for its own tests: memory, kernels, graphs, driver errors."""
import contextlib
import ctypes
import os
from collections.abc import Iterator

import numpy as np

from tests.support.card import build

class CardError(Exception):
  """A driver call or launch failed. `status`: its CUresult; `found`: the simulator's findings."""
  def __init__(self, status: int, found: str):
    super().__init__(f"error {status}: {found}")
    self.status, self.found = status, found

class KernelNode(ctypes.Structure):
  _fields_ = [("kernel", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
              ("dynamic", ctypes.c_uint), ("each", ctypes.c_void_p), ("extra", ctypes.c_void_p)]

class Card:
  """A fresh simulated GPU: nothing allocated, nothing failed. Methods raise CardError."""
  def __init__(self, **settings: object):
    """Takes the settings of card/__init__.py without CARD_: Card(sm=75, order=1)."""
    self.env = build.settings() | {f"CARD_{k.upper()}": str(v) for k, v in settings.items()} | {"CARD_QUIET": "1"}
    self.lib = ctypes.CDLL(str(build.folder() / build.NAME))
    self.lib.card_findings.restype = ctypes.c_char_p
    self.lib.card_reset()
    self.call("cuInit", 0)

  @property
  def found(self) -> str: return self.lib.card_findings().decode()

  @contextlib.contextmanager
  def _environment(self) -> Iterator[None]:
    """Sets the CARD_ variables in os.environ, because the library reads them with getenv."""
    before = {k: os.environ.get(k) for k in self.env if k.startswith("CARD_")}
    for k in before: os.environ[k] = self.env[k]
    try: yield
    finally:
      for k, v in before.items():
        if v is None: os.environ.pop(k, None)
        else: os.environ[k] = v

  def status(self, name: str, *args: object) -> int:
    """The CUresult of a driver call."""
    with self._environment(): return getattr(self.lib, name)(*args)

  def call(self, name: str, *args: object) -> None:
    if status := self.status(name, *args): raise CardError(status, self.found)

  def _made(self, name: str, *args: object, kind: type = ctypes.c_uint64) -> int:
    self.call(name, ctypes.byref(value := kind()), *args)
    return value.value

  def buffer(self, data: np.ndarray | int) -> int:
    """The address of a new buffer that holds an array, or of that many uninitialised bytes."""
    at = self._made("cuMemAlloc_v2", ctypes.c_size_t(data if isinstance(data, int) else data.nbytes))
    if not isinstance(data, int): self.upload(at, data)
    return at
  def upload(self, at: int, data: np.ndarray) -> None:
    data = np.ascontiguousarray(data)
    self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(at), ctypes.c_void_p(data.ctypes.data),
              ctypes.c_size_t(data.nbytes), None)
  def read(self, at: int, like: np.ndarray) -> np.ndarray:
    out = np.empty_like(like)
    self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), ctypes.c_uint64(at), ctypes.c_size_t(out.nbytes))
    return out
  def synchronize(self) -> None: self.call("cuCtxSynchronize")

  def kernels(self, ptx: str, names: list[str]) -> list[int]:
    module = ctypes.c_void_p(self._made("cuModuleLoadData", ptx.encode()))
    return [self._made("cuModuleGetFunction", module, name.encode()) for name in names]
  def kernel(self, ptx: str) -> int:
    """The kernel named k of a PTX module."""
    return self.kernels(ptx, ["k"])[0]

  def _extra(self, args: tuple[int, ...]) -> ctypes.Array:
    """Arguments of 8 bytes each as the `extra` array of a launch."""
    self._kept = (ctypes.c_int64 * len(args))(*args), ctypes.c_size_t(8 * len(args))
    return (ctypes.c_void_p * 5)(1, ctypes.addressof(self._kept[0]), 2, ctypes.addressof(self._kept[1]), 0)
  def launch(self, kernel: int, *args: int, grid: tuple[int, ...] = (1, 1, 1), block: tuple[int, ...] = (32, 1, 1),
             dynamic: int = 0) -> None:
    self.call("cuLaunchKernel", ctypes.c_void_p(kernel), *grid, *block, dynamic, None, None, self._extra(args))

  # *** graphs
  def node(self, kernel: int, *args: int, grid: tuple[int, ...] = (1, 1, 1), block: tuple[int, ...] = (32, 1, 1)
           ) -> KernelNode:
    extra = self._extra(args)
    node = KernelNode(kernel, grid, block, 0, None, ctypes.cast(extra, ctypes.c_void_p))
    node.kept = self._kept, extra  # type: ignore[attr-defined]
    return node
  def graph(self, *nodes: tuple[KernelNode, tuple[int, ...]]) -> int:
    """An executable graph of (node, indices of the nodes that it depends on); the nodes' handles are 1, 2, .."""
    graph = self._made("cuGraphCreate", 0)
    for node, after in nodes:
      edges = (ctypes.c_uint64 * len(after))(*(i + 1 for i in after))
      self._made("cuGraphAddKernelNode", ctypes.c_void_p(graph), edges, ctypes.c_size_t(len(after)), ctypes.byref(node))
    return self._made("cuGraphInstantiate_v2", ctypes.c_void_p(graph), None, None, ctypes.c_size_t(0))
  def set_node(self, graph: int, handle: int, node: KernelNode) -> None:
    self.call("cuGraphExecKernelNodeSetParams", ctypes.c_void_p(graph), ctypes.c_uint64(handle), ctypes.byref(node))
  def launch_graph(self, graph: int) -> None: self.call("cuGraphLaunch", ctypes.c_void_p(graph), None)

def nvrtc(source: str, arch: str = "sm_80") -> str:
  """Compiles CUDA C to PTX."""
  from tinygrad_llm.device.cuda import find_cuda
  find_cuda()
  from tinygrad.runtime.support.compiler_cuda import NVRTCCompiler
  return NVRTCCompiler(arch).compile(source).decode().rstrip("\0")
