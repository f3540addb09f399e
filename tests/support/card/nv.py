"""
tinygrad's NV device on the simulated GPU. The HCQ device, queues, packets and graphs are tinygrad's own. Our interface
replaces the kernel driver: it provides memory and executes the pushed commands.

A doorbell starts no work. Queued commands run when the host waits for a missing signal, or when the rings hold 16
entries, half as many as there are staging buffers for copies. Two channels, compute and copy, take turns in an order by
CARD_ORDER; each stops at a semaphore until it is released. Kernels run by block.c, as for CUDA.

Not simulated: the kernel driver's calls (nvidiactl, uvm), cubins and relocations (programs are PTX, as for tinygrad's
mock), windows and sizes of local memory, cache invalidation, page faults. Neither are several GPUs, video, profiling,
nor the fields of QMD that are not read below.
"""
import ctypes
import os
import pathlib
import re
import time
from typing import Any

from tinygrad.helpers import round_up
from tinygrad.runtime import ops_nv
from tinygrad.runtime.ops_nv import QMD, nv_gpu
from tinygrad.runtime.support.hcq import HCQBuffer, MMIOInterface

from tests.support.card.build import NAME

class Channel:
  """A ring of pushed commands and its read position."""
  def __init__(self, ring: MMIOInterface, entries: int, put: MMIOInterface):
    self.ring, self.entries, self.put, self.get = ring, entries, put, 0
    self.words, self.state = list[int](), dict[tuple[int, int], int]()
  def waiting(self) -> int: return (self.put[0] - self.get) % self.entries + bool(self.words)

class Doorbell:
  """The doorbell registers, which each submission writes to."""
  def __init__(self, interface: "Interface"): self.interface = interface
  def __setitem__(self, register: int, token: int) -> None:
    if sum(c.waiting() for c in self.interface.channels) >= 16: self.interface.run()

class Meta:
  hMemory = 1

class Interface(ops_nv.MOCKIface):
  """NVDevice's interface to the kernel driver, simulated."""
  def __init__(self, dev: Any, device_id: int):
    if device_id: raise RuntimeError("the stand-in is one card")
    self.dev, self.root, self.gpu_instance, self.handles = dev, 1, 0, 1
    self.compute_class, self.dma_class = nv_gpu.AMPERE_COMPUTE_B, nv_gpu.AMPERE_DMA_COPY_B
    self.gpfifo_class, self.viddec_class = nv_gpu.AMPERE_CHANNEL_GPFIFO_A, None
    self.lib = ctypes.CDLL(str(pathlib.Path(os.environ["CARD_CACHE"]).parent / NAME))
    for name in ("card_allocate", "card_host", "card_reserve"): getattr(self.lib, name).restype = ctypes.c_uint64
    self.check(self.lib.cuInit(0))
    self.channels, self.kernels, self.running = list[Channel](), dict[int, int](), False

  def check(self, status: int) -> None:
    if status:
      self.lib.card_findings.restype = ctypes.c_char_p
      raise RuntimeError(f"the stand-in: error {status}: {self.lib.card_findings().decode()}")

  # *** what the driver gives
  def rm_alloc(self, parent: int, clss: int, params: Any = None, root: Any = None) -> int:
    self.handles += 1
    return self.handles
  def rm_control(self, obj: int, cmd: int, params: Any = None, **kwargs: Any) -> Any:
    if cmd == nv_gpu.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN: params.workSubmitToken = obj
    if cmd == nv_gpu.NV2080_CTRL_CMD_GR_GET_INFO:
      sm = int(os.environ.get("CARD_SM", "80"))
      has = {"SM_VERSION": sm // 10 << 8 | sm % 10, "LITTER_NUM_GPCS": 1, "LITTER_NUM_TPC_PER_GPC": 1,
             "LITTER_NUM_SM_PER_TPC": 1, "MAX_WARPS_PER_SM": 32}
      known = {getattr(nv_gpu, f"NV2080_CTRL_GR_INFO_INDEX_{k}"): v for k, v in has.items()}
      infos = (nv_gpu.NV2080_CTRL_GR_INFO * params.grInfoListSize).from_address(params.grInfoList)
      for info in infos: info.data = known[info.index]
    return params
  def setup_usermode(self) -> tuple[int, Doorbell]: return 0, Doorbell(self)
  def setup_vm(self, vaspace: int) -> None: pass
  def setup_gpfifo_vm(self, gpfifo: int) -> None: pass
  def sleep(self, tm: int) -> None: self.run()

  # *** memory
  def alloc(self, size: int, host=False, uncached=False, cpu_access=False, cpu_addr=None, **kwargs: Any) -> HCQBuffer:
    """
    Allocates staging buffers (host) at host addresses, and one page for uncached memory, where only errors are written.

    Everything else is device memory, signals (host, cpu_access) included, because a QMD holds 40-bit addresses.
    """
    if cpu_addr is not None: at = view = cpu_addr
    elif (host or uncached) and not cpu_access:
      at = view = self.lib.card_reserve(ctypes.c_uint64(size if host else 4096))
    else:
      if not (at := self.lib.card_allocate(ctypes.c_uint64(size))): raise MemoryError(f"{size} bytes")
      view = self.lib.card_host(ctypes.c_uint64(at))
    return HCQBuffer(at, size, meta=Meta(), view=MMIOInterface(view, size), owner=self.dev)
  def free(self, mem: HCQBuffer) -> None:
    if mem.owner is not self.dev or mem.va_addr >= 1 << 40: return
    self.check(self.lib.card_release(ctypes.c_uint64(mem.va_addr)))
  def map(self, mem: HCQBuffer) -> HCQBuffer: return HCQBuffer(mem.va_addr, mem.size, meta=Meta(), owner=mem.owner)
  def view(self, at: int, size: int) -> MMIOInterface:
    return MMIOInterface(self.lib.card_host(ctypes.c_uint64(at)) if at < 1 << 40 else at, size)

  # *** what is pushed
  def run(self) -> None:
    """Runs both channels until neither can proceed."""
    if self.running: return
    self.running = True
    try:
      if not self.channels:
        fifos = self.dev.compute_gpfifo, self.dev.dma_gpfifo
        self.channels += [Channel(f.ring, f.entries_count, f.gpput) for f in fifos]
      order = self.channels[::-1] if os.environ.get("CARD_ORDER") == "1" else self.channels
      while sum(self.advance(c) for c in order): pass
    finally: self.running = False

  def advance(self, c: Channel) -> bool:
    """Executes the packets of a channel's next entry until a semaphore stops it. Returns whether any were executed."""
    if not c.words and c.get != c.put[0]:
      entry = c.ring[c.get]
      c.get, at, count = (c.get + 1) % c.entries, entry & ((1 << 40) - 4), entry >> 42
      c.words = self.view(at, 4 * count).view(fmt="I")[:]
    moved = False
    while c.words:
      head = c.words[0]
      count, sub, method = head >> 16 & 0xfff, head >> 13 & 7, (head & 0x1fff) << 2
      for i, value in enumerate(c.words[1:1 + count]): c.state[sub, method + 4 * i] = value
      if not self.execute(c, sub, method + 4 * (count - 1)): return moved
      c.words, moved = c.words[1 + count:], True
    return moved

  def execute(self, c: Channel, sub: int, method: int) -> bool:
    """Executes the last method of a packet. Returns False if it must wait. RuntimeError if the method is unknown."""
    def wide(low: int, high: int) -> int: return c.state[sub, low] | c.state[sub, high] << 32
    if (sub, method) == (0, nv_gpu.NVC56F_SEM_EXECUTE):
      lo = nv_gpu.NVC56F_SEM_ADDR_LO
      return self.semaphore(wide(lo, lo + 4), wide(lo + 8, lo + 12), c.state[sub, method])
    if (sub, method) == (1, nv_gpu.NVC6C0_SEND_SIGNALING_PCAS2_B):
      self.grid(c.state[1, nv_gpu.NVC6C0_SEND_PCAS_A] << 8)
    elif (sub, method) == (4, nv_gpu.NVC6B5_LAUNCH_DMA):
      up, flags = nv_gpu.NVC6B5_OFFSET_IN_UPPER, c.state[sub, method]
      if flags >> nv_gpu.NVC6B5_LAUNCH_DMA_DATA_TRANSFER_TYPE[1] & 3:
        self.check(self.lib.card_copy(*map(ctypes.c_uint64, (wide(up + 12, up + 8), wide(up + 4, up),
                                                             c.state[sub, nv_gpu.NVC6B5_LINE_LENGTH_IN]))))
      if flags >> nv_gpu.NVC6B5_LAUNCH_DMA_SEMAPHORE_TYPE[1] & 3:
        a = nv_gpu.NVC6B5_SET_SEMAPHORE_A
        self.release(wide(a + 4, a), c.state[sub, a + 8])
    elif (sub, method) not in QUIET:
      raise RuntimeError(f"the stand-in: method {method:#x} of subchannel {sub} is not known")
    return True

  def semaphore(self, at: int, value: int, how: int) -> bool:
    operation, now = how & 7, self.view(at, 8).view(fmt="Q")[0]
    if operation == nv_gpu.NVC56F_SEM_EXECUTE_OPERATION_ACQ_CIRC_GEQ: return now >= value
    if operation != nv_gpu.NVC56F_SEM_EXECUTE_OPERATION_RELEASE: raise RuntimeError(f"the stand-in: semaphore {how:#x}")
    if how >> nv_gpu.NVC56F_SEM_EXECUTE_PAYLOAD_SIZE[1] & 1: self.release(at, value)
    else: self.view(at, 4).view(fmt="I")[0] = value & 0xffffffff
    return True
  def release(self, at: int, value: int) -> None:
    memory = self.view(at, 16).view(fmt="Q")
    memory[0], memory[1] = value, time.perf_counter_ns()

  def grid(self, at: int) -> None:
    """Runs the launch of a QMD, releases its signals, and runs the launches that depend on it."""
    qmd = QMD(self.dev, view=self.view(at, 256))
    def two(name: str, tail: str = "") -> int:
      return qmd.read(f"{name}_upper{tail}") << 32 | qmd.read(f"{name}_lower{tail}")
    constants = two("constant_buffer_addr", "_0")
    words = self.view(constants, 0x160).view(fmt="I")
    count = words[80] + words[81]
    values = (ctypes.c_uint64 * max(count, 1))(*self.view(constants + 0x160, 8 * count).view(fmt="Q")[:])
    grid = (ctypes.c_uint * 3)(*(qmd.read(f"cta_raster_{x}") for x in ("width", "height", "depth")))
    block = (ctypes.c_uint * 3)(*(qmd.read(f"cta_thread_dimension{i}") for i in range(3)))
    self.check(self.lib.card_launch(ctypes.c_void_p(self.kernel(two("program_address"))), grid, block, values, count))
    for i in range(2):
      if qmd.read(f"release{i}_enable"): self.release(two(f"release{i}_address"), two(f"release{i}_payload"))
    if qmd.read("dependent_qmd0_enable"): self.grid(qmd.read("dependent_qmd0_pointer") << 8)

  def kernel(self, program: int) -> int:
    """The kernel of the PTX at an address. It is cached: addresses are never reused."""
    if program not in self.kernels:
      ptx = ctypes.string_at(self.lib.card_host(ctypes.c_uint64(program)))
      module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
      self.check(self.lib.cuModuleLoadData(ctypes.byref(module), ptx))
      name = re.search(rb"\.entry\s+([\w$]+)", ptx)
      self.check(self.lib.cuModuleGetFunction(ctypes.byref(kernel), module, name[1] if name else b""))
      self.kernels[program] = kernel.value or 0
    return self.kernels[program]

# methods that set addresses or invalidate caches: nothing to execute
QUIET = {(0, nv_gpu.NVC56F_NON_STALL_INTERRUPT), (4, nv_gpu.NVC6C0_SET_OBJECT), (4, nv_gpu.NVC6B5_LINE_LENGTH_IN),
         (4, nv_gpu.NVC6B5_OFFSET_IN_UPPER + 12), (4, nv_gpu.NVC6B5_SET_SEMAPHORE_A + 8),
         (1, nv_gpu.NVC6C0_SEND_PCAS_A), (1, nv_gpu.NVC6C0_INVALIDATE_SHADER_CACHES_NO_WFI), *(
           (1, nv_gpu.__dict__[f"NVC6C0_{x}"]) for x in (
             "SET_OBJECT", "SET_SHADER_LOCAL_MEMORY_WINDOW_B", "SET_SHADER_SHARED_MEMORY_WINDOW_B",
             "SET_SHADER_LOCAL_MEMORY_B", "SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C"))}

def room_for_arguments(program: ops_nv.NVProgram) -> None:
  """Sizes the constant buffer for all arguments of a program: tinygrad's mock has room for 20, just before the QMD."""
  entry = re.search(rb"\.entry[^(]*\(([^)]*)\)", program.lib)
  size = 0x160 + 8 * (entry[1].count(b".param") if entry else 0)
  program.kernargs_alloc_size += round_up(size, 256) - round_up(0x160, 256)
  program.constbufs[0] = 0, size

def install() -> None:
  """Makes this interface the one of DEV=MOCK+NV; queued work runs when the host waits for a signal."""
  Interface.__name__ = "MOCKIface"
  ops_nv.MOCKIface, ops_nv.NVDevice.ifaces = Interface, [Interface]
  def run(signal: Any, spent: int) -> None:
    if signal.owner is not None: signal.owner.iface.run()
  ops_nv.NVSignal._sleep = run
  init = ops_nv.NVProgram.__init__
  def program(self: ops_nv.NVProgram, *args: Any, **kwargs: Any) -> None:
    init(self, *args, **kwargs)
    room_for_arguments(self)
  ops_nv.NVProgram.__init__ = program
