"""
The memory that a model takes, told from its file's header before it is loaded.

Weights, KV cache and recurrent states are counted by the rules that allocate them. Activations and the process are
estimates; `work` and `process` say from which measurements.
"""
from __future__ import annotations
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from tinygrad import dtypes
from tinygrad.helpers import ceildiv
from tinygrad.renderer import Renderer
from tinygrad_llm.files.gguf import GGUF
from tinygrad_llm.files.purpose import layers_ahead
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.layers import (AttentionConfig, DeltaConfig, DenseAndExpertsConfig, FFNConfig, LayerConfig,
  Mamba2Config, MixerConfig, MoEConfig)
from tinygrad_llm.engine.prefixes.windows import held_blocks, window_blocks
from tinygrad_llm.nn.cache.kv_cache import KVCache
from tinygrad_llm.nn.cache.place import BLOCK
from tinygrad_llm.nn.cache.state import State
from tinygrad_llm.quants.table import quant_type
from tinygrad_llm.weights.loader import is_left_out
from tinygrad_llm.weights.memory import held_as, piece_shape
from tinygrad_llm.weights.numerics import SLOTS

MANY = (1, 2, 4, 8)  # sequences for which a largest context is told
CHUNK = 256  # tokens of a prompt's step
PER_TOKEN = 912  # bytes of a tokenizer for each token of its vocabulary: 907 with 248,320 tokens, 917 with 49,152
PLACES = 2  # states of a prompt, and between two places, see row_states.RowStates; decode steps have two each
SNAPSHOTS, MOST_SNAPSHOTS = 4, 1 << 30  # copies of states that are expected, and their bytes at most
PROCESS = 64 << 20  # bytes of code, graphs and programs of a first start, beside what is imported: 40 to 62 MB

@dataclass(frozen=True)
class Budget:
  """
  Bytes of a model's parts, and the most positions that it knows (context).

  - weights: as they lie in memory. staging: rows that are being repacked; tinygrad keeps that memory
  - block: BLOCK positions of the KV cache of all layers. tables: one position of the tables of rotations
  - state: the recurrent states of all sequences. snapshots: copies of states that a later prompt may start from
  - logits: one row. work: the activations of a prompt's step
  - process: the host's process, where the device's memory is the host's
  - window_block: the part of `block` in layers with a window. window: its positions, the widest. piece: of a prompt
  """
  weights: int
  staging: int
  block: int
  tables: int
  state: int
  snapshots: int
  logits: int
  work: int
  process: int
  context: int
  window_block: int = 0
  window: int = 0
  piece: int = CHUNK

  def parts(self, context: int, sequences: int = 1) -> dict[str, int]:
    """The bytes of each part for so many sequences of `context` positions."""
    return {"weights": self.weights, "staging of weights": self.staging,
            "KV cache": self.kv(context, sequences),
            "recurrent states": self.state, "snapshots of states": self.snapshots,
            "tables of rotations": context * self.tables, "logits": (sequences + 1) * self.logits,
            "activations": self.work, "process": self.process}

  def needed(self, context: int, sequences: int = 1) -> int: return sum(self.parts(context, sequences).values())

  def least(self, context: int) -> int:
    """Bytes that a model with one sequence of `context` positions is sure to take."""
    return self.weights + self.kv(context) + self.state + self.logits

  @staticmethod
  def blocks(context: int) -> int: return ceildiv(context, BLOCK)

  def kv(self, context: int, sequences: int = 1) -> int:
    """Bytes of the keys and values of so many sequences of `context` positions."""
    blocks, held = sequences * self.blocks(context), held_blocks(self.window, self.piece, context, sequences)
    return blocks * (self.block - self.window_block) + (min(blocks, held) if held else blocks) * self.window_block

  def pool(self, blocks: int, context: int) -> int:
    """Bytes of a pool of so many blocks, with the one of layers with a window beside it."""
    windows = window_blocks(blocks, self.window, self.piece, context) or blocks
    return blocks * (self.block - self.window_block) + windows * self.window_block

  def largest(self, free: int, sequences: int = 1) -> int:
    """The largest context, in whole blocks, of which so many sequences fit into `free` bytes; 0: none does."""
    blocks = self.blocks(self.context)
    if self.window:  # the bytes step down where a window comes to be less than half of the context
      if self.needed(self.context, sequences) <= free: return self.context
      return BLOCK * next((n for n in range(blocks - 1, 0, -1) if self.needed(n * BLOCK, sequences) <= free), 0)
    left, each = free - self.needed(0, sequences), sequences * self.block + BLOCK * self.tables
    if left < 0: return 0
    return self.context if each * blocks <= left else left // each * BLOCK

def budget(file: GGUF, config: ModelConfig, ren: Renderer, on_host: bool, chunk: int = CHUNK, dequantize: bool = False
           ) -> Budget:
  """The budget of a file on a device with a renderer; on_host: whether that memory is the host's."""
  weights, staging = held_weights(file, ren, dequantize)
  states = [r.state for layer in config.layers if (r := layer.recurrent) is not None]
  state = sum(State.dtype.itemsize * prod(shape) for shapes in states for shape in shapes)
  caches = [(_block(config.layers[i]), window) for i, window in config.cache_windows.items()]
  tables = sum(rope.dim // 2 * 2 for rope in config.ropes) + (config.temperature is not None)
  return Budget(
    weights, staging, sum(nbytes for nbytes, _ in caches),
    dtypes.float32.itemsize * tables, (2 * MANY[-1] + PLACES) * state, min(SNAPSHOTS * state, MOST_SNAPSHOTS),
    dtypes.float32.itemsize * config.vocab_size, work(config, chunk),
    PROCESS + PER_TOKEN * config.vocab_size if on_host else 0, config.context_length,
    sum(nbytes for nbytes, window in caches if window), max((window for _, window in caches), default=0), chunk)

def _block(layer: LayerConfig) -> int:
  """Bytes of a block of a layer's keys and values."""
  assert layer.attention is not None
  return KVCache.dtype.itemsize * prod(KVCache.shape(layer.attention, BLOCK))

def held_weights(file: GGUF, ren: Renderer, dequantize: bool = False) -> tuple[int, int]:
  """
  Bytes of a file's weights in memory, and of the memory in which they are repacked.

  Matrices that become one weight are counted one by one, each with its own padding to whole tiles.
  """
  held, pieces, largest, ahead = 0, dict[tuple[object, ...], int](), 0, layers_ahead(file.tensors)
  for name, info in file.tensors.items():
    if is_left_out(name, ahead): continue
    shape, lay = held_as(qt := quant_type(info), info.shape, ren)
    nbytes = prod(shape) * (dtypes.uint32 if lay else qt.dtype).itemsize
    if lay is not None:
      piece = piece_shape(qt, lay, shape[0], info.shape[-1])
      pieces[piece, lay.blocks.dtype] = prod(piece) * lay.blocks.dtype.itemsize
    if dequantize and len(info.shape) > 1 and qt.dtype is dtypes.uint32:
      largest, nbytes = max(largest, nbytes), prod(info.shape) * dtypes.half.itemsize
    held += nbytes
  return held, sum(pieces.values()) + largest

def work(config: ModelConfig, chunk: int = CHUNK) -> int:
  """
  An estimate of a prompt step's activations: the stream 4 times, the inside of a mixer twice, of an FFN 1.6 times.

  Measured on CPUs with 256 tokens, in MiB, of the estimate: Llama 1B 26 of 27, 8B 43 of 50; Gemma 3 4B 31 of 34.
  """
  mixer = max((_width(m) for layer in config.layers for m in layer.mixers), default=0)
  ffn = max((_inside(config.dim, layer, chunk) for layer in config.layers), default=0)
  return int(dtypes.float32.itemsize * (chunk * (4 * config.dim + 2 * mixer) + 1.6 * ffn))

def _width(config: MixerConfig) -> int:
  """Elements of a token inside a mixer."""
  if isinstance(config, AttentionConfig):
    _, heads, _, D = KVCache.shape(config, 1)
    return (1 + config.gated) * config.heads * (D if config.latent else config.head_dim) + 2 * heads * D
  if isinstance(config, DeltaConfig): return 3 * (config.channels + config.v_heads * config.head_dim) // 2
  if isinstance(config, Mamba2Config): return 3 * (config.channels + config.inner) // 2
  return 3 * config.dim

def _inside(dim: int, layer: LayerConfig, chunk: int) -> int:
  """Elements of a chunk inside a layer's feed-forward network."""
  ffn = layer.ffn
  parts: Iterable[FFNConfig | MoEConfig] = (
    (ffn.dense, ffn.experts) if isinstance(ffn, DenseAndExpertsConfig) else () if ffn is None else (ffn,))
  inside = 0
  for part in parts:
    if isinstance(part, FFNConfig): inside += chunk * part.hidden_dim
    else:  # see expert_blocks: each expert's tokens are padded to whole blocks of slots
      slots = (chunk * ceildiv(part.n_used, SLOTS) + part.n_experts) * SLOTS
      inside += slots * (part.hidden_dim + (part.latent_dim or dim)) + chunk * part.shared_dim
  return inside
