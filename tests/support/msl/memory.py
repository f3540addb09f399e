"""
Memory of the executor, 0xff at first, which is no number. Nobody may touch what is around it, which is wide: an access
that misses its buffer must not find another one.
"""
import ctypes
import mmap
from typing import NamedTuple

PAGE = mmap.PAGESIZE
APART = 1 << 20  # bytes on either side of a memory that are addresses alone
CELL = 12  # bytes of executor.cpp's Cell
ALIGNED = 16
NOBODY = 0  # PROT_NONE
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def protect(address: int, nbytes: int) -> None:
  """Whoever touches these pages from now on ends the process."""
  if _mprotect(address, nbytes, NOBODY): raise OSError(ctypes.get_errno(), "mprotect")

def pages(nbytes: int) -> tuple[mmap.mmap, int]:
  """Whole pages of zeros, which take memory once they are touched, and their address."""
  lazy = getattr(mmap, "MAP_NORESERVE", 0)
  held = mmap.mmap(-1, max(PAGE, -(-nbytes // PAGE) * PAGE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | lazy)
  return held, ctypes.addressof(ctypes.c_char.from_buffer(held))

class Memory:
  """`size` bytes that end at a page that is protected, or up to 15 bytes before it; cells: the address of theirs."""
  def __init__(self, size: int):
    self.size, inside = size, -(-size // PAGE) * PAGE
    self._held, first = pages(inside + 2 * APART)
    self._cells, self.cells = pages(size * CELL)
    self.address = (first + APART + inside - size) // ALIGNED * ALIGNED
    for at in (first, first + APART + inside): protect(at, APART)
    ctypes.memset(self.address, 0xff, size)

class View(NamedTuple):
  """Bytes of a memory; only they may be touched by a kernel that is given them."""
  memory: Memory
  offset: int
  size: int

  @property
  def address(self) -> int: return self.memory.address + self.offset

  def bytes(self) -> memoryview:
    """They stay as long as somebody has this."""
    found = (ctypes.c_uint8 * self.size).from_address(self.address)
    found.memory = self.memory  # type: ignore[attr-defined]
    return memoryview(found).cast("B")

def view(size: int) -> View: return View(Memory(size), 0, size)
