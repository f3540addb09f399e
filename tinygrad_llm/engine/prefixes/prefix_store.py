"""
Blocks of KV in a folder that processes share. A file holds the keys and values of 64 tokens in all layers.

A file is named by a hash of its tokens and all tokens before them, from the model's identity on. So files of other
models and versions lie beside it and are never met. A file appears by a rename and carries the SHA-256 of its contents.
No error of the disk reaches the caller: a bad file counts as none, and the first one is reported. So is the first error
that keeps a file from being written; this process then writes nothing more.

Prompts are private: a folder that is made here has mode 0700. Write access to it is the right to change answers.
"""
from __future__ import annotations
import contextlib, hashlib, io, itertools, os, pathlib, struct, time
from collections.abc import Iterable, Iterator
import numpy as np
from tinygrad_llm.engine.prefixes.prefix_files import FIRST, FRESH, Block, ends_first, files_of
from tinygrad_llm.errors import warn
from tinygrad_llm.nn.cache.place import BLOCK

VERSION = 1  # of a file's format
HEADER = struct.Struct("<8s32s32s40s")  # magic, SHA-256 of all that follows, identity, the parent's name
MAGIC = b"prefix%02d" % VERSION
IDS = BLOCK * 4   # bytes of token ids, which follow the header
HOUR = 3600 * 10**9
ONES = 0x7c00     # exponent bits of halves, all of them set in NaN and infinity

class PrefixStore:
  """
  A folder with blocks of one model, and perhaps of others.

  identity: all that KV depends on beside its tokens, 32 bytes. nbytes: of a block's KV. budget: bytes of all files in
  the folder, also of other models. Paths that were not used for longest go first, from their ends. Each process leaves
  an eighth free, and looks at the folder again after it has written a 32nd.
  """
  def __init__(self, folder: pathlib.Path, identity: bytes, nbytes: int, budget: int):
    self.folder, self.identity, self.nbytes, self.budget = folder, identity, nbytes, budget
    self._good, self._bad, self._told, self._count = set[str](), set[str](), set[str](), itertools.count()
    self._size = self._unscanned = budget  # bytes in the folder; bytes written since it was scanned
    self.gave_up = False
    if self.size > self._limit: self._give_up(f"a block takes {self.size} bytes, {budget} are allowed")
    else:
      try: folder.mkdir(mode=0o700, parents=True, exist_ok=True)
      except OSError as e: self._give_up(e.strerror or str(e))

  @property
  def size(self) -> int:
    """Bytes of a file."""
    return HEADER.size + IDS + self.nbytes

  @property
  def _limit(self) -> int: return self.budget - self.budget // 8

  def chain(self, keys: Iterable[bytes]) -> Iterator[Block]:
    """A prompt's blocks from its first token on. keys: the ids of 64 tokens each, as prefix_tree.key() has them."""
    parent = FIRST
    for ids in keys:
      name = hashlib.sha256(self.identity + parent.encode() + ids).hexdigest()[:len(FIRST)]
      yield Block(name, parent, ids)
      parent = name

  def has(self, block: Block) -> bool:
    """Whether there is a file that has not turned out to be bad."""
    return block.file not in self._bad and os.path.exists(self.folder / block.file)

  def has_good(self, block: Block) -> bool:
    """Whether there is a file that this process has read or written."""
    return block.file in self._good and self.has(block)

  def read(self, block: Block) -> np.ndarray | None:
    """A block's KV, uint8 (nbytes,); None: there is no good file."""
    if not self.has(block): return None
    try: data = _contents(self.folder / block.file, self.size)
    except FileNotFoundError: return None
    except OSError as e:
      self._skip(block, f"cannot be read ({e.strerror})")
      return None
    if data is not None:
      head, kv = data[:HEADER.size + IDS], np.frombuffer(data, np.uint8, offset=HEADER.size + IDS)
      if head == self._head(block, kv):
        self._good.add(block.file)
        return kv
    self._skip(block, "is damaged, or of another version or model")
    return None

  def touch(self, block: Block) -> None:
    """Notes that a path of blocks is used, which ends with this one."""
    with contextlib.suppress(OSError): os.utime(self.folder / block.file)

  def write(self, block: Block, before: Block | None, kv: np.ndarray) -> None:
    """
    Keeps a block behind another one, if that one is there and there is room.

    kv: half-precision numbers. A block is not kept if any of them is not finite.
    """
    if self.gave_up or (kv.view(np.uint16) & ONES == ONES).any(): return
    if self.has_good(block) or self.read(block) is not None: return self.touch(block)
    if before is not None and not self.has(before): return
    if before is not None: self.touch(before)
    path = self.folder / block.file
    fresh = self.folder / f"{block.file}.{os.getpid()}.{next(self._count)}{FRESH}"
    try:
      if not self._make_room(before): return
      with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(self._head(block, kv))
        file.write(kv.data)
      fresh.replace(path)
    except OSError as e:
      with contextlib.suppress(OSError): fresh.unlink()
      return self._give_up(e.strerror or str(e))
    self._bad.discard(block.file)
    self._good.add(block.file)
    self._size, self._unscanned = self._size + self.size, self._unscanned + self.size

  def _head(self, block: Block, kv: np.ndarray) -> bytes:
    """All of a block's file before its KV."""
    rest = HEADER.pack(b"", b"", self.identity, block.parent.encode())[40:] + block.ids
    digest = hashlib.sha256(rest)
    digest.update(kv.data)
    return MAGIC + digest.digest() + rest

  def _make_room(self, before: Block | None) -> bool:
    """Removes files until another one fits; False: it would cost the path of blocks that it belongs to."""
    if self._unscanned < self.budget // 32 and self._size + self.size <= self._limit: return True
    files, now = [*files_of(self.folder)], time.time_ns()
    self._size, self._unscanned = sum(file.nbytes for file in files), 0
    for file in files:
      if not file.name and now - file.used > HOUR: self._remove(file.path, file.nbytes)  # a killed process left it
    if self._size + self.size <= self._limit: return True
    for file in ends_first(files):
      if before is not None and file.name == before.name: break
      if self._size + self.size <= self._limit - self.budget // 8: break
      self._remove(file.path, file.nbytes)
    return self._size + self.size <= self._limit

  def _remove(self, path: str, nbytes: int) -> None:
    try: os.unlink(path)
    except FileNotFoundError: pass  # by another process
    except OSError: return
    self._size -= nbytes

  def _skip(self, block: Block, why: str) -> None:
    self._bad.add(block.file)
    self._tell("read", f"{block.file} {why}; it is skipped, and so are others like it")

  def _give_up(self, why: str) -> None:
    self.gave_up = True
    self._tell("write", f"nothing is written to it ({why}); give a folder that can be written, with room")

  def _tell(self, kind: str, line: str) -> None:
    """A warning, once for each kind of trouble."""
    if kind not in self._told: warn(f"prompt cache {self.folder}: {line}")
    self._told.add(kind)

def _contents(path: pathlib.Path, size: int) -> memoryview | None:
  """The bytes of a file; None if it has another size. A pipe in its place is not waited for."""
  data = memoryview(bytearray(size))
  with io.FileIO(path, opener=lambda path, flags: os.open(path, flags | getattr(os, "O_NONBLOCK", 0))) as file:
    if os.fstat(file.fileno()).st_size != size: return None
    done = 0
    while done < size and (got := file.readinto(data[done:])): done += got
  return data if done == size else None
