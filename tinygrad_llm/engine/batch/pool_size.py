"""
The size of the pool that holds the KV cache of all sequences, in blocks.

The size is in the key of every capture. A start that chose another one, as other programs left more memory or less,
would compile all steps again. Sizes are therefore rounded, and remembered for a model and a machine.
"""
from __future__ import annotations
import contextlib, hashlib
from bisect import bisect_right
from tinygrad_llm.device.free_memory import FreeMemory
from tinygrad_llm.engine.batch.budget import Budget
from tinygrad_llm.engine.prefixes.windows import WindowSize, window_blocks
from tinygrad_llm.files.gguf import GGUF
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.patches.cache import disk_cache

SHARE = 3  # the pool takes a third of what the rest leaves free
MOST = 8   # contexts in the pool

STORE = disk_cache.Store("pool_sizes", bound=1 << 20)

def rounded(blocks: int) -> int:
  """The largest 2^n or 3 * 2^n that is at most `blocks`, which is positive."""
  power = 1 << (blocks.bit_length() - 1)
  return power + power // 2 if power > 1 and power + power // 2 <= blocks else power

def pool_blocks(budget: Budget, context: int, free: int) -> int:
  """
  The pool's blocks, without the scratch block: a third of what is free beside the model, rounded down.

  It is at least one context of `context` positions, whether that fits or not, and at most 8 of them.
  """
  one, left = budget.blocks(context), max(0, free - budget.needed(0) - context * budget.tables)
  share = bisect_right(range(1, MOST * one + 1), left // SHARE, key=lambda blocks: budget.pool(blocks, context))
  return max(one, rounded(max(1, share)))

def window_size(config: ModelConfig, blocks: int, context: int, piece: int) -> WindowSize | None:
  """
  The pool of layers with a window beside one of `blocks` blocks, block 0 included; None: there is none.

  context: most positions of a sequence. piece: most tokens of a prompt's piece.
  """
  positions = max(config.cache_windows.values(), default=0)
  count = window_blocks(blocks - 1, positions, piece, context)
  return WindowSize(1 + count, positions, piece) if count else None

def remembered_blocks(file: GGUF, budget: Budget, context: int, memory: FreeMemory | None, device: str) -> int:
  """
  pool_blocks(), or the size that an earlier start chose for this file, context and machine, if it still fits.

  Where the free memory is unknown, the pool has one context. The size is kept beside tinygrad's cache.
  """
  if memory is None: return budget.blocks(context)
  key = _key(file, context, memory, device) + (" windows" if budget.window else "")
  if disk_cache.caching() and (known := _known(key)) is not None:
    fits = budget.needed(0) + context * budget.tables + budget.pool(known, context) + budget.block <= memory.free
    if fits and budget.blocks(context) <= known <= MOST * budget.blocks(context): return known
  blocks = pool_blocks(budget, context, memory.free)
  if disk_cache.caching(): STORE.put(key, str(blocks).encode())
  return blocks

def _known(key: str) -> int | None:
  with contextlib.suppress(ValueError):
    if (entry := STORE.get(key)) is not None: return int(entry)
  return None

def _key(file: GGUF, context: int, memory: FreeMemory, device: str) -> str:
  """A name for what a size is chosen for: the tensors of the file, and the machine with its memory."""
  tensors = [(info.name, info.shape, info.type, info.offset, info.nbytes) for info in file.tensors.values()]
  header = hashlib.sha256(repr((file.kv.get("general.name"), tensors)).encode()).hexdigest()
  return repr((header, context, device, memory.total, disk_cache.machine()))
