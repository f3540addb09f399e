"""A folder of prefixes on disk, opened for a model."""
from __future__ import annotations
import os, pathlib
from typing import Any
from tinygrad import Device
from tinygrad_llm.device.buffers import host_view
from tinygrad_llm.engine.prefixes.disk_thread import DiskThread
from tinygrad_llm.engine.prefixes.kept_blocks import KeptBlocks
from tinygrad_llm.engine.prefixes.kv_bytes import KVBytes
from tinygrad_llm.engine.prefixes.kv_identity import kv_identity
from tinygrad_llm.engine.prefixes.prefix_store import PrefixStore
from tinygrad_llm.errors import InputError, warn
from tinygrad_llm.files.gguf import GGUF
from tinygrad_llm.nn.cache.kv_cache import KVCache
from tinygrad_llm.nn.cache.place import BLOCK
from tinygrad_llm.nn.model import Model

BUDGET = 4 << 30  # bytes of all files

def folder_of(value: Any) -> pathlib.Path | None:
  """The folder that an argument names; None: there is none. InputError if it is no path."""
  if value is None: return None
  if not isinstance(value, (str, os.PathLike)) or not str(value) or "\0" in str(value): raise InputError(
    f"prompt_cache: {value!r:.60} is not a folder; give a path")
  return pathlib.Path(os.path.abspath(os.path.expanduser(value)))

def open_prompt_cache(folder: pathlib.Path, budget: int, file: GGUF, model: Model, max_context: int, dequantize: bool,
                      device: str) -> KeptBlocks | None:
  """The prefixes on disk of a model with a pool; None, with a warning, where there cannot be any."""
  if model.states: warn("prompt cache: a model with recurrent layers keeps no prefixes on disk; the folder is not used")
  elif (kv := kv_of_pool(model.caches)) is None:
    warn(f"prompt cache: prefixes on disk need a device whose memory the host reaches, {device} is not one; the folder "
         "is not used")
  else:
    identity = kv_identity(file, model, max_context, dequantize)
    return KeptBlocks(DiskThread(PrefixStore(folder, identity, kv.nbytes, budget)), kv)
  return None

def kv_of_pool(caches: list[KVCache]) -> KVBytes | None:
  """The blocks of a model's pool; None where the host does not reach them."""
  views = [view for cache in caches if (view := host_view(cache.pool.kv)) is not None]
  if len(views) < len(caches): return None
  layers = [x.reshape(*x.shape[:2], x.shape[2] * BLOCK, x.shape[4]) for x in views]
  return KVBytes(layers, Device[Device.DEFAULT].synchronize, [cache.apart for cache in caches])
