"""
Int8 activations for matmuls with quantised weights: groups of 16 share a scale. GPUs use two bytes an activation.

They need a target with integer dot products and a matrix that is repacked for it (weights/layout.py).
On a CPU (patches/isa/dot_int8_cpu.py) they make a decode step memory-bound and a prompt's GEMMs three times as fast.
On an H100 (patches/isa/dot_int8_gpu.py) they slow decode down to 0.93 of its speed. Q8_ACTIVATIONS=1 asks for them on
GPUs, where only decode steps use them. A GPU takes two bytes because with one, the bundled model's logits were 0.08 to
0.12 standard deviations off.
NO_Q8_ACTIVATIONS=1 leaves activations as they are, also in prompts whose products would be in bfloat16.
"""
from __future__ import annotations
import functools, os
from collections.abc import Iterable
from tinygrad import Device, Tensor, UOp, dtypes
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.ir.byte_groups import HALF, LAYOUTS, SIGN
from tinygrad_llm.patches.ir.targets import has_vectors, registers
from tinygrad_llm.patches.isa import dot_bf16, dot_int8_cpu, dot_int8_gpu
from tinygrad_llm.patches.tiles import amx_tiles, mma_tiles
from tinygrad_llm.patches.tiles.mma_tiles import MOST
from tinygrad_llm.quants.table import QuantType
from tinygrad_llm.weights.expressions import made_once
from tinygrad_llm.weights.layout import WORD, unpack

SLOTS, GPU_SLOTS = 4, 32  # of an expert block (expert_blocks.py), on a CPU and a GPU: there two or more mma fragments
ROW_SLOTS = 4  # with 32 registers, of a small group of a step's pairs (pair_groups.py)
GROUP = 16  # 32, as in GGML's Q8_0, would make a decode step less exact and no faster
PROMPT_GROUP = 32  # in prefill: GEMMs are a fifth faster, with half of llama.cpp's error where it groups 256

def multiplies_bytes() -> bool:
  ren, asked = Device[Device.DEFAULT].renderer, os.environ.get("Q8_ACTIVATIONS", "0") not in ("", "0")
  return is_on("q8_activations") and (dot_int8_cpu.available(ren) or asked and dot_int8_gpu.available(ren))

def multiplies_bytes_of_prompts() -> bool:
  """Whether prefill uses int8 activations, too: on CPUs."""
  return is_on("q8_activations") and dot_int8_cpu.available(Device[Device.DEFAULT].renderer)

def stores_heads_apart() -> bool:
  """Whether a prompt's projections are stored head by head: on CPUs. No GPU has timed it."""
  return has_vectors(Device[Device.DEFAULT].renderer)

def multiplies_halves() -> bool:
  """Whether tensor cores multiply the activations of several tokens (patches/tiles/mma_tiles.py)."""
  return is_on("mma_tiles") and mma_tiles.available(Device[Device.DEFAULT].renderer)

def half(x: Tensor) -> Tensor:
  """x as tensor cores multiply it: fp16, clamped to the largest fp16 numbers."""
  return x.clamp(-MOST, MOST).cast(dtypes.half)

def halves(x: Tensor) -> Tensor:
  """half(x), materialised by one kernel."""
  return half(x).contiguous()

def multiplies_tiles() -> bool:
  """Whether a prompt's products are in bfloat16, in a CPU's tile registers (patches/tiles/amx_tiles.py)."""
  return is_on("q8_activations") and amx_tiles.available(Device[Device.DEFAULT].renderer)

def multiplies_bf16(n: int) -> bool:
  """
  Whether a prompt's products with rows of n BF16 weights take x in bfloat16, as llama.cpp's do
  (patches/isa/dot_bf16.py).
  """
  if n % dot_bf16.AT_ONCE or not is_on("q8_activations"): return False
  return dot_bf16.available(Device[Device.DEFAULT].renderer)

def bf16(x: Tensor) -> Tensor:
  """x as bfloat16, materialised by one kernel."""
  return x.cast(dtypes.bfloat16).contiguous()

def slots_of_blocks() -> int:
  """
  Slots, for (token, expert) pairs, of an expert block; 0: slots would share nothing, and blocks are of no use.

  A block's slots share their expert's dequantised weights, by pack_operands.py, amx_tiles.py or mma_tiles.py of
  patches/tiles/.
  """
  needed = ("q8_activations", "register_tiles", "pack_operands")
  if multiplies_tiles(): return amx_tiles.TOKENS
  if dot_int8_cpu.available(Device[Device.DEFAULT].renderer): return SLOTS if all(map(is_on, needed)) else 0
  return GPU_SLOTS if multiplies_halves() else 0

def slots_of_rows() -> int:
  """
  Slots of a small group (pair_groups.py) of a step's (row, expert) pairs; 0: each pair is a product of its own.

  As many as hardly take longer than one, where memory is the limit.
  """
  ren = Device[Device.DEFAULT].renderer
  if not dot_int8_cpu.available(ren) or not is_on("q8_activations") or not is_on("register_tiles"): return 0
  return ROW_SLOTS if registers(ren) >= 32 else ROW_SLOTS // 2

def pack(x: Tensor, group: int = GROUP) -> Tensor:
  """
  Quantises x (.., n) to int8 in groups of 16 or 32; n is a multiple of the group -> (.., groups, 6 or 12) uint32.

  A group is its bytes, a float32 scale, and int32 sums: minus 128 times the sum of each 16 bytes, and of all 32.
  patches/tiles/pack_operands.py adds these sums to products with unsigned weights.
  """
  groups = x.reshape(*x.shape[:-1], x.shape[-1] // group, group)
  elements = [groups[..., i] for i in range(group)]  # no axis: a reduction over it would end the kernel
  top = functools.reduce(Tensor.maximum, [e.maximum(-e) for e in elements])
  scale = (top > 0).where(127 / top, 0.0)
  rounded = [(e * scale + (e < 0).where(-0.5, 0.5)).cast(dtypes.int) for e in elements]  # the cast truncates
  codes = [(r.bitcast(dtypes.uint32) & 255) << i % WORD * 8 for i, r in enumerate(rounded)]
  words = [functools.reduce(Tensor.__or__, codes[i:i + WORD]) for i in range(0, group, WORD)]
  totals = [functools.reduce(Tensor.__add__, rounded[i:i + HALF]) * -SIGN for i in range(0, group, HALF)]
  if len(totals) > 1: totals.append(functools.reduce(Tensor.__add__, totals))
  return Tensor.stack(*words, (top * (1 / 127)).bitcast(dtypes.uint32), *[t.bitcast(dtypes.uint32) for t in totals],
                      dim=-1)

def unpacked(packed: Tensor) -> Tensor:
  """Dequantises what pack() gave: (.., groups, 6 or 12) -> float32 (.., groups * 16 or 32)."""
  at = next(layout.scale for layout in LAYOUTS if layout.words == packed.shape[-1])
  q = unpack(packed[..., :at], 1).cast(dtypes.uint8).bitcast(dtypes.int8)
  return (q.cast(dtypes.float32) * packed[..., at:at + 1].bitcast(dtypes.float32)).flatten(-2)

FINEST = 127 << 8 | 127  # the largest number whose high and low bytes, both signed, are at most 127

def pack_fine(x: Tensor) -> Tensor:
  """
  Quantises x (.., n) to 16 bits in groups of 16; n is a multiple of 16 -> (.., groups, 9) uint32.

  A group is four words of high bytes, four of low bytes, both signed, and a float32 scale:
  x = scale * (256 * high + low).
  """
  groups = x.reshape(*x.shape[:-1], x.shape[-1] // GROUP, GROUP)
  elements = [groups[..., i] for i in range(GROUP)]  # no axis: a reduction over it would end the kernel
  top = functools.reduce(Tensor.maximum, [e.maximum(-e) for e in elements])
  scale = (top > 0).where(FINEST / top, 0.0)
  rounded = [(e * scale + (e < 0).where(-0.5, 0.5)).cast(dtypes.int) for e in elements]  # the cast truncates
  parts = [r + 128 >> 8 for r in rounded], rounded  # a low byte above 127 turns negative, the high byte grows by one
  codes = [(p.bitcast(dtypes.uint32) & 255) << i % WORD * 8 for part in parts for i, p in enumerate(part)]
  words = [functools.reduce(Tensor.__or__, codes[i:i + WORD]) for i in range(0, len(codes), WORD)]
  return Tensor.stack(*words, (top * (1 / FINEST)).bitcast(dtypes.uint32), dim=-1)

def unpacked_fine(packed: Tensor) -> Tensor:
  """Dequantises what pack_fine() gave: (.., groups, 9) -> float32 (.., groups * 16)."""
  at = GROUP // WORD
  high, low = (unpack(packed[..., i:i + at], 1).cast(dtypes.uint8).bitcast(dtypes.int8).cast(dtypes.float32)
               for i in (0, at))
  return ((high * 256 + low) * packed[..., 2 * at:].bitcast(dtypes.float32)).flatten(-2)

@made_once
def fine(x: Tensor) -> Tensor:
  """x (.., n), n a multiple of 16, rounded to 16 bits; one kernel stores the packed form."""
  return unpacked_fine(pack_fine(x).contiguous())

def group_of_prompts(types: Iterable[QuantType]) -> int:
  """
  How many activations of a prompt share a scale, for weights of some types.

  llama.cpp groups as many activations as a block of the weights has; no group here is larger.
  """
  return PROMPT_GROUP if all(qt.block > PROMPT_GROUP for qt in types) else GROUP

def quantize(x: Tensor, of_prompts: int = GROUP) -> Tensor:
  """
  x (B, T, n), n a multiple of the group, rounded to 8 bits; one kernel stores the packed form.

  of_prompts: the group where T is symbolic; elsewhere it is GROUP.
  """
  return _quantized(x, of_prompts if isinstance(x.shape[-2], UOp) else GROUP)

@made_once
def _quantized(x: Tensor, group: int) -> Tensor: return unpacked(pack(x, group).contiguous())
