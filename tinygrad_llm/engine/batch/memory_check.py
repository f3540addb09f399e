"""Whether a model fits into the memory that is free: a table, the largest contexts, and the refusal to load it."""
from __future__ import annotations
import pathlib
from tinygrad import Device
from tinygrad_llm.device.buffers import is_lazy, without_memory
from tinygrad_llm.device.free_memory import CPU, FreeMemory, free_memory
from tinygrad_llm.device.release import free_buffers
from tinygrad_llm.engine.batch.budget import CHUNK, MANY, Budget, budget
from tinygrad_llm.errors import InputError, warn
from tinygrad_llm.files.gguf import GGUF, open_gguf
from tinygrad_llm.nn.cache.place import BLOCK
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.model import Model
from tinygrad_llm.nn.reader import read_config
from tinygrad_llm.weights.loader import Loader

MARGIN = 32  # 1/32 of all memory: the kernel's estimate of what is available leaves out a few reserves

def budget_here(file: GGUF, config: ModelConfig, chunk: int, dequantize: bool = False) -> Budget:
  """The budget of a file on the default device."""
  device = Device.DEFAULT
  return budget(file, config, Device[device].renderer, device.split(":")[0] == CPU, chunk, dequantize)

def check_memory(file: GGUF, config: ModelConfig, context: int, positions: int, chunk: int, dequantize: bool = False
                 ) -> None:
  """
  InputError, before anything is read, if a model is sure not to fit into the default device's memory.

  context: how many positions may be fed. positions: the size of the cache.

  A model is refused if its least memory is more than all that is free, swap space included (FreeMemory.bound), and a
  margin. The least are the weights, the states and the logits of one sequence, and its keys and values. Weights are
  copied from the file, so the kernel can drop no page of them. Keys and values count in full where a device allocates
  all of a buffer. On a CPU their pages come with the text: one block counts, and a context that would not fit when it
  is full is a warning.

  Nothing is refused where the bound is unknown. Before a refusal, buffers that tinygrad keeps for later are freed, and
  the weights are counted exactly.
  """
  device, lazy = Device.DEFAULT, is_lazy()
  if (memory := free_memory(device)) is None or memory.bound is None: return
  told, sure = budget_here(file, config, chunk, dequantize), BLOCK if lazy else positions
  room = memory.bound + memory.total // MARGIN
  if told.least(context) <= room: return
  free_buffers(Device[device].allocator)
  if (memory := free_memory(device)) is None or memory.bound is None: return
  room = memory.bound + memory.total // MARGIN
  weights = told.weights if dequantize else exact_weights(file, config)
  needed, full = (told.least(n) - told.weights + weights for n in (sure, context if lazy else positions))
  largest = told.largest(memory.free)
  use = f"use --max-context {largest} or less" if 0 < largest < context else "use a smaller quant type or model"
  if needed > room:
    raise InputError(f"{file.path}: memory: the model needs {gib(needed)} for its weights and {sure} positions, and "
                     f"{gib(memory.bound)} are free on {device}; {use}")
  if full > room and largest:
    warn(f"{file.path}: memory: a text of {context} tokens would need {gib(full)}, and {gib(memory.bound)} are free on "
         f"{device}; {use}")

def exact_weights(file: GGUF, config: ModelConfig) -> int:
  """Bytes of the weights, counted on the model itself, which is built without memory."""
  with without_memory(), Loader(file, progress=False) as loader: Model(config, loader, BLOCK)
  return sum(weight.nbytes for weight in loader.weights.values())

def report(path: pathlib.Path, context: int, dequantize: bool = False) -> str:
  """table() for a file on the default device, with at most `context` positions. InputError as for a load."""
  config = read_config(file := open_gguf(path))
  context, device = min(context, config.context_length), Device.DEFAULT
  told = budget_here(file, config, min(CHUNK, context), dequantize)
  return table(told, free_memory(device), device, context)

def largest_context(path: pathlib.Path) -> int | None:
  """The largest context of a file that fits on the default device; None where its free memory is unknown."""
  config = read_config(file := open_gguf(path))
  memory = free_memory(Device.DEFAULT)
  return None if memory is None else budget_here(file, config, CHUNK).largest(memory.free)

def table(told: Budget, memory: FreeMemory | None, device: str, context: int) -> str:
  """The parts for one sequence of `context` positions in MiB, what is free, and which contexts fit."""
  rows = [(name, nbytes) for name, nbytes in told.parts(context).items() if nbytes]
  rows = [(f"{name}, {context} positions" if name == "KV cache" else name, nbytes) for name, nbytes in rows]
  rows.append(("together", told.needed(context)))
  if memory is not None: rows += [(f"free on {device}", memory.free), (f"all of {device}", memory.total)]
  width = max(len(name) for name, _ in rows)
  lines = [f"{'part':{width}}  {'MiB':>10}", *(f"{name:{width}}  {nbytes / (1 << 20):10.1f}" for name, nbytes in rows)]
  return "\n".join([*lines, "", fits(told, memory)])

def fits(told: Budget, memory: FreeMemory | None) -> str:
  """The line "fits: 1 x 32768, 2 x 16384, .. tokens": the largest context for so many sequences at once."""
  if memory is None: return "fits: unknown, this device does not tell its free memory"
  found = [(n, told.largest(memory.free, n)) for n in MANY]
  if not found[0][1]: return "fits: no"
  return f"fits: {', '.join(f'{n} x {context}' for n, context in found if context)} tokens"

def gib(nbytes: int) -> str:
  """A size as text: in GiB, or in MiB below one GiB."""
  return f"{nbytes / (1 << 30):.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / (1 << 20):.1f} MiB"
