"""Prefixes in the slot, of generate() and chat(), that outlive the process."""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad_llm.engine.context import Context
from tinygrad_llm.engine.prefixes.disk_thread import DiskThread
from tinygrad_llm.engine.prefixes.kv_bytes import KVBytes
from tinygrad_llm.engine.prefixes.prefix_files import Block
from tinygrad_llm.engine.prefixes.prefix_tree import key
from tinygrad_llm.nn.cache.place import BLOCK

class KeptSlot:
  """Copies blocks between a model's slot and the disk. load() and save() are called with the model's lock."""
  def __init__(self, disk: DiskThread, kv: KVBytes, context: Context):
    self._disk, self._kv, self._context = disk, kv, context

  def load(self, ids: Sequence[int], cached: int) -> int:
    """
    Reads into the slot what the disk has of a prompt beyond its first `cached` tokens, which the slot holds.

    Returns how many tokens the slot holds then, never all.
    """
    blocks, last = self._chain(ids), None
    for i in range(first := cached // BLOCK, len(blocks)):
      if (kv := self._disk.store.read(blocks[i])) is None: break
      if last is None: self._context.cut(first * BLOCK)
      self._kv.write(i, kv)
      last = blocks[i]
      self._context.tokens.extend(ids[i * BLOCK:min((i + 1) * BLOCK, len(ids) - 1)])
    if last is None: return cached
    self._disk.store.touch(last)
    return len(self._context.tokens)

  def save(self, waits: bool = False) -> None:
    """Hands over the slot's full blocks that the disk does not have, as far as there is room. waits: see DiskThread."""
    self._disk.keep(self._chain(self._context.tokens), self._kv.read, waits)

  def close(self) -> None:
    """The last save()."""
    self.save(waits=True)

  def _chain(self, ids: Sequence[int]) -> list[Block]:
    return [*self._disk.store.chain(key(ids[i * BLOCK:(i + 1) * BLOCK]) for i in range(len(ids) // BLOCK))]
