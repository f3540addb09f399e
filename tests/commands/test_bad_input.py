"""Wrong files and environments: one line that names the culprit and the fix, quickly and with little memory."""
import errno
import os
import pathlib
import struct
import subprocess
import sys
from dataclasses import replace
import pytest
from tests.support import child, extended
from tests.support.extended import some
from tests.tools import fuzz
from tests.tools.fuzz import ARRAY, F32, I32, STRING, U8, U32, Pair, Sample, edited, pack
from tinygrad_llm.command import _line
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import GGUF, MAX_STRINGS, open_gguf
from tinygrad_llm.nn.archs import ARCHS
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.model import Model
from tinygrad_llm.nn.reader import read_config
from tinygrad_llm.text.chat_template import ChatTemplate
from tinygrad_llm.text.tokenizer import Tokenizer
from tinygrad_llm.weights.loader import Loader

HUGE = 1 << 60

@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Sample]:
  return dict(zip(ARCHS, fuzz.samples(tmp_path_factory.mktemp("samples"))))

# *** loading mutated files

@extended.extended
def test_fuzzed_files_are_loaded_or_refused():
  report = fuzz.run(seed=2, count=250)
  assert report["findings"] == []
  assert report["memory"] < fuzz.MEMORY and report["longest"] < fuzz.SECONDS
  assert set(report["used"]) == set(fuzz.MUTATORS)
  assert report["outcomes"]["loaded"] + report["outcomes"]["refused"] == 250
  assert min(report["outcomes"].values()) > 20  # a mix of sound and broken files

@pytest.mark.parametrize(("error", "outcome"), [
  (None, "loaded"), (InputError("m.gguf: field: wrong; mend it"), "refused"),
  (InputError("field: wrong; mend it"), "message"), (InputError("m.gguf: wrong"), "message"),
  (InputError("m.gguf: field: wro\nng; mend it"), "message"),
  (ValueError("x"), "exception"), (MemoryError(), "exception"), (RuntimeWarning("x"), "exception"),
  (fuzz.Slow(), "slow")])
def test_judge_classifies_errors(error, outcome):
  def load() -> None:
    if error is not None: raise error
  assert fuzz.judge(load, "m.gguf")[0] == outcome

def test_judge_stops_a_hang(monkeypatch):
  monkeypatch.setattr(fuzz, "SECONDS", 0.05)
  def forever() -> None:
    while True: pass
  assert fuzz.judge(forever, "m.gguf")[0] == "slow"

@extended.extended
def test_worker_crash_is_reported_and_fuzzing_continues(monkeypatch, tmp_path):
  """A worker dies in case 1 of 4: the file of that case is kept, and the other cases run."""
  (worker := tmp_path / "worker.py").write_text(
    f"import sys, os; sys.path.insert(0, {str(child.ROOT)!r}); from tests.tools import fuzz\n"
    "judge = fuzz.judge\n"
    "def dying(load, path):\n"
    "  if open(os.path.join(os.path.dirname(path), 'number')).read() == '1': os.abort()\n"
    "  return judge(load, path)\n"
    "fuzz.judge = dying\nfuzz.main()\n")
  monkeypatch.setattr(fuzz, "__file__", str(worker))
  report = fuzz.run(seed=2, count=4, out=tmp_path)
  assert [(x["case"], x["outcome"]) for x in report["findings"]] == [(1, "crash")]
  assert sum(report["outcomes"].values()) == 2 and (tmp_path / "finding-2-1.gguf").exists()

@pytest.mark.parametrize("all_samples", extended.sample([False, True], [False]))
def test_truncated_at_every_section(samples, tmp_path, all_samples):
  path = tmp_path / "cut.gguf"
  for found in [*samples.values()][:None if all_samples else 1]:
    data = [len(found.raw) - len(found.parts.data) + t.offset for t in found.parts.tensors]
    for at in sorted({max(0, x + d) for x in (*found.bounds, *data, len(found.raw) - 1) for d in (-1, 0, 1)}):
      if at >= len(found.raw): continue
      path.write_bytes(found.raw[:at])
      with pytest.raises(InputError) as e: open_gguf(path)
      assert fuzz.complaint(str(e.value), str(path))[0] == "refused", e.value

# *** every key that is read, with every wrong type

class Recorder(dict):
  """Metadata that records which keys were read."""
  def __init__(self, kv): super().__init__(kv); self.asked = set()
  def get(self, key, default=None): self.asked.add(key); return super().get(key, default)
  def __contains__(self, key): self.asked.add(key); return super().__contains__(key)
  def __getitem__(self, key): self.asked.add(key); return super().__getitem__(key)

def build(file: GGUF, sound: ModelConfig | None, key: str) -> None:
  """Builds a model as the engine does, without the parts that do not depend on the key."""
  if sound is None or key.startswith("tokenizer."):
    try: Tokenizer.from_gguf(file.kv), ChatTemplate.from_gguf(file.kv)
    except InputError as e: raise InputError(f"{file.path}: {e}") from e
    if sound is not None: return
  if (config := read_config(file)) == sound: return
  try:
    with Loader(file, False, False) as loader: Model(config, loader, min(32, config.context_length))
  except (MemoryError, OSError): pass  # the engine reports it as lack of memory

@pytest.mark.parametrize("arch", extended.sample(ARCHS, ("llama",)))
def test_every_key_with_every_wrong_value(samples, tmp_path, arch):
  kinds = [Pair(f"v{i}".encode(), kind, pack(kind, value)) for i, (kind, value) in enumerate(fuzz.VALUES)]
  (tmp_path / "values.gguf").write_bytes(fuzz.Parts(tuple(kinds), (), b"").raw())
  (path := tmp_path / "m.gguf").write_bytes(samples[arch].raw)
  file = open_gguf(path)
  build(asked := replace(file, kv=Recorder(file.kv)), None, "")
  keys = asked.kv.asked | {key.replace("*", arch) for key in fuzz.read_keys() if key.startswith("*")}
  if arch not in ("llama", "gemma3"): keys = {key for key in keys if not key.startswith("tokenizer.")}  # same code
  assert {"general.architecture", f"{arch}.block_count"} <= keys
  values, sound, findings = open_gguf(tmp_path / "values.gguf").kv.values(), read_config(file), list[str]()
  for key in sorted(keys):
    for value in values:
      lying = replace(file, kv={**file.kv, key: value})
      outcome, detail = fuzz.judge(lambda lying=lying, key=key: build(lying, sound, key), str(path))
      if outcome not in ("loaded", "refused"): findings.append(f"{key} = {value!r:.40}: {outcome}: {detail[:200]}")
  assert findings == []

# *** limits of the header

def header(pair: Pair, size: int, path: pathlib.Path) -> pathlib.Path:
  """Writes a file of `size` bytes with one pair. The rest is a hole of zeros, which takes no room on the disk."""
  raw = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair.raw()
  path.write_bytes(raw)
  os.truncate(path, size)
  return path

SPARSE = {
  "numbers": (Pair(b"a", ARRAY, struct.pack("<IQ", F32, 1 << 31)), "does not end within 64 MiB"),
  "string": (Pair(b"a", STRING, struct.pack("<Q", 8 << 30)), "does not end within 64 MiB"),
  "strings": (Pair(b"a", ARRAY, struct.pack("<IQ", STRING, 1 << 29)), "does not end within 64 MiB"),
  "many strings": (Pair(b"a", ARRAY, struct.pack("<IQ", STRING, MAX_STRINGS + 1)), "more than"),
  "many arrays": (Pair(b"a", ARRAY, struct.pack("<IQ", ARRAY, MAX_STRINGS + 1)), "more than"),
}

@pytest.mark.parametrize("name", SPARSE)
def test_large_sparse_file_with_oversized_header_is_refused(tmp_path, name):
  pair, words = SPARSE[name]
  path = header(pair, 9 << 30, tmp_path / "sparse.gguf")
  def load() -> None: open_gguf(path)
  outcome, detail = fuzz.judge(load, str(path))
  assert outcome == "refused" and detail.startswith("metadata 'a': ") and words in detail

def test_too_many_pairs_and_tensors(tmp_path):
  path = tmp_path / "sparse.gguf"
  for counts in ((1 << 18, 0), (0, 1 << 18)):
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *counts))
    os.truncate(path, 1 << 30)
    with pytest.raises(InputError, match="are more than"): open_gguf(path)

def split_files(folder: pathlib.Path, no: Pair, count: int = 2) -> pathlib.Path:
  paths = [folder / f"s-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
  for path in paths:
    path.write_bytes(fuzz.Parts((no, Pair(b"split.count", U32, pack(U32, count))), (), b"").raw())
  return paths[0]

@pytest.mark.parametrize("pair", [
  Pair(b"split.no", ARRAY, pack(ARRAY, (I32, [0, 1]))), Pair(b"split.no", STRING, pack(STRING, "0")),
  Pair(b"split.tensors.count", ARRAY, pack(ARRAY, (I32, [0, 1])))])
def test_wrong_type_of_split_number(tmp_path, pair):
  with pytest.raises(InputError, match=r"metadata 'split\.no'"): open_gguf(split_files(tmp_path, pair))

# *** NaN and infinity

def test_non_finite_weights(samples, tmp_path):
  """NaN and both infinities in the first and the last block of a matrix, and in a norm."""
  sample, path = samples["llama"], tmp_path / "nan.gguf"
  tensors = {t.name: t for t in sample.parts.tensors}
  matrix, norm = tensors[b"blk.1.ffn_up.weight"], tensors[b"output_norm.weight"]
  assert (matrix.kind, norm.kind) == (8, 0)
  last = matrix.offset + matrix.dims[0] * matrix.dims[1] // 32 * 34 - 34
  for tensor, at, raw in ((matrix, matrix.offset, b"\0\x7c"), (matrix, matrix.offset, b"\0\xfc"),
                          (matrix, last, b"\x01\x7e"),
                          (norm, norm.offset + 4, b"\0\0\x80\x7f"), (norm, norm.offset, b"\0\0\xc0\xff")):
    data = bytearray(sample.parts.data)
    data[at:at + len(raw)] = raw
    path.write_bytes(edited(sample, data=bytes(data)))
    byte = len(sample.raw) - len(sample.parts.data) + at
    with pytest.raises(InputError, match=rf"{tensor.name.decode()}': the number at byte {byte} is NaN or infinite"):
      fuzz.load_model(path)

def test_positions_of_floats_in_a_block():
  """Setting the listed bits makes gguf-py's values non-finite, and no other bits of the block do."""
  import numpy as np
  from gguf import GGMLQuantizationType, quants
  from tinygrad_llm.files.gguf import _NOT_FINITE, GGML_TYPES, _not_finite
  rng = np.random.default_rng(0)
  for kind, (name, _, nbytes) in GGML_TYPES.items():
    # gguf-py has no decoder for these types, and no NaN in MXFP4
    if name not in _NOT_FINITE or name in ("Q8_1", "Q8_K", "Q1_0", "F64", "MXFP4"): continue
    for offset, dtype, ones in _NOT_FINITE[name]:
      raw = np.zeros((4, nbytes), np.uint8)
      raw[2, offset:offset + np.dtype(dtype).itemsize] = np.array([ones], dtype).view(np.uint8)
      assert _not_finite(kind, memoryview(raw.reshape(-1))) == 2 * nbytes + offset
      with np.errstate(all="ignore"): values = quants.dequantize(raw, GGMLQuantizationType(kind)).reshape(4, -1)
      assert not np.isfinite(values[2]).all() and np.isfinite(values[[0, 1, 3]]).all(), name
    noise = rng.integers(0, 256, (64, nbytes), dtype=np.uint8)
    try:
      with np.errstate(all="ignore"): finite = np.isfinite(quants.dequantize(noise, GGMLQuantizationType(kind))).all()
    except NotImplementedError: continue
    assert (_not_finite(kind, memoryview(noise.reshape(-1))) is None) == finite, name

# *** the command line: one case of each class, with time and memory

CODE = """import atexit, runpy, sys, time
def report():
  peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
  print(int(peak) * 1024, time.process_time(), file=open(sys.argv[-1], "w"))
where = sys.argv.pop()
atexit.register(lambda: (sys.argv.append(where), report()))
sys.argv[0] = "run"
runpy.run_module("tinygrad_llm.run", run_name="__main__", alter_sys=True)"""

def refused(tmp_path: pathlib.Path, *args: str, env: dict[str, str | None] | None = None) -> str:
  """The error of `python -m tinygrad_llm.run`: one line, exit code 2, within 2 s of processor time and 500 MB."""
  variables = {**os.environ, "DEV": "CPU", **(env or {})}
  done = subprocess.run([sys.executable, "-c", CODE, *args, str(where := tmp_path / "usage")], capture_output=True,
                        text=True, cwd=fuzz.ROOT, timeout=60, stdin=subprocess.DEVNULL,
                        env={k: v for k, v in variables.items() if v is not None})
  assert done.returncode == 2, done.stderr
  assert not done.stdout and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
  if pathlib.Path("/proc/self/status").exists():
    peak, seconds = where.read_text().split()
    assert int(peak) < 500e6 and float(seconds) < 2
  return done.stderr

def with_value(sample: Sample, key: str, kind: int, value) -> bytes:
  pairs = tuple(p for p in sample.parts.pairs if p.key != key.encode())
  return edited(sample, pairs=(*pairs, Pair(key.encode(), kind, pack(kind, value))))

def with_tensor(sample: Sample, i: int, **changes) -> bytes:
  tensors = list(sample.parts.tensors)
  tensors[i] = tensors[i]._replace(**changes)
  return edited(sample, tensors=tuple(tensors))

def with_data(sample: Sample, i: int, raw: bytes) -> bytes:
  at = sample.parts.tensors[i].offset
  return edited(sample, data=sample.parts.data[:at] + raw + sample.parts.data[at + len(raw):])

CUT = "a part of it is missing: llama.cpp loads no such file either"
NEITHER = "llama.cpp loads no such file either"

# {name: (change to a sound file, part of the message, why the file is not loaded with a warning)}
FILES = {
  "cut in the metadata": (lambda s: s.raw[:s.header // 2], "cut off or damaged", CUT),
  "cut in the tensors": (lambda s: s.raw[:s.header - 9], "cut off or damaged", CUT),
  "big-endian": (lambda s: s.raw[:4] + struct.pack(">I", 3) + s.raw[8:], "version: the file is big-endian",
                 "its numbers would be read backwards"),
  "tensor count": (lambda s: edited(s, counts=(HUGE, 1)), "header: 1152921504606846976 tensors", CUT),
  "string length": (lambda s: edited(s, pairs=(Pair(b"k", STRING, struct.pack("<Q", HUGE)),)), "metadata 'k'", CUT),
  "dimension": (lambda s: with_tensor(s, 0, dims=(HUGE, HUGE)), "does not fit", CUT),
  "nested arrays": (lambda s: edited(s, pairs=(Pair(b"k", ARRAY, struct.pack("<IQ", ARRAY, 1) * 9),)), "nested deeper",
                    NEITHER),
  "overlap": (lambda s: with_tensor(s, 1, offset=s.parts.tensors[0].offset), "overlaps", NEITHER),
  "out of the file": (lambda s: with_tensor(s, 1, offset=len(s.parts.data)), "ends at byte", CUT),
  "missing tensor": (lambda s: edited(s, tensors=s.parts.tensors[:-1]), "missing", NEITHER),
  "shape": (lambda s: with_tensor(s, 1, dims=(32,)), "should be", NEITHER),
  "architecture": (lambda s: with_value(s, "general.architecture", STRING, "gpt9"), "general.architecture: 'gpt9'",
                   "another model than this code computes"),
  "tensor type": (lambda s: with_tensor(s, 0, kind=99), "type 99 is not known", NEITHER),
  "tokenizer": (lambda s: with_value(s, "tokenizer.ggml.model", STRING, "t5x"), "tokenizer.ggml.model: 't5x'", NEITHER),
  "scale": (lambda s: with_data(s, 0, b"\0\x7c"), "tensor 'token_embd.weight': the number at byte",
            "every logit after it would be NaN: llama.cpp loads it and writes nonsense"),
  "token bytes": (lambda s: with_value(s, "tokenizer.ggml.tokens", ARRAY, (STRING, [b"\xff"])), "is not UTF-8",
                  "the format says UTF-8, every converter writes it, and text would not come back as it went in"),
  "key twice": (lambda s: edited(s, pairs=(*s.parts.pairs, s.parts.pairs[0])), "appears twice", NEITHER),
  "text for a number": (lambda s: with_value(s, "llama.block_count", STRING, "2"), "llama.block_count: '2' is not of",
                        NEITHER),
  "not a number": (lambda s: with_value(s, "llama.rope.freq_base", F32, float("nan")), "llama.rope.freq_base",
                   "every logit after it would be NaN"),
  "token id": (lambda s: with_value(s, "tokenizer.ggml.eos_token_id", STRING, "2"), "eos_token_id: '2' is not a",
               NEITHER),
  "token types": (lambda s: with_value(s, "tokenizer.ggml.token_type", ARRAY, (I32, [1, 1])), "token_type: 2 for 512",
                  NEITHER),
  "template": (lambda s: with_value(s, "tokenizer.chat_template", U8, 1), "tokenizer.chat_template",
               "a number is no template, and without one the prompt would be a guess"),
  "template text": (lambda s: with_value(s, "tokenizer.chat_template", STRING, "{% for"), "tokenizer.chat_template",
                    "the prompt would be a guess; --tokens does without"),
}

@pytest.mark.parametrize("name", extended.sample(FILES, ("cut in the metadata", "missing tensor", "template text")))
def test_bad_file(samples, tmp_path, name):
  change, words, _ = FILES[name]
  (path := tmp_path / "bad.gguf").write_bytes(change(samples["llama"]))
  says = refused(tmp_path, "--model", str(path), "--prompt", "hi")
  assert words in says and ("bad.gguf" in says or name == "template text"), says

def test_per_layer_values(samples, tmp_path):
  """
  A number for each layer counts for its layer: equal ones load, and another one does not fit that layer's tensors.
  """
  path = tmp_path / "layers.gguf"
  for key, value in (("attention.head_count_kv", 2), ("feed_forward_length", 256)):
    path.write_bytes(with_value(samples["llama"], f"llama.{key}", ARRAY, (I32, [value] * 2)))
    fuzz.load_model(path)
    path.write_bytes(with_value(samples["llama"], f"llama.{key}", ARRAY, (I32, [value, value * 2])))
    with pytest.raises(InputError, match=r"blk\.1\.(attn_k|ffn_gate)\.weight: shape"): fuzz.load_model(path)
  path.write_bytes(with_value(samples["llama"], "llama.rope.dimension_count", ARRAY, (I32, [16, 8])))
  with pytest.raises(InputError, match="rope.dimension_count: .* is not one for all layers"): fuzz.load_model(path)

def test_warnings_name_the_file(samples, tmp_path, capfd):
  path = tmp_path / "odd.gguf"
  path.write_bytes(with_value(samples["llama"], "tokenizer.ggml.eos_token_id", U32, 1 << 20))
  for _ in range(2): fuzz.load_model(path)
  said = capfd.readouterr().err
  assert said.startswith(f"warning: {path}: tokenizer.ggml.eos_token_id: 1048576 is not one of the 512 tokens; ")
  assert said.count("\n") == 1

def test_sparse_file(tmp_path):
  path = header(SPARSE["strings"][0], 9 << 30, tmp_path / "sparse.gguf")
  assert "sparse.gguf: metadata 'a'" in refused(tmp_path, "--model", str(path), "--prompt", "hi")

def script(path: pathlib.Path, text: str) -> str:
  path.parent.mkdir(exist_ok=True)
  path.write_text(f"#!/bin/sh\n{text}\n")
  path.chmod(0o755)
  return str(path)

ENVIRONMENTS = {
  "old name": ({"NV": "1"}, "NV=1: it does not choose a device any more; write DEV=NV"),
  "older name": ({"GPU": "1", "DEV": None}, "GPU=1: it does not choose a device any more; write DEV=CL"),
  "several colons": ({"DEV": "CPU:a:b:c"}, "DEV=CPU:a:b:c: tinygrad does not start"),
  "text": ({"JIT": "yes"}, "JIT=yes: it must be an integer of at least 0"),
  "zero": ({"MV_BLOCKSIZE": "0"}, "MV_BLOCKSIZE=0: it must be an integer of at least 1"),
  "some variable": ({"CACHELEVEL": "lots"}, "CACHELEVEL=lots: tinygrad does not start"),
  "cache": ({"CACHEDB": "/dev/null/cache.db", "NO_SQLITE_CACHE": "1"},
            "/dev/null/cache.db: the kernel cache cannot be written"),
}

@pytest.mark.parametrize("name", extended.sample(ENVIRONMENTS, ("older name", "text", "cache")))
def test_bad_environment(samples, tmp_path, name):
  env, words = ENVIRONMENTS[name]
  (path := tmp_path / "sound.gguf").write_bytes(samples["llama"].raw)
  assert words in refused(tmp_path, "--model", str(path), "--prompt", "hi", env=env)

@pytest.mark.parametrize(("program", "words"), some([
  ("exit 1", "this clang does not run"), ("printf 'cl\\377ng'", "this clang does not run"),
  ('test "$1" = --version && echo clang version 99', "clang: the compiler fails with code 1")], 0))
def test_broken_compiler(samples, tmp_path, program, words):
  """A clang that does not work, as on macOS before its developer tools are installed."""
  script(tmp_path / "bin" / "clang", program)
  (path := tmp_path / "sound.gguf").write_bytes(samples["llama"].raw)
  env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "CC": None, "CACHEDB": str(tmp_path / "cache.db")}
  assert words in refused(tmp_path, "--model", str(path), "--prompt", "hi", env=env)

def test_cuda_variable_may_be_a_folder(samples, tmp_path):
  """On many clusters CUDA is a folder in the environment; that does not choose the device."""
  (path := tmp_path / "cut.gguf").write_bytes(samples["llama"].raw[:100])
  env = {"CUDA": "/usr/local/cuda", "NV": "0"}
  assert "cut.gguf" in refused(tmp_path, "--model", str(path), "--prompt", "hi", env=env)

@pytest.mark.skipif(not pathlib.Path("/dev/full").exists(), reason="no /dev/full here")
def test_full_disk():
  code = "from tinygrad_llm.command import guarded; guarded(lambda: print('x'))"
  with open("/dev/full", "w") as full:
    done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, cwd=fuzz.ROOT)
  assert done.returncode == 2
  assert done.stderr == "error: standard input or output: No space left on device; check the disk and the permissions\n"

def test_no_temporary_folder():
  said = _line(FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"))
  assert said.startswith("TMPDIR: No usable temporary directory")
