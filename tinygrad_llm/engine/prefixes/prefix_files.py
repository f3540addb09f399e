"""The names of files that hold blocks of KV, and the order in which files go where room is needed."""
from __future__ import annotations
import contextlib, os, pathlib, re
from collections.abc import Iterator
from typing import NamedTuple

NAME = re.compile(r"([0-9a-f]{40})-([0-9a-f]{40})\.kv")
FIRST = "0" * 40  # the parent of a prompt's first block
FRESH = ".new"    # ends the name of a file that is being written

class Block(NamedTuple):
  """64 token ids as bytes, and the block before it. name and parent: 40 hexadecimal digits for each of the two."""
  name: str
  parent: str
  ids: bytes

  @property
  def file(self) -> str: return f"{self.name}-{self.parent}.kv"

class File(NamedTuple):
  """A file of a folder. name: "" for a file that is being written. used: when it was read or written last, in ns."""
  name: str
  parent: str
  used: int
  nbytes: int
  path: str

def files_of(folder: pathlib.Path) -> Iterator[File]:
  """The files of blocks in a folder, also those that are being written; no others."""
  with os.scandir(folder) as found:
    for file in found:
      if (match := NAME.match(file.name)) is None or match.end() < len(file.name) and not file.name.endswith(FRESH):
        continue
      name = match[1] if match.end() == len(file.name) else ""
      with contextlib.suppress(OSError):
        stat = file.stat(follow_symlinks=False)
        yield File(name, match[2], stat.st_mtime_ns, stat.st_size, file.path)

def ends_first(files: list[File]) -> list[File]:
  """
  Files of blocks in the order in which they go: blocks whose parent is gone, then paths from their ends, the oldest
  first.

  A block counts as used a little later than all blocks behind it.
  """
  named = {file.name: file for file in files if file.name}
  used = {name: file.used for name, file in named.items()}
  for file in sorted(named.values(), key=lambda file: -file.used):
    while (parent := named.get(file.parent)) is not None and used[parent.name] <= used[file.name]:
      used[parent.name] = used[file.name] + 1
      file = parent
  return sorted(named.values(), key=lambda file: (file.parent == FIRST or file.parent in named, used[file.name]))
