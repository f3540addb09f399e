"""GGUF headers: valid files are read, damaged files are refused, and nothing else can happen."""
import os, random, struct, time, tracemalloc
from pathlib import Path
import gguf
import numpy as np
import pytest
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import GGML_TYPES, open_gguf

U8, U16, U32, I32, F32, STR, ARR, U64 = 0, 2, 4, 5, 6, 8, 9, 10

def text(s: str | bytes) -> bytes:
  raw = s.encode() if isinstance(s, str) else s
  return struct.pack("<Q", len(raw)) + raw

def pair(key: str | bytes, kind: int, value: bytes) -> bytes: return text(key) + struct.pack("<I", kind) + value

def array(kind: int, count: int, items: bytes = b"") -> bytes: return struct.pack("<IQ", kind, count) + items

def tensor(name: str | bytes, dims: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
  return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)

def build(pairs=(), tensors=(), data=0, *, magic=b"GGUF", version=3, n_tensors=None, n_pairs=None, align=32) -> bytes:
  counts = len(tensors) if n_tensors is None else n_tensors, len(pairs) if n_pairs is None else n_pairs
  head = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)
  return head + bytes(-len(head) % align + data)

def save(folder: Path, raw: bytes, name: str = "model.gguf") -> Path:
  (path := folder / name).write_bytes(raw)
  return path

def refused(path: Path, *words: str) -> None:
  with pytest.raises(InputError) as error: open_gguf(path)
  message = str(error.value)
  assert message.startswith(f"{path}: ") and "\n" not in message and ";" in message
  assert len(message) < len(str(path)) + 300
  for word in words: assert word in message, message

DTYPES = {"a.weight": np.float32, "b.weight": np.float32, "c": np.float16}

def q8_0(x: np.ndarray) -> np.ndarray: return gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0)

@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
  rng = np.random.default_rng(0)
  shapes = {"a.weight": (3, 5, 32), "b.weight": (7, 3), "c": (11,)}
  return {name: rng.standard_normal(shape).astype(DTYPES[name]) for name, shape in shapes.items()}

def write(path: Path, arrays: dict[str, np.ndarray], **split) -> None:
  w = gguf.GGUFWriter(path, "llama", **split)
  w.add_uint32("u", 7)
  w.add_int8("i", -3)
  w.add_float64("f", 0.5)
  w.add_bool("yes", True)
  w.add_string("s", "Grüße \U0001f600")
  w.add_array("strings", ["", "a", "ß" * 300])
  w.add_array("numbers", [1, -2, 3])
  w.add_array("floats", [0.5, -1.5])
  w.add_array("bools", [True, False, True])
  for name, x in arrays.items():
    if name == "a.weight": w.add_tensor(name, q8_0(x), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    else: w.add_tensor(name, x)
  w.write_header_to_file()
  w.write_kv_data_to_file()
  w.write_tensors_to_file()
  w.close()

def content(file, name: str) -> bytes:
  file.read_into(file.tensors[name], memoryview(out := bytearray(file.tensors[name].nbytes)))
  return bytes(out)

def check(file, arrays: dict[str, np.ndarray]) -> None:
  assert {name: info.shape for name, info in file.tensors.items()} == {name: x.shape for name, x in arrays.items()}
  assert [file.tensors[name].type for name in arrays] == [8, 0, 1]
  assert content(file, "a.weight") == q8_0(arrays["a.weight"]).tobytes()
  assert content(file, "b.weight") == arrays["b.weight"].tobytes() and content(file, "c") == arrays["c"].tobytes()

def test_types_match_gguf_py():
  theirs = {int(t): (t.name, *gguf.GGML_QUANT_SIZES[t]) for t in gguf.GGMLQuantizationType}
  assert theirs == GGML_TYPES

def test_reads_what_gguf_py_writes(tmp_path, arrays):
  write(tmp_path / "m.gguf", arrays)
  file = open_gguf(str(tmp_path / "m.gguf"))
  kv = file.kv
  assert (file.path, file.version, kv["general.architecture"]) == (tmp_path / "m.gguf", 3, "llama")
  assert (kv["u"], kv["i"], kv["f"], kv["s"], kv["strings"]) == (7, -3, 0.5, "Grüße \U0001f600", ["", "a", "ß" * 300])
  assert kv["yes"] is True and type(kv["u"]) is int and type(kv["f"]) is float
  assert kv["numbers"].dtype == np.int32 and kv["numbers"].tolist() == [1, -2, 3]
  assert kv["floats"].dtype == np.float32 and kv["bools"].tolist() == [True, False, True] and kv["bools"].dtype == bool
  check(file, arrays)

@pytest.mark.parametrize("given", [1, 2, 3])
def test_any_part_of_a_split_file_opens_all(tmp_path, arrays, given):
  write(tmp_path / "m.gguf", arrays, split_max_tensors=1)
  assert len(list(tmp_path.iterdir())) == 3
  file = open_gguf(tmp_path / f"m-{given:05}-of-00003.gguf")
  assert file.path.name == "m-00001-of-00003.gguf" and file.kv["u"] == 7
  check(file, arrays)

def test_missing_or_mismatched_split_files(tmp_path, arrays):
  write(tmp_path / "m.gguf", arrays, split_max_tensors=1)
  first, second, third = (tmp_path / f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3))
  raw = third.read_bytes()
  third.unlink()
  with pytest.raises(InputError, match="00003-of-00003.gguf: path: no such file; put all 3 parts"): open_gguf(first)
  third.write_bytes(second.read_bytes())
  with pytest.raises(InputError, match="split.no': 1 of 3, not 2 of 3"): open_gguf(first)
  third.write_bytes(raw)
  refused(first.rename(tmp_path / "renamed.gguf"), "one of 3", "NAME-00001-of-00003.gguf")

def test_split_files_with_wrong_tensors(tmp_path):
  def part(i: int, name: str) -> Path:
    pairs = [pair("split.no", U16, struct.pack("<H", i)), pair("split.count", U16, struct.pack("<H", 2)),
             pair("split.tensors.count", I32, struct.pack("<i", 3))]
    return save(tmp_path, build(pairs, [tensor(name, (8,))], 32), f"d-{i + 1:05}-of-00002.gguf")
  first, second = part(0, "x"), part(1, "x")
  with pytest.raises(InputError, match="tensor 'x': is in an earlier part too"): open_gguf(second)
  part(1, "y")
  with pytest.raises(InputError, match="split.tensors.count': is 3, the parts hold 2"): open_gguf(first)

def test_handmade_values(tmp_path):
  nested = array(ARR, 2, array(STR, 1, text("x")) + array(U8, 2, b"\1\2"))
  raw = build([pair("nested", ARR, nested), pair("empty", ARR, array(STR, 0)), pair("latin-1", STR, text(b"caf\xe9")),
               pair("big", U64, struct.pack("<Q", 2**64 - 1))], version=2)
  kv = open_gguf(save(tmp_path, raw)).kv
  assert kv["nested"][0] == ["x"] and kv["nested"][1].tolist() == [1, 2] and kv["empty"] == []
  assert kv["latin-1"] == "caf\ufffd" and kv["big"] == 2**64 - 1

HUGE = 1 << 60
HUGE_BYTES = struct.pack("<Q", HUGE)
ALIGNMENT = "general.alignment"
def kv(*args) -> bytes: return build([pair(*args)])
def one(*args, data: int = 32) -> bytes: return build([], [tensor("x", *args)], data)

BAD_FILES: dict[str, tuple[bytes, *tuple[str, ...]]] = {
  "empty": (b"", "shorter"),
  "short": (b"GGUF", "shorter"),
  "magic": (build(magic=b"PK\3\4"), "starts with"),
  "version 1": (build(version=1), "version: is 1"),
  "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
  "tensor count": (build(n_tensors=HUGE), "do not fit"),
  "pair count": (build(n_pairs=HUGE), "do not fit"),
  "a pair too many": (build([pair("a", U32, bytes(4))], n_pairs=2)[:41], "metadata 1"),
  "key length": (build([HUGE_BYTES + bytes(40)]), "metadata 0"),
  "empty key": (kv("", U32, bytes(4)), "0 characters"),
  "long key": (kv("k" * 70000, U32, bytes(4)), "70000"),
  "key twice": (build([pair("a", U32, bytes(4))] * 2), "metadata 'a'", "twice"),
  "key bytes": (kv(b"\xff\xfe", U32, bytes(4)), "UTF-8"),
  "key newline": (kv("a\nb", 99, b""), r"'a\nb'"),
  "value type": (kv("a", 13, bytes(8)), "metadata 'a'", "13"),
  "string length": (kv("a", STR, HUGE_BYTES), "'a'"),
  "string array": (kv("a", ARR, array(STR, HUGE)), "'a'"),
  "number array": (kv("a", ARR, array(F32, HUGE)), "'a'"),
  "array of arrays": (kv("a", ARR, array(ARR, HUGE)), "'a'"),
  "item type": (kv("a", ARR, array(13, 1)), "13"),
  "nesting": (kv("a", ARR, array(ARR, 1) * 9 + array(U8, 0)), "nested"),
  "token bytes": (kv("tokenizer.ggml.tokens", ARR, array(STR, 1, text(b"\xff"))), "tokenizer.ggml.tokens", "UTF-8"),
  "alignment": (kv(ALIGNMENT, U32, struct.pack("<I", 24)), ALIGNMENT),
  "alignment 0": (kv(ALIGNMENT, U32, bytes(4)), ALIGNMENT),
  "alignment type": (kv(ALIGNMENT, STR, text("32")), ALIGNMENT),
  "split.count": (kv("split.count", STR, text("2")), "split.count"),
  "tensor name": (build([], [tensor(b"\xff", (8,))], 32), "tensor 0", "UTF-8"),
  "tensor twice": (build([], [tensor("x", (8,)), tensor("x", (8,), 0, 32)], 64), "tensor 'x'", "twice"),
  "no dimensions": (one(()), "0 dimensions"),
  "5 dimensions": (one((1,) * 5), "5 dimensions"),
  "dimension count": (build([], [text("x") + struct.pack("<I", 1 << 31) + bytes(64)], 32), "dimensions"),
  "zero": (one((8, 0)), "shape"),
  "product": (one((1 << 32, 1 << 32)), "shape"),
  "wrapped product": (one((1 << 63, 2, 1 << 63, 4)), "shape"),
  "type": (one((32,), 31, data=64), "tensor 'x'", "type 31"),
  "row": (one((48, 2), 2, data=64), "blocks of 32", "Q4_0"),
  "offset": (one((8,), 0, 4, data=64), "offset 4"),
  "far offset": (one((8,), 0, 1 << 63), "ends at byte"),
  "past the end": (one((9,)), "ends at byte"),
  "no data": (one((8,), data=31), "tensor 'x'"),
  "overlap": (build([], [tensor("x", (16,)), tensor("y", (8,), 0, 32)], 96), "tensor 'y'", "overlaps 'x'"),
}

@pytest.mark.parametrize("name", BAD_FILES)
def test_refuses_bad_files(tmp_path, name):
  raw, *words = BAD_FILES[name]
  path = save(tmp_path, raw)
  tracemalloc.start()
  try:
    refused(path, *words)
    assert tracemalloc.get_traced_memory()[1] < 2 << 20
  finally: tracemalloc.stop()

def test_refuses_non_files(tmp_path):
  refused(tmp_path, "path", "not a file")
  refused(tmp_path / "none.gguf", "path", "no such file")
  if hasattr(os, "mkfifo"):
    os.mkfifo(tmp_path / "fifo")
    refused(tmp_path / "fifo", "not a file")

def test_read_into(tmp_path):
  file = open_gguf(path := save(tmp_path, build([], [tensor("x", (8,))], 32)))
  x = file.tensors["x"]
  with pytest.raises(ValueError): file.read_into(x, memoryview(bytearray(31)))
  file.read_into(x, memoryview(np.zeros((2, 4), np.float32)))
  os.truncate(path, path.stat().st_size - 1)
  with pytest.raises(InputError, match="tensor 'x': the file ends inside it"): content(file, "x")
  path.unlink()
  with pytest.raises(InputError, match="tensor 'x': cannot be read"): content(file, "x")

def test_mutations_end_in_an_error_or_a_sound_header(tmp_path, arrays):
  write(tmp_path / "m.gguf", arrays)
  good, rng, outcomes = (tmp_path / "m.gguf").read_bytes(), random.Random(0), [0, 0]
  end = min(info.offset for info in open_gguf(tmp_path / "m.gguf").tensors.values())
  numbers = (0, 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1)
  for i in range(600):
    raw, at = bytearray(good), rng.randrange(end)
    if i % 3 == 0: raw[at:at + 8] = struct.pack("<Q", rng.choice(numbers))
    elif i % 3 == 1:
      for _ in range(rng.randrange(1, 4)): raw[rng.randrange(end)] = rng.randrange(256)
    else: raw = raw[:at] + (raw[at + rng.randrange(1, 9):] if i % 2 else b"")
    path = save(tmp_path, raw)
    try: file = open_gguf(path)
    except InputError as e:
      assert "\n" not in str(e)
      outcomes[0] += 1
      continue
    outcomes[1] += 1
    for info in file.tensors.values():
      assert info.path == path and info.offset + info.nbytes <= len(raw)
      try: assert content(file, info.name)
      except InputError as e: assert "is NaN or infinite" in str(e)
  assert min(outcomes) > 50

def test_a_large_vocabulary_opens_fast(tmp_path):
  tokens = [text(f"Ġtoken{i}") for i in range(128_256)]
  merges = [text(f"Ġt{i} oken{i}") for i in range(280_147)]
  numbers = bytes(4 * len(tokens))
  path = save(tmp_path, build([pair("tokenizer.ggml.tokens", ARR, array(STR, len(tokens), b"".join(tokens))),
                               pair("tokenizer.ggml.merges", ARR, array(STR, len(merges), b"".join(merges))),
                               pair("tokenizer.ggml.scores", ARR, array(F32, len(tokens), numbers)),
                               pair("tokenizer.ggml.token_type", ARR, array(I32, len(tokens), numbers))]))
  start = time.perf_counter()
  file = open_gguf(path)
  assert time.perf_counter() - start < 2  # measured: 0.14 s
  assert file.kv["tokenizer.ggml.tokens"][-1] == "Ġtoken128255" and len(file.kv["tokenizer.ggml.merges"]) == 280_147
