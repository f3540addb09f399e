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
    self._changed, self._thread = threading.Condition(), None  # type: threading.Condition, threading.Thread | None
    self._reads, self._writes = deque[Reading](), deque[tuple[Block, Block | None, np.ndarray]]()

  def read(self, blocks: list[Block]) -> Reading:
    """Begins to read blocks, each behind the one before it, up to the first that is missing or bad."""
    with self._changed:
      self._reads.append(reading := Reading(blocks))
      self._start()
    return reading

  def take(self, reading: Reading) -> np.ndarray | None:
    """The next block's KV of a reading; None: it is not there yet, or no more follow."""
    with self._changed:
      self._changed.notify_all()
      return reading.got.popleft() if reading.got else None

  def drop(self, reading: Reading) -> None:
    """The rest of a reading is not wanted."""
    with self._changed:
      reading.dropped = True
      self._changed.notify_all()

  def has_room(self) -> bool:
    """Whether write() would not wait."""
    return (len(self._writes) + 1) * self.store.nbytes <= MOST or not self._writes

  def write(self, block: Block, before: Block | None, kv: np.ndarray) -> None:
    """Keeps a block behind another one, some time later; waits while too much is to be written already."""
    with self._changed:
      self._changed.wait_for(self.has_room)
      self._writes.append((block, before, kv))
      self._start()

  def close(self) -> None:
    """Lets the model write the rest, and waits for writes, at most PATIENCE seconds."""
    atexit.unregister(self._at_exit)
    end = time.monotonic() + PATIENCE
    self.finish()
    with self._changed:
      self._changed.wait_for(lambda: not self._writes, max(0.0, end - time.monotonic()))
      self._writes.clear()

  def _start(self) -> None:
    if self._thread is None:
      self._thread = threading.Thread(target=self._run, name="tinygrad_llm prompt cache", daemon=True)
      self._thread.start()
    self._changed.notify_all()

  def _run(self) -> None:
    while True:
      with self._changed:
        if not self._reads and not self._writes:
          self._thread = None
          return
        reading, write = (self._reads[0] if self._reads else None), (self._writes[0] if self._writes else None)
      try:
        if reading is not None: self._read(reading)
        elif write is not None: self.store.write(*write)
      finally:
        with self._changed:
          if reading is not None:
            reading.ended = True
            if reading in self._reads: self._reads.remove(reading)
          elif self._writes: self._writes.popleft()
          self._changed.notify_all()
        self.wake()

  def _read(self, reading: Reading) -> None:
    last = None
    for block in reading.blocks:
      if reading.dropped or (kv := self.store.read(block)) is None: break
      last = block
      with self._changed:
        reading.got.append(kv)
        self._changed.wait_for(lambda: reading.dropped or len(reading.got) * self.store.nbytes <= MOST)
      self.wake()
    if last is not None: self.store.touch(last)

def _nothing() -> None: pass

def _close(thread: weakref.ref[DiskThread]) -> None:
  if (found := thread()) is not None: found.close()
