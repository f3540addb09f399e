"""A thread that reads and writes blocks of KV on disk, so that no step waits for a disk."""
from __future__ import annotations
import atexit, threading, time, weakref
from collections import deque
from collections.abc import Callable
from functools import partial
import numpy as np
from tinygrad_llm.engine.prefixes.prefix_files import Block
from tinygrad_llm.engine.prefixes.prefix_store import PrefixStore
from tinygrad_llm.process.forks import in_children

MOST = 128 << 20  # bytes of blocks in host memory that wait to be written; likewise that a reader has not taken yet
PATIENCE = 10.0   # seconds that the end of a process waits for writes

class Reading:
  """The blocks of a prompt on disk, on their way to a reader: as many as there are, in order."""
  def __init__(self, blocks: list[Block]):
    self.blocks, self.got, self.ended, self.dropped = blocks, deque[np.ndarray](), False, False

class DiskThread:
  """
  Reads and writes of a store, one after the other, reads first. Any thread may ask. The thread ends where it has
  nothing to do, and a fork of the process has none.

  wake: called by the thread after each block that it read or wrote. finish: called by close(), to write the rest.
  """
  def __init__(self, store: PrefixStore):
    self.store = store
    self.wake: Callable[[], None] = _nothing
    self.finish: Callable[[], None] = _nothing
    self._reset()
    self._at_exit = partial(_close, weakref.ref(self))
    atexit.register(self._at_exit)
    in_children(self, DiskThread._reset)

  def _reset(self) -> None:
    self._thread: threading.Thread | None = None
    self._lock = threading.RLock()
    self._changed = threading.Condition(self._lock)  # the lock is taken by itself, see batch.engine
    self._reads, self._writes = deque[Reading](), deque[tuple[Block, Block | None, np.ndarray]]()
    self._waiting = set[str]()          # names of blocks in _writes
    self._end: float | None = None      # time.monotonic() when close() waits no more

  def read(self, blocks: list[Block]) -> Reading:
    """Begins to read blocks, each behind the one before it, up to the first that is missing or bad."""
    with self._lock:
      self._reads.append(reading := Reading(blocks))
      self._start()
    return reading

  def take(self, reading: Reading) -> np.ndarray | None:
    """The next block's KV of a reading; None: it is not there yet, or no more follow."""
    with self._lock:
      self._changed.notify_all()
      return reading.got.popleft() if reading.got else None

  def drop(self, reading: Reading) -> None:
    """The rest of a reading is not wanted."""
    with self._lock:
      reading.dropped = True
      self._changed.notify_all()

  def has_room(self) -> bool:
    """Whether a block can be handed over at once."""
    return (len(self._writes) + 1) * self.store.nbytes <= MOST or not self._writes

  def keep(self, blocks: list[Block], kv: Callable[[int], np.ndarray | None], waits: bool = False) -> bool:
    """
    Hands over the blocks of a prompt that are not on disk; False: there is no room for all of them.

    kv: a block's KV by its place. None: it is gone, and no block behind it is written, either.
    waits: for room, at the end of the process or the model, see close().
    """
    if waits: self._ends()
    for i, block in enumerate(blocks):
      if block.name in self._waiting or self.store.has_good(block): continue
      if self.store.gave_up: return True
      if not (self._waited() if waits else self.has_room()): return False
      if (data := kv(i)) is None: return True
      write = block, blocks[i - 1] if i else None, data
      with self._lock:
        self._writes.append(write)
        self._waiting.add(block.name)
        self._start()
    return True

  def _waited(self) -> bool:
    """Waits for room."""
    with self._lock: return self._changed.wait_for(self.has_room, self._ends())

  def _ends(self) -> float:
    """Seconds that are left for writes, from the first call on."""
    if self._end is None: self._end = time.monotonic() + PATIENCE
    return max(0.0, self._end - time.monotonic())

  def close(self) -> None:
    """Lets the model write the rest, and waits for writes, at most PATIENCE seconds."""
    atexit.unregister(self._at_exit)
    self._ends()
    self.finish()
    with self._lock:
      self._changed.wait_for(lambda: not self._writes, self._ends())
      self._writes.clear()

  def _start(self) -> None:
    if self._thread is None:
      self._thread = threading.Thread(target=self._run, name="tinygrad_llm prompt cache", daemon=True)
      self._thread.start()
    self._changed.notify_all()

  def _run(self) -> None:
    while True:
      with self._lock:
        if not self._reads and not self._writes:
          self._thread = None
          return
        reading, write = (self._reads[0] if self._reads else None), (self._writes[0] if self._writes else None)
      try:
        if reading is not None: self._read(reading)
        elif write is not None: self.store.write(*write)
      finally:
        with self._lock:
          if reading is not None:
            reading.ended = True
            if reading in self._reads: self._reads.remove(reading)
          elif write is not None:
            if self._writes: self._writes.popleft()
            self._waiting.discard(write[0].name)
          self._changed.notify_all()
        self.wake()

  def _read(self, reading: Reading) -> None:
    last = None
    for block in reading.blocks:
      if reading.dropped or (kv := self.store.read(block)) is None: break
      last = block
      with self._lock:
        reading.got.append(kv)
        self._changed.wait_for(lambda: reading.dropped or len(reading.got) * self.store.nbytes <= MOST)
      self.wake()
    if last is not None: self.store.touch(last)

def _nothing() -> None: pass

def _close(thread: weakref.ref[DiskThread]) -> None:
  if (found := thread()) is not None: found.close()
