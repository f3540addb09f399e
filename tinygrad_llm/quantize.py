"""python -m tinygrad_llm.quantize IN OUT Q4_K_M: an F32, F16 or BF16 GGUF file -> a quantised one."""
from __future__ import annotations
import math, mmap, os, re, struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType, quants
from tqdm import tqdm
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import ARRAY, GGUF, NUMBERS, STRING, TensorInfo, open_gguf
from tinygrad_llm.quants.quantizers import quantize_array

__all__ = ["FILE_TYPES", "quantize_array", "quantize_file", "tensor_types"]

FILE_TYPES = {
  "Q4_K_M": LlamaFileType.MOSTLY_Q4_K_M, "Q5_K_M": LlamaFileType.MOSTLY_Q5_K_M, "Q6_K": LlamaFileType.MOSTLY_Q6_K,
  "Q8_0": LlamaFileType.MOSTLY_Q8_0, "MXFP4": LlamaFileType.MOSTLY_MXFP4_MOE}
FLOATS = ("F32", "F16", "BF16")
UNQUANTISED = (*FLOATS, "F64", "I8", "I16", "I32", "I64")
# matrices that are too sensitive or too small to quantise
KEPT = re.compile(r"_norm\.weight|ffn_gate_inp\.weight|attn_rel_b\.weight|ssm_conv1d|shortconv\.conv\.weight|altup"
                  r"|laurel|per_layer_model_proj|indexer\.[kq]_proj|^position_embd|^token_types")
FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}    # for rows that are not a multiple of 256
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
SLAB = 1 << 24                                                 # weights that are in memory at a time
F16_MAX = 65504

def _type(info: TensorInfo) -> str: return GGMLQuantizationType(info.type).name

def _row_nbytes(n: int, name: str) -> int:
  block, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
  return n // block * nbytes

def _layer(name: str) -> int: return int(m[1]) if (m := re.match(r"blk\.(\d+)\.", name)) else -1

def tensor_types(model: GGUF, file_type: str) -> dict[str, str]:
  """
  The GGML type ("Q4_K") of every tensor, by name, in a file of a type of FILE_TYPES.

  The mixtures of types follow llama.cpp's llama-quantize (llama-quant.cpp), with two exceptions. MXFP4 is used for all
  matrices, not only for experts. Vectors of F32, F16 or BF16 become F32.
  """
  arch = model.kv.get("general.architecture")
  def number(key: str) -> int: return v if isinstance(v := model.kv.get(f"{arch}.{key}"), int) else 0
  layers, experts, base = number("block_count"), number("expert_count"), file_type.removesuffix("_M")
  heads, kv_heads = number("attention.head_count"), number("attention.head_count_kv")
  is_70b = layers == 80 and (arch == "qwen2" or arch == "llama" and heads != kv_heads)
  values = sorted((name for name in model.tensors if re.search(r"attn_(v|qkv|kv_b)\.weight", name)), key=_layer)
  tied = "output.weight" not in model.tensors

  def gets_more_bits(i: int, n: int) -> bool: return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2

  def preferred(name: str) -> str:
    if name == "output.weight" or name.endswith("token_embd.weight") and (tied or base == "MXFP4"):
      return "Q8_0" if base in ("Q8_0", "MXFP4") else "Q6_K"
    if experts == 8 and base != "MXFP4" and (name in values or "attn_k.weight" in name): return "Q8_0"
    if base == file_type: return base
    if name in values and gets_more_bits(values.index(name), len(values)): return "Q6_K"
    if "ffn_down" in name and gets_more_bits(_layer(name), layers): return "Q6_K"
    if is_70b and name in values or experts == 8 and "attn_output.weight" in name: return "Q5_K"
    return base

  def fitting(info: TensorInfo) -> str:
    source, n = _type(info), info.shape[-1]
    if source not in FLOATS: return source
    if len(info.shape) == 1: return "F32"
    if not info.name.endswith("weight") or KEPT.search(info.name): return source
    kind = preferred(info.name)
    if n % 256: kind = FALLBACK.get(kind, kind)
    return "F16" if n % 32 else kind
  return {info.name: fitting(info) for info in model.tensors.values()}

def _metadata(path: Path) -> dict[str, bytes]:
  """The metadata of a file that open_gguf accepts: each key with its pair's raw bytes (key, type and value)."""
  with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as buf:
    def end_of(kind: int, pos: int) -> int:
      if kind == STRING: return int(pos + 8 + struct.unpack_from("<Q", buf, pos)[0])
      if kind != ARRAY: return pos + NUMBERS[kind].itemsize
      item, count = struct.unpack_from("<IQ", buf, pos)
      pos += 12
      if item in NUMBERS: return int(pos + count * NUMBERS[item].itemsize)
      for _ in range(count): pos = end_of(item, pos)
      return pos
    pairs, pos = {}, 24
    for _ in range(struct.unpack_from("<Q", buf, 16)[0]):
      value = end_of(STRING, pos)
      end = end_of(struct.unpack_from("<I", buf, value)[0], value + 4)
      pairs[buf[pos + 8:value].decode()] = buf[pos:end]
      pos = end
    return pairs

def _string(text: str) -> bytes: return struct.pack("<Q", len(data := text.encode())) + data

def _header(model: GGUF, file_type: str, types: dict[str, str], alignment: int) -> bytes:
  pairs = {key: pair for key, pair in _metadata(model.path).items() if key not in SPLIT_KEYS}
  for key, number in (("general.file_type", FILE_TYPES[file_type]), ("general.quantization_version", 2)):
    pairs[key] = _string(key) + struct.pack("<II", 4, number)      # 4: uint32
  infos, offset = [], 0
  for info in model.tensors.values():
    shape, kind = info.shape, types[info.name]
    infos.append(_string(info.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
                 + struct.pack("<IQ", GGMLQuantizationType[kind], offset))
    offset += -(-math.prod(shape[:-1]) * _row_nbytes(shape[-1], kind) // alignment) * alignment
  return struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(pairs)) + b"".join(pairs.values()) + b"".join(infos)

def _converted(model: GGUF, info: TensorInfo, kind: str) -> Iterator[tuple[int, memoryview]]:
  """A tensor's bytes as type `kind`, a slab of rows at a time; each slab comes with the size of its source bytes."""
  n, rows, source = info.shape[-1], math.prod(info.shape[:-1]), _type(info)
  step, row = max(1, SLAB // n), _row_nbytes(n, source)
  for start in range(0, rows, step):
    data = np.empty((min(step, rows - start), row), np.uint8)
    nbytes = data.nbytes
    model.read_into(replace(info, offset=info.offset + start * row, nbytes=nbytes), data.data)
    if kind != source:
      x = quants.dequantize(data, GGMLQuantizationType[source])
      if not np.abs(x).max() <= F16_MAX:                           # NaN fails every comparison
        raise InputError(f"{info.path}: {info.name}: has NaN or weights beyond {F16_MAX}; check how the file was made")
      data = quantize_array(x, kind)
    yield nbytes, data.data

def quantize_file(source: str | Path, target: str | Path, file_type: str) -> None:
  """
  Quantises the GGUF file `source` (F32, F16 or BF16; any part of a split one) to `target`, in a type of FILE_TYPES.

  The metadata is copied, except general.file_type and general.quantization_version. A progress bar goes to stderr if
  that is a terminal. `target` appears only when it is complete. InputError: `source` is missing, damaged or already
  quantised; `target` is the same file or not writable; the type is unknown; weights are NaN or beyond F16_MAX.
  """
  target = Path(target)
  if file_type not in FILE_TYPES: raise InputError(f"type {file_type}: is not known; use {', '.join(FILE_TYPES)}")
  model = open_gguf(source)
  if target.is_dir() or not target.parent.is_dir():
    raise InputError(f"{target}: cannot be written; give the path of a file in a folder that exists")
  tensors = list(model.tensors.values())
  if target.exists() and any(target.samefile(path) for path in {model.path, *(info.path for info in tensors)}):
    raise InputError(f"{target}: is the input file; give the output another name")
  if found := next((info for info in tensors if _type(info) not in UNQUANTISED), None):
    raise InputError(f"{found.path}: {found.name}: is {_type(found)} already; give the model's F32, F16 or BF16 file")
  types, alignment = tensor_types(model, file_type), model.kv.get("general.alignment", 32)
  bar = tqdm(total=sum(info.nbytes for info in tensors), unit="B", unit_scale=True, desc=file_type, disable=None)
  part = target.with_name(f"{target.name}.{os.getpid()}.part")
  try:
    with bar, open(part, "wb") as out:
      out.write(_header(model, file_type, types, alignment))
      for info in tensors:
        out.write(bytes(-out.tell() % alignment))
        for nbytes, data in _converted(model, info, types[info.name]):
          out.write(data)
          bar.update(nbytes)
      out.write(bytes(-out.tell() % alignment))
    os.replace(part, target)
  except OSError as e:
    raise InputError(f"{target}: cannot be written ({e.strerror}); check the disk and the folder's permissions") from e
  finally: part.unlink(missing_ok=True)

def _parser() -> Parser:
  parser = Parser(prog="python -m tinygrad_llm.quantize", description="Quantise a GGUF file.")
  parser.add_argument("source", metavar="IN", help="GGUF file of F32, F16 or BF16 weights")
  parser.add_argument("target", metavar="OUT", help="GGUF file to write")
  parser.add_argument("type", metavar="TYPE", type=str.upper, help=f"one of {', '.join(FILE_TYPES)}")
  return parser

def _main() -> None:
  args = _parser().parse_args()
  quantize_file(args.source, args.target, args.type)

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
