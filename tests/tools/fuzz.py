"""
Fuzzes the model loader with malformed GGUFs: sound models, mutated at places that matter.

Every case must end in an InputError of one line or in a loaded model. A traceback, a warning, a hang, a crash, a
message that does not name the file, 500 MB of memory: each is a finding, and --out keeps its file. A case depends only
on the seed and on its number.

  python tests/tools/fuzz.py --count 10000 --seed 1
  python tests/tools/fuzz.py --seed 1 --only 4711 --out /tmp     writes that case's file, with the traceback
"""
from __future__ import annotations
import argparse, collections, faulthandler, gc, json, math, os, pathlib, random, re, resource, shutil, signal, struct
import subprocess, sys, tempfile, time, traceback, warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

os.environ.setdefault("DEV", "CPU")
ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS, MEMORY = 2.0, 500 << 20  # limits of a case: CPU time; memory and address space beyond the program's own

# *** a model file in pieces ***

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B", U64: "<Q", I64: "<q",
           F64: "<d"}

def pack(kind: int, value: Any) -> bytes:
  """The bytes of a metadata value; an array is (type of its elements, list of values)."""
  if kind == STRING:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw
  if kind == ARRAY: return struct.pack("<IQ", value[0], len(value[1])) + b"".join(pack(value[0], x) for x in value[1])
  return struct.pack(FORMATS[kind], value)

class Pair(NamedTuple):
  key: bytes
  kind: int
  value: bytes
  def raw(self) -> bytes: return pack(STRING, self.key) + struct.pack("<I", self.kind) + self.value

class TensorEntry(NamedTuple):
  name: bytes
  dims: tuple[int, ...]
  kind: int
  offset: int
  def raw(self) -> bytes:
    return pack(STRING, self.name) + struct.pack(f"<I{len(self.dims)}QIQ", len(self.dims), *self.dims, self.kind,
                                                 self.offset)

@dataclass(frozen=True)
class Parts:
  """A file in parts. counts: the header's (tensors, pairs), if they are to differ from the real ones."""
  pairs: tuple[Pair, ...]
  tensors: tuple[TensorEntry, ...]
  data: bytes
  start: bytes = b"GGUF" + struct.pack("<I", 3)
  counts: tuple[int, int] | None = None

  def head(self) -> bytes:
    counts = self.counts or (len(self.tensors), len(self.pairs))
    entries = (*self.pairs, *self.tensors)
    return self.start + struct.pack("<QQ", *counts) + b"".join(entry.raw() for entry in entries)

  def raw(self) -> bytes:
    head = self.head()
    return head + bytes(-len(head) % 32) + self.data

class Spot(NamedTuple):
  """A number in the header: its offset, its bytes, its meaning."""
  at: int
  size: int
  what: str

@dataclass(frozen=True)
class Sample:
  """A sound file: its bytes, its parts, the numbers of its header (spots), and the offsets of its fields (bounds)."""
  raw: bytes
  parts: Parts
  spots: list[Spot] = field(repr=False)
  bounds: list[int] = field(repr=False)

  @property
  def header(self) -> int: return self.bounds[-1]

def take_apart(raw: bytes) -> Sample:
  """Parses a sound file. ValueError or KeyError for others, mostly because they end too early."""
  at, spots, bounds = 0, list[Spot](), [0, 4, 8]
  def skip(size: int) -> None:
    nonlocal at
    if (at := at + size) > len(raw): raise ValueError("the file is cut off")
  def number(size: int, what: str) -> int:
    spots.append(Spot(at, size, what))
    skip(size)
    return int.from_bytes(raw[at - size:at], "little")
  def string(what: str) -> bytes:
    skip(size := number(8, what))
    return raw[at - size:at]
  def value(kind: int, top: bool) -> None:
    if kind == STRING: string("string length") if top else skip(int.from_bytes(raw[at:at + 8], "little") + 8)
    elif kind == ARRAY:
      inner, count = number(4, "array type"), number(8, "array count")
      bounds.append(at)
      if inner in FORMATS: skip(count * struct.calcsize(FORMATS[inner]))
      else:
        if count and inner == STRING: spots.append(Spot(at, 8, "string length"))
        for _ in range(count): value(inner, False)
    else: number(struct.calcsize(FORMATS[kind]), "value")
  at = 4
  number(4, "version")
  n_tensors, n_pairs = number(8, "tensor count"), number(8, "pair count")
  pairs, tensors = list[Pair](), list[TensorEntry]()
  for _ in range(n_pairs):
    bounds.append(at)
    key, kind = string("key length"), number(4, "value type")
    bounds.append(start := at)
    value(kind, True)
    pairs.append(Pair(key, kind, raw[start:at]))
  for _ in range(n_tensors):
    bounds.append(at)
    name, dims = string("name length"), number(4, "dimension count")
    shape = tuple(number(8, "dimension") for _ in range(dims))
    bounds.append(at)
    tensors.append(TensorEntry(name, shape, number(4, "tensor type"), number(8, "offset")))
  bounds.append(at)
  data = raw[at + -at % 32:]
  sample = Sample(raw, Parts(tuple(pairs), tuple(tensors), data), spots, bounds)
  if sample.parts.raw() != raw: raise ValueError("the parts do not make the file")
  return sample

def samples(folder: pathlib.Path) -> list[Sample]:
  """A small file of each supported architecture."""
  from tests.support.synthetic import write_model
  from tinygrad_llm.nn.archs import ARCHS
  return [take_apart(write_model(folder / f"{arch}.gguf", arch, types="Q8_0").read_bytes()) for arch in ARCHS]

# *** mutations ***

NUMBERS = (0, 1, 2, 3, 7, 255, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 60, (1 << 63) - 1,
           1 << 63, (1 << 64) - 1)
TEXTS = (b"", b"\0", b"x", b"none", b"\xff\xfe", b"a\nb\x1b[2J", b"-1", b"{{ 1 / 0 }}", b"{% for", b"\xed\xa0\x80",
         "\U0001f600\u2028".encode(), b"%s" * 50, b"A" * 5000)
FLOATS = (0.0, -0.0, -1.0, 1e-45, 1e-30, 0.5, 3.4e38, math.inf, -math.inf, math.nan)
# values (type, value) of every type, for keys that expect another one
VALUES: tuple[tuple[int, Any], ...] = (
  *((STRING, text) for text in TEXTS if len(text) < 1000), *((F32, x) for x in FLOATS), (F64, 1e308), (F64, -1e308),
  (BOOL, 0), (BOOL, 1), (BOOL, 7), (U8, 0), (U8, 255), (I8, -1), (I16, -32768), (I32, -1), (I32, -2**31), (U32, 2**31),
  (U32, 2**32 - 1), (I64, -2**63), (I64, 2**53), (U64, 2**64 - 1), (U32, 1), (U32, 2), (U32, 3), (U32, 64),
  (ARRAY, (I32, [])), (ARRAY, (I32, [1])), (ARRAY, (I32, [1, 2])), (ARRAY, (U32, [3] * 300)),
  (ARRAY, (F32, [math.nan] * 512)),
  (ARRAY, (F32, [math.inf] * 512)), (ARRAY, (BOOL, [1, 0])), (ARRAY, (STRING, [])), (ARRAY, (STRING, ["a"])),
  (ARRAY, (STRING, [""] * 512)), (ARRAY, (STRING, ["a"] * 512)), (ARRAY, (STRING, ["1", "2"])), (ARRAY, (ARRAY, [])),
  (ARRAY, (ARRAY, [(I32, [1, 2]), (STRING, ["x"])])), (ARRAY, (ARRAY, [(I32, [4])] * 512)))
TENSOR_TYPES = (*range(42), 100, 1 << 31, (1 << 32) - 1)

Mutator = Callable[[random.Random, Sample], bytes]
MUTATORS: dict[str, Mutator] = {}

def mutator(function: Mutator) -> Mutator:
  MUTATORS[function.__name__] = function
  return function

def edited(sample: Sample, **changes: Any) -> bytes: return replace(sample.parts, **changes).raw()

def swapped(rng: random.Random, items: tuple[Any, ...], change: Callable[[Any], Any]) -> tuple[Any, ...]:
  """The items with a random one changed."""
  i = rng.randrange(len(items))
  return (*items[:i], change(items[i]), *items[i + 1:])

@mutator
def header_bytes(rng: random.Random, sample: Sample) -> bytes:
  raw = bytearray(sample.raw)
  for _ in range(rng.randrange(1, 5)): raw[rng.randrange(sample.header)] = rng.randrange(256)
  return bytes(raw)

@mutator
def header_bits(rng: random.Random, sample: Sample) -> bytes:
  raw = bytearray(sample.raw)
  for _ in range(rng.randrange(1, 3)): raw[rng.randrange(sample.header)] ^= 1 << rng.randrange(8)
  return bytes(raw)

@mutator
def any_bytes(rng: random.Random, sample: Sample) -> bytes:
  raw, size = bytearray(sample.raw), rng.choice((1, 2, 4, 64, 4096))
  at = rng.randrange(len(raw))
  raw[at:at + size] = bytes([rng.choice((0, 0xff, 0x7f))]) * len(raw[at:at + size]) if rng.random() < 0.5 else \
                      rng.randbytes(len(raw[at:at + size]))
  return bytes(raw)

@mutator
def cut_anywhere(rng: random.Random, sample: Sample) -> bytes: return sample.raw[:rng.randrange(len(sample.raw))]

@mutator
def cut_at_boundary(rng: random.Random, sample: Sample) -> bytes:
  return sample.raw[:max(0, rng.choice(sample.bounds) + rng.randrange(-1, 2))]

@mutator
def moved(rng: random.Random, sample: Sample) -> bytes:
  """Inserts or removes some bytes in the header."""
  at, size = rng.randrange(sample.header), rng.randrange(1, 40)
  return sample.raw[:at] + (rng.randbytes(size) + sample.raw[at:] if rng.random() < 0.5 else sample.raw[at + size:])

@mutator
def number(rng: random.Random, sample: Sample) -> bytes:
  """Changes a count, length, dimension, offset, type or value. It draws the kind first, as most are string lengths."""
  what = rng.choice(sorted({spot.what for spot in sample.spots}))
  spot = rng.choice([spot for spot in sample.spots if spot.what == what])
  old = int.from_bytes(sample.raw[spot.at:spot.at + spot.size], "little")
  near = (old - 1, old + 1, old * 2, old // 2, old << 32, len(sample.raw), len(sample.raw) - spot.at)
  new = rng.choice(NUMBERS if rng.random() < 0.5 else near) % (1 << 8 * spot.size)
  return sample.raw[:spot.at] + new.to_bytes(spot.size, "little") + sample.raw[spot.at + spot.size:]

@mutator
def start(rng: random.Random, sample: Sample) -> bytes:
  version = rng.choice((0, 1, 2, 3, 4, 1 << 24, 2 << 24, 3 << 24, (1 << 32) - 1))
  magic = rng.choice((b"GGUF", b"GGUF", b"FUGG", b"ggml", b"PK\3\4", bytes(4)))
  return edited(sample, start=magic + struct.pack("<I", version))

@mutator
def counts(rng: random.Random, sample: Sample) -> bytes:
  true = len(sample.parts.tensors), len(sample.parts.pairs)
  return edited(sample, counts=tuple(rng.choice((n, n - 1, n + 1, *NUMBERS)) for n in true))

@mutator
def value_type(rng: random.Random, sample: Sample) -> bytes:
  kind, value = rng.choice(VALUES)
  def change(p: Pair) -> Pair: return p._replace(kind=kind, value=pack(kind, value))
  return edited(sample, pairs=swapped(rng, sample.parts.pairs, change))

@mutator
def value_number(rng: random.Random, sample: Sample) -> bytes:
  """Another number or text of the right type."""
  def change(p: Pair) -> Pair:
    if p.kind in (F32, F64): return p._replace(value=pack(p.kind, rng.choice(FLOATS)))
    if p.kind == STRING: return p._replace(value=pack(STRING, rng.choice(TEXTS)))
    if p.kind == ARRAY: return p
    size, old = len(p.value), int.from_bytes(p.value, "little")
    new = rng.choice((*NUMBERS, old - 1, old + 1, old * 2, old * 64, old // 2)) % (1 << 8 * size)
    return p._replace(value=new.to_bytes(size, "little"))
  scalars = [i for i, p in enumerate(sample.parts.pairs) if p.kind != ARRAY]
  i, pairs = rng.choice(scalars), list(sample.parts.pairs)
  pairs[i] = change(pairs[i])
  return edited(sample, pairs=tuple(pairs))

@mutator
def pair_lost(rng: random.Random, sample: Sample) -> bytes:
  i, pairs = rng.randrange(len(sample.parts.pairs)), sample.parts.pairs
  return edited(sample, pairs=pairs[:i] + pairs[i + 1:])

@mutator
def pair_again(rng: random.Random, sample: Sample) -> bytes:
  return edited(sample, pairs=(*sample.parts.pairs, rng.choice(sample.parts.pairs)))

@mutator
def pair_renamed(rng: random.Random, sample: Sample) -> bytes:
  other = rng.choice(sample.parts.pairs).key
  def change(p: Pair) -> Pair: return p._replace(key=rng.choice((*TEXTS, p.key + b"x", other)))
  return edited(sample, pairs=swapped(rng, sample.parts.pairs, change))

@mutator
def pair_added(rng: random.Random, sample: Sample) -> bytes:
  """Adds a key that some architecture reads and this file lacks."""
  kind, value = rng.choice(VALUES)
  have, prefix = {p.key for p in sample.parts.pairs}, architecture(sample)
  name = rng.choice([key for key in read_keys() if key.replace("*", prefix).encode() not in have] or ["x"])
  return edited(sample, pairs=(*sample.parts.pairs, Pair(name.replace("*", prefix).encode(), kind, pack(kind, value))))

@mutator
def values_swapped(rng: random.Random, sample: Sample) -> bytes:
  pairs, (i, j) = list(sample.parts.pairs), rng.sample(range(len(sample.parts.pairs)), 2)
  pairs[i], pairs[j] = pairs[i]._replace(key=pairs[j].key), pairs[j]._replace(key=pairs[i].key)
  return edited(sample, pairs=tuple(pairs))

@mutator
def other_architecture(rng: random.Random, sample: Sample) -> bytes:
  """Claims another architecture for the tensors, with the keys renamed or not."""
  old, new = architecture(sample), rng.choice((*known_architectures(), "gpt9", ""))
  def change(p: Pair) -> Pair:
    if p.key == b"general.architecture": return p._replace(value=pack(STRING, new))
    return p._replace(key=p.key.replace(f"{old}.".encode(), f"{new}.".encode(), 1)) if rename else p
  rename = rng.random() < 0.8
  return edited(sample, pairs=tuple(map(change, sample.parts.pairs)))

@mutator
def array_items(rng: random.Random, sample: Sample) -> bytes:
  """Changes an element of an array, or their number."""
  def change(p: Pair) -> Pair:
    inner, count = struct.unpack_from("<IQ", p.value)
    if inner == STRING:
      items, at = list[bytes](), 12
      for _ in range(count):
        size = int.from_bytes(p.value[at:at + 8], "little")
        items.append(p.value[at + 8:at + 8 + size])
        at += 8 + size
      how = rng.randrange(4)
      i = rng.randrange(count)
      if how == 0: items[i] = rng.choice((*TEXTS, b"a b c", b" ", b"a ", b" b", "ä ö".encode()))
      elif how == 1: items[i] = rng.choice(items)
      elif how == 2: items = items[:rng.choice((0, 1, i, count - 1))]
      else: items += [rng.choice(items)] * rng.randrange(1, 3)
      return p._replace(value=pack(ARRAY, (STRING, items)))
    size = struct.calcsize(FORMATS[inner])
    items = [p.value[12 + i * size:12 + i * size + size] for i in range(count)]
    i = rng.randrange(count)
    if rng.random() < 0.4: items = items[:i] + items[:rng.randrange(3)]
    elif inner in (F32, F64): items[i] = pack(inner, rng.choice(FLOATS))
    else: items[i] = (rng.choice(NUMBERS) % (1 << 8 * size)).to_bytes(size, "little")
    return p._replace(value=struct.pack("<IQ", inner, len(items)) + b"".join(items))
  pairs = list(sample.parts.pairs)
  arrays = [i for i, p in enumerate(pairs) if p.kind == ARRAY and int.from_bytes(p.value[4:12], "little")]
  i = rng.choice(arrays)
  pairs[i] = change(pairs[i])
  return edited(sample, pairs=tuple(pairs))

@mutator
def tensor_lost(rng: random.Random, sample: Sample) -> bytes:
  i, tensors = rng.randrange(len(sample.parts.tensors)), sample.parts.tensors
  return edited(sample, tensors=tensors[:i] + tensors[i + 1:])

@mutator
def tensor_again(rng: random.Random, sample: Sample) -> bytes:
  return edited(sample, tensors=(*sample.parts.tensors, rng.choice(sample.parts.tensors)))

@mutator
def tensor_names(rng: random.Random, sample: Sample) -> bytes:
  tensors, (i, j) = list(sample.parts.tensors), rng.sample(range(len(sample.parts.tensors)), 2)
  a, b = tensors[i], tensors[j]
  if rng.random() < 0.5: tensors[i], tensors[j] = a._replace(name=b.name), b._replace(name=a.name)
  else: tensors[i] = tensors[i]._replace(name=rng.choice(TEXTS))
  return edited(sample, tensors=tuple(tensors))

@mutator
def tensor_dims(rng: random.Random, sample: Sample) -> bytes:
  def change(t: TensorEntry) -> TensorEntry:
    dims = list(t.dims)
    how, i = rng.randrange(6), rng.randrange(len(dims))
    if how == 0: dims = dims[::-1]
    elif how == 1: dims[i] += rng.choice((-32, -1, 1, 32))
    elif how == 2: dims[i] = rng.choice(NUMBERS)
    elif how == 3: dims = [*dims, 1]
    elif how == 4: dims = [math.prod(dims)]
    else: dims[i:i + 1] = [max(1, dims[i] // 2), 2]
    return t._replace(dims=tuple(x % (1 << 64) for x in dims))
  return edited(sample, tensors=swapped(rng, sample.parts.tensors, change))

@mutator
def tensor_type(rng: random.Random, sample: Sample) -> bytes:
  return edited(sample, tensors=swapped(rng, sample.parts.tensors, lambda t: t._replace(kind=rng.choice(TENSOR_TYPES))))

@mutator
def tensor_offset(rng: random.Random, sample: Sample) -> bytes:
  end = len(sample.parts.data)
  def change(t: TensorEntry) -> TensorEntry:
    other = rng.choice(sample.parts.tensors).offset
    near = (other, t.offset + 32, t.offset - 32, t.offset + 1, end, end - 32)
    return t._replace(offset=rng.choice((*near, *NUMBERS)) % (1 << 64))
  return edited(sample, tensors=swapped(rng, sample.parts.tensors, change))

@mutator
def weights(rng: random.Random, sample: Sample) -> bytes:
  """Overwrites weights with non-finite, huge or zero numbers."""
  t, data = rng.choice(sample.parts.tensors), bytearray(sample.parts.data)
  size = rng.choice((2, 4, 34, 512))
  pattern = rng.choice((b"\xff", b"\0", b"\x7f", b"\0\x7c", b"\0\0\x80\x7f"))
  data[t.offset:t.offset + size] = (pattern * size)[:size]
  return edited(sample, data=bytes(data[:len(sample.parts.data)]))

def mutate(rng: random.Random, sample: Sample) -> tuple[str, bytes]:
  """A case: (names of its mutators, bytes). Some files get two mutations."""
  name = rng.choice(list(MUTATORS))
  raw = MUTATORS[name](rng, sample)
  if rng.random() > 0.15: return name, raw
  try: again = take_apart(raw)
  except (ValueError, KeyError, struct.error): return name, raw
  if not (again.parts.pairs and again.parts.tensors): return name, raw
  second = rng.choice([value_type, value_number, tensor_dims, tensor_type, header_bytes, pair_added])
  return f"{name}+{second.__name__}", second(rng, again)

def architecture(sample: Sample) -> str:
  found = (p.value[8:] for p in sample.parts.pairs if p.key == b"general.architecture")
  return next(found, b"").decode("utf-8", "replace")

def known_architectures() -> list[str]:
  from tinygrad_llm.nn.archs import ARCHS
  return list(ARCHS)

_KEYS: list[str] = []

def read_keys() -> list[str]:
  """Metadata keys found in the loader's source, with `*` for the architecture, so that new keys are tried, too."""
  if not _KEYS:
    import tinygrad_llm
    text = (pathlib.Path(tinygrad_llm.__file__).parent / "nn" / "reader.py").read_text()
    _KEYS.extend(sorted({f"*.{key}" for key in re.findall(r'\(f?"([a-z_]+(?:\.[a-z_]+)*)"', text) if "_" in key}))
    _KEYS.extend(f"tokenizer.ggml.{key}" for key in (
      "scores", "add_bos_token", "add_eos_token", "add_space_prefix", "bos_token_id", "eos_token_id", "eot_token_id",
      "eom_token_id", "unknown_token_id", "padding_token_id", "token_type", "pre", "precompiled_charsmap"))
    _KEYS.extend(("tokenizer.chat_template", "tokenizer.chat_template.tool_use", "general.alignment", "split.count",
                  "split.no"))
  return _KEYS

# *** required outcomes ***

class Slow(BaseException): pass

def alarm(*_: object) -> None: raise Slow

def judge(load: Callable[[], object], path: str) -> tuple[str, str]:
  """(outcome, detail) of a load: "loaded", "refused", or a finding."""
  from tinygrad_llm.errors import InputError
  signal.signal(signal.SIGPROF, alarm)  # CPU time: the machine may be busy with something else
  signal.setitimer(signal.ITIMER_PROF, SECONDS)
  try:
    with warnings.catch_warnings():
      for category in (RuntimeWarning, FutureWarning, UserWarning, SyntaxWarning):
        warnings.simplefilter("error", category)
      load()
    return "loaded", ""
  except InputError as e: return complaint(str(e), path)
  except Slow: return "slow", f"more than {SECONDS} s\n{traceback.format_exc()}"
  except KeyboardInterrupt: raise
  except BaseException as e: return "exception", f"{type(e).__name__}: {e}"[:300] + "\n" + traceback.format_exc()[-900:]
  finally: signal.setitimer(signal.ITIMER_PROF, 0)

def complaint(message: str, path: str) -> tuple[str, str]:
  """(outcome, detail) of an error message, which must be one printable line: "path: field: problem; fix"."""
  rest = message.removeprefix(f"{path}: ")
  if rest == message: return "message", f"does not name the file: {message[:300]}"
  if not message.isprintable(): return "message", f"not one printable line: {message[:300]!r}"
  if len(rest) > 1500: return "message", f"{len(rest)} characters: {message[:300]}"
  if ": " not in rest or ";" not in rest: return "message", f"no field or no fix: {message}"
  return "refused", rest

def load_model(path: pathlib.Path) -> None:
  """Runs everything of a model's loading before the first kernel."""
  from tinygrad_llm.device.device import check_device
  from tinygrad_llm.engine.llm import LLM
  from tinygrad_llm.files.gguf import open_gguf
  check_device()
  for info in open_gguf(path).tensors.values():
    assert 0 <= info.offset <= info.offset + info.nbytes <= path.stat().st_size, f"{info} is outside of the file"
  LLM(str(path), max_context=32, chunk=8, dequantize=False, progress=False)

def cases(seed: int, first: int, count: int, sound: list[Sample]) -> Iterator[tuple[int, str, bytes]]:
  for i in range(first, first + count):
    rng = random.Random(f"{seed}/{i}")
    yield i, *mutate(rng, rng.choice(sound))

def address_space() -> int: return int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

def peak() -> int: return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

def work(seed: int, first: int, count: int, folder: pathlib.Path, out: pathlib.Path | None, show: bool) -> None:
  """Runs cases in a process that may crash. Prints a line of JSON for each finding, and one at the end."""
  faulthandler.enable()
  sound, path = samples(folder), folder / "case.gguf"
  for sample in sound:
    path.write_bytes(sample.raw)
    load_model(path)  # asserts that the sample is sound, and imports everything
  gc.collect()
  gc.freeze()
  before = peak()
  if pathlib.Path("/proc/self/statm").exists(): resource.setrlimit(resource.RLIMIT_AS, (address_space() + MEMORY,) * 2)
  outcomes: collections.Counter[str] = collections.Counter()
  used: collections.Counter[str] = collections.Counter()
  longest, began = 0.0, time.perf_counter()
  for i, name, raw in cases(seed, first, count, sound):
    path.write_bytes(raw)
    (folder / "number").write_text(str(i))
    faulthandler.dump_traceback_later(30 * SECONDS, exit=True)  # for hangs that no signal ends
    clock = time.process_time()
    outcome, detail = judge(lambda: load_model(path), str(path))
    longest = max(longest, time.process_time() - clock)
    faulthandler.cancel_dump_traceback_later()
    outcomes[outcome] += 1
    used[name.split("+")[0]] += 1
    if show: print(f"{i} {name} {outcome}: {detail}", file=sys.stderr)
    if outcome not in ("loaded", "refused"):
      if out: shutil.copy(path, out / f"finding-{seed}-{i}.gguf")
      print(json.dumps({"case": i, "mutator": name, "outcome": outcome, "detail": detail}), flush=True)
    if i % 16 == 0: gc.collect()
  print(json.dumps({"outcomes": outcomes, "used": used, "longest": longest, "seconds": time.perf_counter() - began,
                    "memory": peak() - before}), flush=True)

def run(seed: int, count: int, first: int = 0, out: pathlib.Path | None = None, show: bool = False) -> dict[str, Any]:
  """
  Runs cases in a child process, and in a new one after each crash.

  Returns counts of outcomes and of used mutators, the longest case in seconds, the growth of memory in bytes, and
  findings: a list of {case, mutator, outcome, detail}.
  """
  report: dict[str, Any] = {"outcomes": collections.Counter(), "used": collections.Counter(), "longest": 0.0,
                            "memory": 0, "seconds": 0.0, "findings": []}
  end = first + count
  while first < end:
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
      folder = pathlib.Path(name)
      command = [sys.executable, __file__, "--worker", name, "--seed", str(seed), "--first", str(first),
                 "--count", str(end - first)]
      if out: command += ["--out", str(out)]
      if show: command += ["--show"]
      done = subprocess.run(command, stdout=subprocess.PIPE, stderr=None if show else subprocess.PIPE, text=True,
                            env={**os.environ, "PYTHONPATH": str(ROOT)})
      lines = [json.loads(line) for line in done.stdout.splitlines()]
      for line in lines:
        if "case" in line: report["findings"].append(line)
        else:
          for key in ("outcomes", "used"): report[key].update(line[key])
          for key in ("longest", "memory"): report[key] = max(report[key], line[key])
          report["seconds"] += line["seconds"]
      if done.returncode == 0: break
      if not (folder / "number").exists(): raise RuntimeError(f"the cases do not start: {(done.stderr or '')[-3000:]}")
      at = int((folder / "number").read_text())
      if out: shutil.copy(folder / "case.gguf", out / f"finding-{seed}-{at}.gguf")
      report["findings"].append({"case": at, "mutator": "", "outcome": "crash",
                                 "detail": f"exit code {done.returncode}\n{(done.stderr or '')[-2000:]}"})
      first = at + 1
  return report

def main() -> None:
  ap = argparse.ArgumentParser(description="Load mutated model files: each must be refused in one line, or load.")
  ap.add_argument("--count", type=int, default=2000, help="cases (default 2000)")
  ap.add_argument("--seed", type=int, default=1)
  ap.add_argument("--first", type=int, default=0, help="number of the first case")
  ap.add_argument("--only", type=int, help="one case by its number, with its traceback")
  ap.add_argument("--out", type=pathlib.Path, help="folder for the files of findings")
  ap.add_argument("--show", action="store_true", help="print every case's outcome")
  ap.add_argument("--worker", type=pathlib.Path, help=argparse.SUPPRESS)
  args = ap.parse_args()
  if args.only is not None: args.first, args.count, args.show = args.only, 1, True
  if args.out: args.out.mkdir(parents=True, exist_ok=True)
  if args.worker: return work(args.seed, args.first, args.count, args.worker, args.out, args.show)
  report = run(args.seed, args.count, args.first, args.out, args.show)
  for finding in report["findings"]: print("case {case} ({mutator}): {outcome}: {detail}".format(**finding))
  print(f"{args.count} cases, {dict(report['outcomes'])}, {report['seconds']:.1f} s, longest {report['longest']:.2f} s"
        f", memory +{report['memory'] >> 20} MiB, {len(report['findings'])} findings")
  sys.exit(1 if report["findings"] else 0)

if __name__ == "__main__": main()
