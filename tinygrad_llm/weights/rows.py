"""Reads the rows of a GGUF file's tensors into memory, packed as their type is held there."""
from __future__ import annotations
import sys, threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
import numpy as np
from tqdm import tqdm
from tinygrad_llm.files.gguf import GGUF, TensorInfo
from tinygrad_llm.patches.host.cores import threads
from tinygrad_llm.progress import tell
from tinygrad_llm.quants.table import pack, quant_type

READ = 1 << 20  # bytes of a read: rows that pack() must convert stay in the CPU's cache

class RowReader:
  """Reads rows with a few threads and shows a progress bar. The caller must close() it."""
  def __init__(self, file: GGUF, progress: bool):
    self.file = file
    self._total, self._done = sum(info.nbytes for info in file.tensors.values()), 0
    self.bar = tqdm(total=self._total, unit="B", unit_scale=True, desc="loading", file=sys.stderr, leave=False,
                    disable=None if progress else True)
    self.pool = ThreadPoolExecutor(min(4, threads()))  # page faults of fresh memory cost more than the reads
    self.local = threading.local()

  def close(self) -> None:
    self.pool.shutdown()
    self.bar.close()

  def read(self, infos: Sequence[TensorInfo], first: int, memory: np.ndarray) -> None:
    """Reads rows first.. of the tensors, one tensor after another, into memory (rows, ..); the rest becomes zeros."""
    memory = memory.reshape(len(memory), -1)
    jobs, before, end = [], -first, 0
    step = max(1, READ // memory[0].nbytes)
    for info in infos:
      count = prod(info.shape[:-1])
      start, end = max(before, 0), min(before + count, len(memory))
      jobs += [(info, i - before, memory[i:min(i + step, end)]) for i in range(start, end, step)]
      before += count
    memory[max(end, 0):] = 0
    for nbytes in self.pool.map(lambda job: self._read_part(*job), jobs):
      self.bar.update(nbytes)
      self._done += nbytes
      tell("weights", self._done, self._total)

  def _read_part(self, info: TensorInfo, row: int, out: np.ndarray) -> int:
    """Reads rows row.. of a tensor into out (rows, ..); returns how many bytes of the file they are."""
    qt, n = quant_type(info), info.shape[-1]
    size = qt.row_nbytes(n)
    info = replace(info, offset=info.offset + row * size, nbytes=len(out) * size)
    if out.nbytes == info.nbytes:
      self.file.read_into(info, out.view(np.uint8).data)
    else:
      staged = self._staging(info.nbytes)
      self.file.read_into(info, staged)
      pack(qt, staged, n, out)
    return info.nbytes

  def _staging(self, nbytes: int) -> memoryview:
    """The reading thread's own buffer: a fresh one for each read would cost its page faults each time."""
    if len(getattr(self.local, "staging", b"")) < nbytes: self.local.staging = bytearray(nbytes)
    return memoryview(self.local.staging)[:nbytes]
