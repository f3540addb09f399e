"""
GGUF files: the header (metadata and tensor descriptions) and the bytes of a tensor.

A header is untrusted input. Every count, length and offset is checked against the file's size before it is used. A
damaged file therefore ends in an InputError and never in a huge allocation.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""
from __future__ import annotations
import mmap, re, struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any
import numpy as np
from tinygrad_llm.errors import InputError, is_shortage

# every tensor type that a file may hold: {id: (name, weights per block, bytes per block)}
GGML_TYPES: dict[int, tuple[str, int, int]] = {
  0: ("F32", 1, 4), 1: ("F16", 1, 2), 28: ("F64", 1, 8), 30: ("BF16", 1, 2),
  24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8),
  2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34),
  9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
  14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74),
  18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110),
  22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 29: ("IQ1_M", 256, 56), 34: ("TQ1_0", 256, 54),
  35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18)}

# floats in a block: {type: ((first byte, integer type there, exponent bits: all ones for NaN and infinity), ..)}
# Layouts: ggml-common.h of llama.cpp. The scale of IQ1_M is the top 4 bits of each of four uint16.
_NOT_FINITE: dict[str, tuple[tuple[int, str, int], ...]] = {
  "F32": ((0, "<u4", 0x7f800000),), "F64": ((0, "<u8", 0x7ff << 52),), "BF16": ((0, "<u2", 0x7f80),),
  "Q8_K": ((0, "<u4", 0x7f800000),), "MXFP4": ((0, "u1", 0xff),), "IQ1_M": ((48, "<u8", 0x7000c000 << 32),),
  **{name: tuple((offset, "<u2", 0x7c00) for offset in offsets) for offsets, names in (
    ((0,), "F16 Q4_0 Q5_0 Q8_0 IQ1_S IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS Q1_0"),
    ((0, 2), "Q4_1 Q5_1 Q8_1 Q4_K Q5_K"), ((80, 82), "Q2_K"), ((108,), "Q3_K"), ((208,), "Q6_K"), ((52,), "TQ1_0"),
    ((64,), "TQ2_0")) for name in names.split()}}

MAX_DIMS, MAX_DEPTH, MAX_KEY = 4, 4, 65535
# Limits far above any real model. The file's size alone does not bound memory: a header may claim gigabytes of the
# file.
MAX_HEADER = 64 << 20     # bytes
MAX_ENTRIES = 1 << 17     # metadata pairs and tensors
MAX_STRINGS = 1 << 20     # strings in arrays, and arrays in arrays
# ids of metadata value types; NUMBERS: {id: numpy dtype}
BOOL, STRING, ARRAY = 7, 8, 9
NUMBERS = {i: np.dtype(f"<{code}") for i, code in (
  (0, "u1"), (1, "i1"), (2, "u2"), (3, "i2"), (4, "u4"), (5, "i4"), (6, "f4"), (BOOL, "u1"), (10, "u8"), (11, "i8"),
  (12, "f8"))}
U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.gguf)?", re.IGNORECASE)

CUT, DAMAGED = "the file is cut off or damaged, download it again", "the file is damaged, download it again"
CONVERT, SPLIT = "convert the model again", "split the model again"

@dataclass(frozen=True)
class TensorInfo:
  """
  The description of one tensor of a file.

  shape: row-major, the row length last; type: ggml type id, a key of GGML_TYPES; offset: its first byte in `path`;
  nbytes: its size in bytes there.
  """
  name: str
  shape: tuple[int, ...]
  type: int
  path: Path
  offset: int
  nbytes: int

@dataclass(frozen=True)
class GGUF:
  """
  The header of a model: of one file, or merged from all parts of a split model.

  path: the file, or the first part.

  kv: metadata. Numbers and strings are Python values, arrays of strings and of arrays are lists, and arrays of numbers
  are numpy arrays.

  tensors: by name, in file order.
  """
  path: Path
  version: int
  kv: dict[str, Any]
  tensors: dict[str, TensorInfo]

  def read_into(self, info: TensorInfo, out: memoryview) -> None:
    """
    Reads the bytes of a tensor, or of whole rows of it, into a contiguous buffer of info.nbytes bytes.

    InputError if the file ends or cannot be read, or if a weight or the scale of a block is NaN or infinite. ValueError
    if the buffer has another size. The bytes are read, not mapped: pages of a mapped file would count a second time in
    the memory of the process.
    """
    view, field = memoryview(out).cast("B"), f"tensor {_shown(info.name)}"
    if view.nbytes != info.nbytes: raise ValueError(f"{field} has {info.nbytes} bytes, the buffer {view.nbytes}")
    try:
      with open(info.path, "rb", buffering=0) as f:
        f.seek(info.offset)
        while view.nbytes:
          if not (got := f.readinto(view)): raise _bad(info.path, field, f"the file ends inside it; {CUT}")
          view = view[got:]
    except OSError as e:
      raise _bad(info.path, field, f"cannot be read ({e.strerror}); check that the file is still there") from e
    if (at := _not_finite(info.type, memoryview(out).cast("B"))) is not None:
      raise _bad(info.path, field, f"the number at byte {info.offset + at} is NaN or infinite; {DAMAGED}")

def _not_finite(kind: int, raw: memoryview) -> int | None:
  """
  The byte offset of the first non-finite scale or weight found in whole blocks; None if there is none. 0.1 s a GB.
  """
  name, _, step = GGML_TYPES[kind]
  for offset, dtype, ones in _NOT_FINITE.get(name, ()):
    numbers = np.ndarray(len(raw) // step, dtype, raw, offset, step)
    if (bad := (numbers & numbers.dtype.type(ones)) == ones).any(): return int(bad.argmax()) * step + offset
  return None

def _bad(path: Path, field: str, problem: str) -> InputError: return InputError(f"{path}: {field}: {problem}")

def _shown(name: str) -> str: return ascii(name if len(name) <= 80 else name[:80] + "..")

class _Header:
  """
  A cursor over the mapped file, or over its first bytes. Methods read at `pos` and advance it. `field` names the part
  that is being read, for error messages.
  """
  def __init__(self, path: Path, buf: mmap.mmap | bytes):
    self.path, self.buf, self.size, self.pos, self.field = path, buf, len(buf), 0, "header"
    self.end, self.left = min(self.size, MAX_HEADER), MAX_STRINGS

  def bad(self, problem: str) -> InputError: return _bad(self.path, self.field, problem)

  def need(self, count: int, nbytes: int = 1) -> None:
    if count * nbytes > self.size - self.pos:
      raise self.bad(f"{count * nbytes} bytes expected at byte {self.pos} of {self.size}; {CUT}")
    if count * nbytes > self.end - self.pos: raise self.too_long()

  def too_long(self) -> InputError: return self.bad(f"the header does not end within {MAX_HEADER >> 20} MiB; {DAMAGED}")

  def spend(self, count: int) -> None:
    """Counts `count` more Python objects in arrays; each takes several times its bytes in the file."""
    if (left := self.left - count) < 0: raise self.bad(f"more than {MAX_STRINGS} strings in the header; {DAMAGED}")
    self.left = left

  def u32(self) -> int:
    self.need(4)
    self.pos += 4
    return int(U32.unpack_from(self.buf, self.pos - 4)[0])

  def u64(self) -> int:
    self.need(8)
    self.pos += 8
    return int(U64.unpack_from(self.buf, self.pos - 8)[0])

  def string(self, errors: str = "strict") -> str: return self.strings(1, errors)[0]

  def strings(self, count: int, errors: str) -> list[str]:
    self.need(count, 8)
    self.spend(count)
    buf, size, last, pos, unpack, ret = self.buf, self.size, self.end, self.pos, U64.unpack_from, []
    try:
      for _ in range(count):  # 500,000 turns for a vocabulary and its merges: no method calls in here
        if pos + 8 > size or (end := pos + 8 + unpack(buf, pos)[0]) > size:
          raise self.bad(f"the string at byte {pos} runs past the end of the file, {size}; {CUT}")
        if end > last: raise self.too_long()
        ret.append(buf[pos + 8:end].decode("utf-8", errors))
        pos = end
    except UnicodeDecodeError as e: raise self.bad(f"the string at byte {pos} is not UTF-8; {CONVERT}") from e
    self.pos = pos
    return ret

  def numbers(self, kind: int, count: int) -> np.ndarray:
    dtype = NUMBERS[kind]
    self.need(count, dtype.itemsize)
    ret = np.frombuffer(self.buf, dtype, count, self.pos).copy()  # copied: a map with views into it cannot be closed
    self.pos += ret.nbytes
    return ret != 0 if kind == BOOL else ret

  def array(self, errors: str, depth: int) -> Any:
    kind, count = self.u32(), self.u64()
    if kind == STRING: return self.strings(count, errors)
    if kind in NUMBERS: return self.numbers(kind, count)
    if kind != ARRAY: raise self.bad(f"value type {kind} does not exist; {DAMAGED}")
    if depth == MAX_DEPTH: raise self.bad(f"arrays nested deeper than {MAX_DEPTH}; {CONVERT}")
    self.need(count, 12)  # an empty array takes 12 bytes
    self.spend(count)
    return [self.array(errors, depth + 1) for _ in range(count)]

  def value(self, errors: str) -> Any:
    kind = self.u32()
    if kind == STRING: return self.string(errors)
    if kind == ARRAY: return self.array(errors, 1)
    if kind not in NUMBERS: raise self.bad(f"value type {kind} does not exist; {DAMAGED}")
    return self.numbers(kind, 1)[0].item()

  def metadata(self, count: int, kv: dict[str, Any]) -> None:
    """
    Reads `count` pairs into `kv`. The tokenizer's strings must be exact, hence valid UTF-8. In other strings a stray
    byte is replaced.
    """
    for i in range(count):
      self.field = f"metadata {i}"
      key = self.string()
      self.field = f"metadata {_shown(key)}"
      if not 0 < len(key) <= MAX_KEY: raise self.bad(f"a key of {len(key)} characters; {DAMAGED}")
      if key in kv: raise self.bad(f"appears twice; {CONVERT}")
      kv[key] = self.value("strict" if key.startswith("tokenizer.") else "replace")

  def tensor(self) -> TensorInfo:
    """Reads one tensor description; its offset is still relative to the start of the data."""
    name = self.string()
    self.field = f"tensor {_shown(name)}"
    if not 1 <= (ndim := self.u32()) <= MAX_DIMS: raise self.bad(f"{ndim} dimensions, not 1 to {MAX_DIMS}; {DAMAGED}")
    shape = tuple(self.u64() for _ in range(ndim))[::-1]
    kind, offset = self.u32(), self.u64()
    if kind not in GGML_TYPES: raise self.bad(f"type {kind} is not known; convert the model to Q4_K_M or the like")
    type_name, block, block_nbytes = GGML_TYPES[kind]
    nbytes = prod(shape) // block * block_nbytes
    if min(shape) < 1 or nbytes > self.size: raise self.bad(f"shape {shape} does not fit in {self.size} bytes; {CUT}")
    if shape[-1] % block: raise self.bad(f"rows of {shape[-1]} are no whole blocks of {block} ({type_name}); {CONVERT}")
    return TensorInfo(name, shape, kind, self.path, offset, nbytes)

  def tensors(self, count: int, alignment: Any) -> dict[str, TensorInfo]:
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
      self.field = "metadata 'general.alignment'"
      raise self.bad(f"is not a power of two; {CONVERT}")
    infos: list[TensorInfo] = []
    for i in range(count):
      self.field = f"tensor {i}"
      infos.append(self.tensor())
    start = -(-self.pos // alignment) * alignment
    ret: dict[str, TensorInfo] = {}
    for info in infos:
      self.field = f"tensor {_shown(info.name)}"
      if info.name in ret: raise self.bad(f"appears twice; {CONVERT}")
      if info.offset % alignment: raise self.bad(f"offset {info.offset} is not a multiple of {alignment}; {CONVERT}")
      ret[info.name] = info = replace(info, offset=start + info.offset)
      if (end := info.offset + info.nbytes) > self.size: raise self.bad(f"ends at byte {end} of {self.size}; {CUT}")
    by_offset = sorted(ret.values(), key=lambda info: info.offset)
    for a, b in zip(by_offset, by_offset[1:]):
      self.field = f"tensor {_shown(b.name)}"
      if a.offset + a.nbytes > b.offset: raise self.bad(f"overlaps {_shown(a.name)}; {CONVERT}")
    return ret

  def start(self) -> tuple[int, int, int]:
    """Reads the version, the number of tensors and the number of metadata pairs."""
    if (magic := self.buf[:4]) != b"GGUF": raise self.bad(f"starts with {magic!r}; give the path of a GGUF file")
    self.pos, self.field = 4, "version"
    version = self.u32()
    if version in (2 << 24, 3 << 24): raise self.bad("the file is big-endian; convert the model for this machine")
    if version not in (2, 3): raise self.bad(f"is {version}, only 2 and 3 are supported; {CONVERT}")
    self.field = "header"
    return version, self.u64(), self.u64()

  def parse(self) -> GGUF:
    version, tensors, pairs = self.start()
    if max(tensors * 24, pairs * 13) > self.size:  # the smallest description and pair
      raise self.bad(f"{tensors} tensors and {pairs} pairs do not fit in {self.size} bytes; {CUT}")
    if tensors + pairs > MAX_ENTRIES:
      raise self.bad(f"{tensors} tensors and {pairs} pairs are more than {MAX_ENTRIES}; {DAMAGED}")
    self.metadata(pairs, kv := dict[str, Any]())
    return GGUF(self.path, version, kv, self.tensors(tensors, kv.get("general.alignment", 32)))

def _open_file(path: Path) -> GGUF:
  try:
    if path.exists() and not path.is_file(): raise _bad(path, "path", "is not a file; give the path of a GGUF file")
    with open(path, "rb") as f:
      if f.seek(0, 2) < 24: raise _bad(path, "header", f"the file is shorter than a header; {CUT}")
      with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as buf: return _Header(path, buf).parse()
  except FileNotFoundError as e: raise _bad(path, "path", "no such file; give the path of a GGUF file") from e
  except OSError as e:
    if is_shortage(e): raise _bad(path, "path", "there is no memory to map it; use a smaller model or raise ulimit -v"
                                  ) from e
    raise _bad(path, "path", f"cannot be opened ({e.strerror}); check its permissions") from e

def first_metadata(raw: bytes) -> dict[str, Any]:
  """The metadata pairs that are complete in the first bytes of a file; none if the bytes do not begin a GGUF file."""
  kv: dict[str, Any] = {}
  header = _Header(Path(), raw)
  with suppress(InputError): header.metadata(header.start()[2], kv)
  return kv

def _links(path: Path) -> Iterator[Path]:
  """A path and each target of its chain of symlinks; any of them may have the name of a part."""
  for _ in range(40):
    yield path
    if not path.is_symlink(): return
    path = path.parent / path.readlink()

def _parts(path: Path, count: int) -> list[Path]:
  """The paths of all parts beside one of them; [] if the name is not a part's."""
  if (name := PART.fullmatch(path.name)) is None or int(name[3]) != count: return []
  return [path.with_name(f"{name[1]}-{i + 1:05}-of-{count:05}{name[4] or ''}") for i in range(count)]

def open_gguf(path: str | Path) -> GGUF:
  """
  Parses the header of a GGUF file. For a split model (NAME-00001-of-00003.gguf), any part may be given; all are merged.

  InputError if anything is wrong with the file: one line that names the file, the field and the fix.
  """
  file = _open_file(path := Path(path))
  count, field = file.kv.get("split.count", 1), "metadata 'split.count'"
  if type(count) is not int or count < 1: raise _bad(path, field, f"is not a positive number; {SPLIT}")
  if count == 1: return file
  if not (found := [paths for p in _links(path) if (paths := _parts(p, count))]):
    raise _bad(path, field, f"the file is one of {count}; name them NAME-00001-of-{count:05}.gguf and so on")
  paths = next((x for x in found if all(p.exists() for p in x)), found[0])
  if gone := [p for p in paths if not p.exists()]:
    raise _bad(gone[0], "path", f"no such file; put all {count} parts of the model in one folder")
  parts, tensors = [file if p == path else _open_file(p) for p in paths], dict[str, TensorInfo]()
  for i, part in enumerate(parts):
    says = [value if type(value) is int else "?" for value in (part.kv.get("split.no"), part.kv.get("split.count"))]
    if says != [i, count]:
      raise _bad(part.path, "metadata 'split.no'", f"{says[0]} of {says[1]}, not {i} of {count}; check the file names")
    if both := tensors.keys() & part.tensors.keys():
      raise _bad(part.path, f"tensor {_shown(min(both))}", f"is in an earlier part too; {SPLIT}")
    tensors.update(part.tensors)
  total = parts[0].kv.get("split.tensors.count", len(tensors))
  if type(total) is not int or total != len(tensors):
    raise _bad(paths[0], "metadata 'split.tensors.count'", f"is {total!r:.40}, the parts hold {len(tensors)}; {SPLIT}")
  return replace(parts[0], tensors=tensors)
