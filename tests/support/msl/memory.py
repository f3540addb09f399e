"""
Buffers of the executor, filled with 0xff (NaN) at first. Wide guard regions surround each buffer, so that an access
that misses its buffer cannot hit another one.
"""
import ctypes
import mmap
from typing import NamedTuple

PAGE = mmap.PAGESIZE
APART = 1 << 20  # bytes of the guard region on either side: addresses without memory
CELL = 12  # bytes of executor.cpp's Cell
ALIGNED = 16
NOBODY = 0  # PROT_NONE
_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

def protect(address: int, nbytes: int) -> None:
  """Makes pages inaccessible: any access to them ends the process."""
  if _mprotect(address, nbytes, NOBODY): raise OSError(ctypes.get_errno(), "mprotect")

def pages(nbytes: int) -> tuple[mmap.mmap, int]:
  """Whole pages of zeros, which take memory only once touched, and their address."""
  lazy = getattr(mmap, "MAP_NORESERVE", 0)
  held = mmap.mmap(-1, max(PAGE, -(-nbytes // PAGE) * PAGE), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | lazy)
  return held, ctypes.addressof(ctypes.c_char.from_buffer(held))

class Memory:
  """`size` bytes that end at most 15 bytes before a guard page. `cells`: the address of their executor.cpp Cells."""
  def __init__(self, size: int):
    self.size, inside = size, -(-size // PAGE) * PAGE
    self._held, first = pages(inside + 2 * APART)
    self._cells, self.cells = pages(size * CELL)
    self.address = (first + APART + inside - size) // ALIGNED * ALIGNED
    for at in (first, first + APART + inside): protect(at, APART)
    ctypes.memset(self.address, 0xff, size)

class View(NamedTuple):
  """A range of a Memory. A kernel that gets it as an argument may access only this range."""
  memory: Memory
  offset: int
  size: int

  @property
  def address(self) -> int: return self.memory.address + self.offset

  def bytes(self) -> memoryview:
    """The bytes; the view keeps their memory alive."""
    found = (ctypes.c_uint8 * self.size).from_address(self.address)
    found.memory = self.memory  # type: ignore[attr-defined]
    return memoryview(found).cast("B")

def view(size: int) -> View: return View(Memory(size), 0, size)
