"""tinygrad_llm.quantize against gguf.quants (bytes) and llama.cpp (recorded errors, mixtures); odd or bad input."""
import json
import os
import pathlib
import struct
import subprocess
import sys

import gguf
import numpy as np
import pytest

from tests.tools.record_quantize_errors import MODELS, RECORD, TYPES, by_role, rms_error, tensors
from tests.support.synthetic import write_model
from tinygrad_llm import quantize
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.quantize import FILE_TYPES, quantize_array, quantize_file, tensor_types
from tinygrad_llm.quants.quantizers import KNOWN

RECORDED = json.loads(RECORD.read_text())
TENSORS = tensors()
ROOT = pathlib.Path(__file__).parents[2]

def fields(path: pathlib.Path) -> dict[str, tuple]:
  """Metadata with its value types."""
  found = gguf.GGUFReader(path).fields
  return {key: (field.types, field.contents()) for key, field in found.items() if not key.startswith("GGUF.")}

def weights(path: pathlib.Path) -> dict[str, np.ndarray]:
  return {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}

def rms(x: np.ndarray) -> float: return float(np.sqrt(np.mean(np.square(x, dtype=np.float64))))

def command(*args: object, debug: str = "0") -> subprocess.CompletedProcess[str]:
  return subprocess.run([sys.executable, "-m", "tinygrad_llm.quantize", *map(str, args)], cwd=ROOT, capture_output=True,
                        text=True, env={**os.environ, "DEBUG": debug})

@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return write_model(tmp_path_factory.mktemp("source") / "in.gguf", dim=256, ffn=512, layers=2, vocab=300, types="F16")

# *** arrays ***

@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("type_name", TYPES)
def test_error_is_at_most_llama_cpp(type_name: str, name: str) -> None:
  x = TENSORS[name]
  with np.errstate(all="raise", under="ignore"): data = quantize_array(x, type_name)
  assert data.dtype == np.uint8
  assert data.shape == gguf.quant_shape_to_byte_shape(x.shape, gguf.GGMLQuantizationType[type_name])
  assert rms_error(x, data, type_name) <= 1.05 * RECORDED["rms_errors"][type_name][name]

@pytest.mark.parametrize("type_name", KNOWN)
def test_rows_are_independent(type_name: str) -> None:
  x = TENSORS["outliers"]
  assert np.array_equal(quantize_array(x, type_name)[3:5], quantize_array(x[3:5], type_name))

@pytest.mark.parametrize("type_name", ["Q4_K", "Q5_K", "Q6_K", "MXFP4"])
def test_out_of_range_weights_saturate(type_name: str) -> None:
  data = quantize_array(TENSORS["gaussian"] * np.float32(1e12), type_name)
  assert np.isfinite(gguf.quants.dequantize(data, gguf.GGMLQuantizationType[type_name])).all()

def test_chunk_size_does_not_change_result(monkeypatch: pytest.MonkeyPatch) -> None:
  x = TENSORS["student_t"]
  expected = {type_name: quantize_array(x, type_name) for type_name in KNOWN}
  monkeypatch.setattr("tinygrad_llm.quants.quantizers.CHUNK", 768)
  for type_name in KNOWN: assert np.array_equal(quantize_array(x, type_name), expected[type_name]), type_name

def test_rejects_bad_row_lengths_and_types() -> None:
  assert quantize_array(np.zeros((0, 256), np.float32), "Q4_K").shape == (0, 144)
  for n, type_name, message in ((300, "Q4_K", "rows of 300 weights"), (256, "Q4_K_M", "Q4_K_M; known: .*Q4_K")):
    with pytest.raises(ValueError, match=message): quantize_array(np.zeros((2, n), np.float32), type_name)

# *** files ***

@pytest.mark.parametrize("name", MODELS)
def test_tensor_types_match_llama_cpp(name: str, tmp_path: pathlib.Path) -> None:
  model = open_gguf(write_model(tmp_path / "in.gguf", **MODELS[name], blocks=True))
  for file_type in ("Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0"):
    assert by_role(tensor_types(model, file_type)) == RECORDED["mixtures"][f"{name} {file_type}"], file_type

def test_mxfp4_keeps_embedding_and_output_in_q8_0(tmp_path: pathlib.Path) -> None:
  model = open_gguf(write_model(tmp_path / "in.gguf", tied=False, types="F16"))
  types = by_role(tensor_types(model, "MXFP4"))
  assert types.pop("token_embd.weight") == types.pop("output.weight") == "Q8_0"
  assert set(types.values()) == {"MXFP4"}

@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_quantised_file(file_type: str, source: pathlib.Path, tmp_path: pathlib.Path) -> None:
  target = tmp_path / "out.gguf"
  quantize_file(source, target, file_type)
  before, after = fields(source), fields(target)
  assert after.pop("general.file_type") == ([gguf.GGUFValueType.UINT32], FILE_TYPES[file_type])
  assert after.pop("general.quantization_version") == ([gguf.GGUFValueType.UINT32], 2)
  assert after == {key: field for key, field in before.items() if key in after}
  assert before.keys() - after.keys() == {"general.file_type", "general.quantization_version"}
  expected, found = weights(source), weights(target)
  types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(target).tensors}
  assert types == tensor_types(open_gguf(source), file_type)
  assert list(found) == list(expected)
  for name, x in expected.items():
    limit = {"F32": 0, "Q8_0": 0.01, "Q6_K": 0.02, "Q5_K": 0.04, "Q4_K": 0.08, "MXFP4": 0.13}[types[name]]
    assert rms(found[name] - x) <= limit * rms(x), name
  assert list(tmp_path.iterdir()) == [target]

@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_float_input_types(kind: str, tmp_path: pathlib.Path) -> None:
  source, target = write_model(tmp_path / "in.gguf", types=kind, vocab=300), tmp_path / "out.gguf"
  quantize_file(source, target, "Q8_0")
  expected, found = weights(source), weights(target)
  for name, x in expected.items():
    if x.ndim == 2: x = gguf.quants.dequantize(quantize_array(x, "Q8_0"), gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(found[name], x), name

def test_slabs_and_splits_do_not_change_result(source: pathlib.Path, tmp_path: pathlib.Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
  whole, slabs, parts = (tmp_path / name for name in ("whole.gguf", "slabs.gguf", "parts.gguf"))
  quantize_file(source, whole, "Q4_K_M")
  monkeypatch.setattr(quantize, "SLAB", 3000)
  quantize_file(source, slabs, "Q4_K_M")
  assert slabs.read_bytes() == whole.read_bytes()
  split = write_model(tmp_path / "split.gguf", dim=256, ffn=512, layers=2, vocab=300, types="F16", split=3)
  quantize_file(split, parts, "Q4_K_M")
  assert parts.read_bytes() == whole.read_bytes()

def string(s: str) -> bytes: return struct.pack("<Q", len(s.encode())) + s.encode()

def test_metadata_types_are_copied(tmp_path: pathlib.Path) -> None:
  numbers = {0: ("B", 200), 1: ("b", -3), 2: ("H", 60000), 3: ("h", -300), 4: ("I", 2**32 - 1), 5: ("i", -5),
             6: ("f", 0.1), 7: ("?", True), 10: ("Q", 2**63), 11: ("q", -2**40), 12: ("d", 0.1)}
  pairs = [string(f"number {kind}") + struct.pack(f"<I{code}", kind, value) for kind, (code, value) in numbers.items()]
  pairs += [string(f"array {kind}") + struct.pack(f"<IIQ2{code}", 9, kind, 2, value, value)
            for kind, (code, value) in numbers.items()]
  nested = struct.pack("<IIQ", 9, 9, 2) + struct.pack("<IQ2h", 3, 2, 1, -1) + struct.pack("<IQ", 8, 1) + string("z")
  pairs += [string(key) + value for key, value in {
    "strings": struct.pack("<IIQ", 9, 8, 3) + string("a") + string("") + string("é▁"), "nested": nested,
    "empty": struct.pack("<IIQ", 9, 8, 0), "not utf-8": struct.pack("<IQ", 8, 2) + b"\xff\xfe",
    "general.alignment": struct.pack("<II", 4, 64), "general.file_type": struct.pack("<II", 4, 1)}.items()]
  infos = [string("a.weight") + struct.pack("<IQQIQ", 2, 32, 1, 0, 0),
           string("c") + struct.pack("<IQIQ", 1, 3, 26, 192), string("b.bias") + struct.pack("<IQIQ", 1, 2, 1, 128)]
  head = struct.pack("<4sIQQ", b"GGUF", 3, len(infos), len(pairs)) + b"".join(pairs) + b"".join(infos)
  a, b, c = np.arange(32, dtype="<f4").tobytes(), np.array([.5, 2], "<f2").tobytes(), struct.pack("<3i", -1, 0, 7)
  (source := tmp_path / "in.gguf").write_bytes(head + bytes(-len(head) % 64) + a + b.ljust(64, b"\0") + c)
  quantize_file(source, target := tmp_path / "out.gguf", "Q8_0")
  written, found = target.read_bytes(), open_gguf(target).tensors
  assert written.startswith(struct.pack("<4sIQQ", b"GGUF", 3, 3, len(pairs) + 1) + b"".join(pairs[:-1]))
  assert string("general.file_type") + struct.pack("<II", 4, 7) in written
  assert [(info.type, info.nbytes, info.offset % 64) for info in found.values()] == [(8, 34, 0), (26, 12, 0), (0, 8, 0)]
  assert written[found["b.bias"].offset:][:8] == struct.pack("<2f", .5, 2)
  assert written[found["c"].offset:][:12] == c

# *** what is refused ***

def test_rejects_bad_input(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
  target, folder = tmp_path / "out.gguf", tmp_path
  quantize_file(source, done := folder / "done.gguf", "Q8_0")
  (link := folder / "link.gguf").symlink_to(source)
  (cut := folder / "cut.gguf").write_bytes(source.read_bytes()[:-1000])
  first = write_model(folder / "split.gguf", vocab=300, types="F16", split=2)
  second = first.with_name(first.name.replace("00001-of", "00002-of"))
  before = source.read_bytes(), second.read_bytes()
  for args, message in {
    (folder / "none.gguf", target, "Q8_0"): "none.gguf: .*no such file", (cut, target, "Q8_0"): "cut.gguf: .* cut off",
    (source, source, "Q8_0"): "is the input file", (source, link, "Q8_0"): "is the input file",
    (first, second, "Q8_0"): "is the input file", (done, target, "Q6_K"): "done.gguf: token_embd.weight: is Q8_0 ",
    (source, target, "Q3_K_M"): "Q3_K_M: is not known; use Q4_K_M, ", (source, folder, "Q8_0"): "cannot be written",
    (source, folder / "no" / "out.gguf", "Q8_0"): "cannot be written"}.items():
    with pytest.raises(InputError, match=message): quantize_file(*args)
  assert not target.exists()
  assert (source.read_bytes(), second.read_bytes()) == before

def test_full_disk(source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  def full(*_: object) -> None: raise OSError(28, "No space left on device")
  monkeypatch.setattr("os.replace", full)
  with pytest.raises(InputError, match="out.gguf: cannot be written .No space left"):
    quantize_file(source, tmp_path / "out.gguf", "Q8_0")
  assert not list(tmp_path.iterdir())

@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_rejects_non_finite_weights(value: float, tmp_path: pathlib.Path) -> None:
  source, target = write_model(tmp_path / "in.gguf", types="F32", vocab=300), tmp_path / "out.gguf"
  info = open_gguf(source).tensors["blk.1.ffn_up.weight"]
  with open(source, "r+b") as f:
    f.seek(info.offset + 40)
    f.write(struct.pack("<f", value))
  target.write_bytes(b"precious")
  with pytest.raises(InputError, match=r"in.gguf: .*blk.1.ffn_up.weight.*(beyond 65504|is NaN or infinite)"):
    quantize_file(source, target, "Q4_K_M")
  assert target.read_bytes() == b"precious"
  assert sorted(path.name for path in tmp_path.iterdir()) == ["in.gguf", "out.gguf"]

def test_command_line(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
  ok = command(source, tmp_path / "out.gguf", "q4_k_m")
  assert (ok.returncode, ok.stdout, ok.stderr) == (0, "", "")
  bad = command(source, source, "Q4_K_M")
  assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (2, "", 1)
  assert str(source) in bad.stderr
  assert "Traceback" in command(source, source, "Q4_K_M", debug="1").stderr
  assert command(source).returncode == 2

def test_it_starts_without_tinygrad() -> None:
  """Quantising needs no tinygrad; only the patches, which any import of the package loads, import it."""
  code = ("import os, sys; os.environ['NO_PATCHES'] = '1'; import tinygrad_llm.quantize;"
          "sys.exit('tinygrad' in sys.modules)")
  assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
