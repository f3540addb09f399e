"""
Random weights, and a GGUF file of them, with nothing but numpy: for machines that have only the checkout.

Numbers in a block that could be NaN or infinite get a moderate exponent; all other bits are random.
"""
from __future__ import annotations
import math, pathlib, struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
import numpy as np
from tinygrad_llm.files.gguf import _NOT_FINITE
from tinygrad_llm.quants.table import QUANT_TYPES, QuantType

# {exponent bits, all ones in NaN and infinity: bits to set}, about 2**-7: half, bfloat16, float, double, e8m0, IQ1_M
_EXPONENTS = {0x7c00: 0x2000, 0x7f80: 0x3c00, 0x7f800000: 0x3c000000, 0x7ff << 52: 0x3f8 << 52, 0xff: 120,
              0x7000c000 << 32: 1 << 61}
# {type: ((offset of a fp16 scale in a block, its value for a standard deviation of 1), ..)} for the types in models
_SCALES = {"Q4_K": ((0, 1 / 235), (2, 7.5 / 235)), "Q6_K": ((208, 1 / 1365),), "Q8_0": ((0, 1 / 73.9),), "F16": ()}

def quant_named(name: str) -> QuantType: return next(qt for qt in QUANT_TYPES.values() if qt.name == name)

def random_rows(qt: QuantType, rows: int, n: int, seed: int, std: float = 0.0) -> np.ndarray:
  """
  Returns bytes as in a file, (rows, qt.row_nbytes(n)) uint8.

  std: the weights' standard deviation, for the types in models; 0 leaves the scales random.
  """
  rng, nbytes = np.random.default_rng([qt.id, seed]), rows * qt.row_nbytes(n)
  raw = rng.integers(0, 2**64, -(-nbytes // 8), np.uint64).view(np.uint8)[:nbytes]
  blocks = raw.reshape(-1, qt.nbytes)
  if std and qt.name == "F16": return rng.uniform(-1.73 * std, 1.73 * std, (rows, n)).astype(np.float16).view(np.uint8)
  if std:
    for offset, value in _SCALES[qt.name]:
      blocks[:, offset:offset + 2] = np.array([std * value], np.float16).view(np.uint8)
  else:
    for offset, kind, ones in _NOT_FINITE.get(qt.name, ()):
      numbers = np.ndarray(len(blocks), kind, raw, offset, qt.nbytes)
      numbers &= np.array(~ones & (1 << 8 * numbers.itemsize) - 1, numbers.dtype)
      numbers |= np.array(_EXPONENTS[ones], numbers.dtype)
  return raw.reshape(rows, -1)

@dataclass(frozen=True)
class Shape:
  """A Llama's shape. Its types are as in Q4_K_M: Q4_K, with Q6_K for half of ffn_down and for the tied head."""
  dim: int
  ffn: int
  layers: int
  heads: int
  kv_heads: int
  vocab: int
  context: int

TINY = Shape(dim=256, ffn=512, layers=2, heads=8, kv_heads=2, vocab=512, context=256)
LLAMA_1B = Shape(dim=2048, ffn=8192, layers=16, heads=32, kv_heads=8, vocab=128256, context=4096)

def _tensors(s: Shape) -> Iterator[tuple[str, str, int, int]]:
  """Yields name, type, rows and columns of each tensor; a norm has 0 columns."""
  kv, down = s.dim // s.heads * s.kv_heads, ("Q6_K", "Q4_K")
  yield "token_embd", "Q6_K", s.vocab, s.dim
  for i in range(s.layers):
    matrices = {"attn_q": (s.dim, s.dim), "attn_k": (kv, s.dim), "attn_v": (kv, s.dim), "attn_output": (s.dim, s.dim),
                "ffn_gate": (s.ffn, s.dim), "ffn_up": (s.ffn, s.dim), "ffn_down": (s.dim, s.ffn)}
    for name, (rows, n) in matrices.items():
      yield f"blk.{i}.{name}", down[i % 2] if name == "ffn_down" else "Q4_K", rows, n
    for name in ("attn_norm", "ffn_norm"): yield f"blk.{i}.{name}", "F32", s.dim, 0
  yield "output_norm", "F32", s.dim, 0

def write_random(path: pathlib.Path, s: Shape) -> pathlib.Path:
  """Writes a file of the shape with random weights. The same shape gives the same file."""
  def text(x: str) -> bytes: return struct.pack("<Q", len(x.encode())) + x.encode()
  def value(x: Any) -> bytes:
    if isinstance(x, str): return struct.pack("<I", 8) + text(x)
    if isinstance(x, int): return struct.pack("<II", 4, x)
    if isinstance(x, float): return struct.pack("<If", 6, x)
    if isinstance(x, np.ndarray): return struct.pack("<IIQ", 9, {"f": 6, "i": 5}[x.dtype.kind], x.size) + x.tobytes()
    return struct.pack("<IIQ", 9, 8, len(x)) + b"".join(map(text, x))
  # SentencePiece: three special tokens, the bytes, and fillers
  tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *(f"w{i}" for i in range(s.vocab - 259))]
  kinds = np.array([2, 3, 3] + [6] * 256 + [1] * (s.vocab - 259), np.int32)
  kv: dict[str, Any] = {
    "general.architecture": "llama", "general.file_type": 15, "llama.context_length": s.context,
    "llama.embedding_length": s.dim, "llama.block_count": s.layers, "llama.feed_forward_length": s.ffn,
    "llama.attention.head_count": s.heads, "llama.attention.head_count_kv": s.kv_heads,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 500000.0, "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds,
    "tokenizer.ggml.scores": np.zeros(s.vocab, np.float32)}
  tensors, infos, offset = list(_tensors(s)), [], 0
  for name, kind, rows, n in tensors:
    qt, dims = quant_named(kind), [n, rows] if n else [rows]
    infos.append(text(f"{name}.weight") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, qt.id, offset))
    offset += -(-(rows * qt.row_nbytes(n) if n else rows * 4) // 32) * 32
  header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(kv))
  header += b"".join(text(k) + value(v) for k, v in kv.items()) + b"".join(infos)
  with open(path, "wb") as f:
    f.write(header + bytes(-len(header) % 32))
    for i, (_, kind, rows, n) in enumerate(tensors):
      if not n: data = np.ones(rows, np.float32).tobytes()
      else: data = random_rows(quant_named(kind), rows, n, i, (2 if i == 0 else 1) / math.sqrt(n)).tobytes()
      f.write(data + bytes(-len(data) % 32))
  return path
