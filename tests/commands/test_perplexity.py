"""perplexity: llama.cpp's method, its files of log-probabilities, and refused input."""
import json
import math
import struct
import sys

import numpy as np
import pytest
import tinygrad_llm
from tinygrad_llm import InputError, perplexity
from tinygrad_llm.engine.perplexity import Divergence, Perplexity, chunks_of, measure
from tinygrad_llm.files.kl_base import HEAD, Reader, Writer

TEXT = "The quick brown fox, who was 7 years old, jumps over the lazy dog. " * 12
MODEL = {"types": "Q8_0", "vocab": 384, "context": 96}

@pytest.fixture(scope="module")
def path(model_file): return model_file(**MODEL)

@pytest.fixture(scope="module")
def text(tmp_path_factory):
  file = tmp_path_factory.mktemp("text") / "text.txt"
  file.write_text(TEXT + "\n")
  return file

def run(monkeypatch, capfd, *args) -> tuple[int, str, str]:
  monkeypatch.setattr(sys, "argv", ["perplexity", *map(str, args)])
  code = 0
  try: perplexity.main()
  except SystemExit as e: code = int(e.code or 0)
  return code, *capfd.readouterr()

def reference(llm, context: int) -> np.ndarray:
  """-ln p of each counted token, computed from logits() in float64."""
  ids, found = llm.tokenizer.encode(TEXT, add_bos=llm.tokenizer.add_bos), []
  for k in range(len(ids) // context):
    chunk = ids[k * context:(k + 1) * context]
    fed = [llm.tokenizer.bos, *chunk[1:]] if llm.tokenizer.add_bos else chunk
    rows = llm.logits(fed).astype(np.float64)[:, :llm.tokenizer.vocab_size]
    found += [math.log(np.exp(rows[i] - rows[i].max()).sum()) + rows[i].max() - rows[i, chunk[i + 1]]
              for i in range(context // 2, context - 1)]
  return np.array(found)

@pytest.mark.parametrize("context", [64, 33])
def test_perplexity_matches_reference(path, text, monkeypatch, capfd, context):
  code, out, err = run(monkeypatch, capfd, "-m", path, "-f", text, "-c", context, "--json")
  row, nll = json.loads(out), reference(tinygrad_llm.load(str(path), max_context=96, chunk=7), context)
  assert code == 0 and row["tokens"] == nll.size == row["chunks"] * (context - context // 2 - 1)
  assert row["perplexity"] == pytest.approx(math.exp(nll.mean()), rel=2e-3)
  assert row["error"] == pytest.approx(math.exp(nll.mean()) * math.sqrt(nll.var() / (nll.size - 1)), rel=2e-2)
  code, out, err = run(monkeypatch, capfd, "-m", path, "-f", text, "-c", context, "--chunks", 1)
  assert code == 0 and out.startswith("perplexity: ") and f"1 chunks of {context}" in out

def test_base_file_matches_format(tmp_path):
  """The file matches byte for byte, for a vocabulary of 3 and chunks of 4 tokens with one counted position each."""
  tokens, logits = np.array([[0, 1, 2, 0], [2, 2, 1, 1]]), np.array([[[0, -1, -40]], [[5, 5, 5]]], np.float32)
  with Writer(tmp_path / "base", tokens, 3) as writer:
    for rows in logits: writer.write(rows, np.log(np.exp(rows).sum(1)))
  sums = np.log(np.exp(logits).sum(-1))[:, 0]
  want = b"_logits_" + struct.pack("<3i", 4, 3, 2) + struct.pack("<8i", 0, 1, 2, 0, 2, 2, 1, 1)
  want += struct.pack("<2f4H", np.float32(16) / np.float32(65535), np.float32(-16) - sums[0], 65535, 61439, 0, 0)
  want += struct.pack("<2f4H", 0, np.float32(5) - sums[1], 0, 0, 0, 0)
  assert (tmp_path / "base").read_bytes() == want
  base = Reader(tmp_path / "base")
  assert base.tokens.tolist() == tokens.tolist() and (base.context, base.vocab_size, base.chunks) == (4, 3, 2)
  np.testing.assert_allclose(base.log_probabilities(0, 0, 1), [[-sums[0], -1 - sums[0], -16 - sums[0]]], atol=2e-4)
  np.testing.assert_allclose(base.log_probabilities(1, 0, 1), [[math.log(1 / 3)] * 3], atol=1e-6)

def test_other_files_are_not_overwritten(tmp_path):
  (tmp_path / "model.gguf").write_bytes(b"GGUF" * 9)
  with pytest.raises(InputError, match="choose another name"): Writer(tmp_path / "model.gguf", np.zeros((1, 4), int), 3)
  assert (tmp_path / "model.gguf").read_bytes() == b"GGUF" * 9

def test_failed_writer_leaves_no_file(tmp_path):
  with pytest.raises(KeyError), Writer(tmp_path / "base", np.zeros((1, 4), int), 3): raise KeyError
  assert not (tmp_path / "base").exists()
  full = type(tmp_path)("/dev/full")
  with pytest.raises(InputError, match="/dev/full"), Writer(full, np.zeros((1, 4), int), 3) as writer:
    for _ in range(9000): writer.write(np.zeros((1, 3), np.float32), np.ones(1, np.float32))

def test_kl_divergence(path, text, tmp_path, monkeypatch, capfd):
  """KL is 0 to the model itself, except for the file's rounding; to another model it equals a float64 formula."""
  base, other = tmp_path / "base", tmp_path / "other"
  code, out, _ = run(monkeypatch, capfd, "-m", path, "-f", text, "-c", 64, "--kl-base", base, "--json")
  first = json.loads(out)
  code, out, _ = run(monkeypatch, capfd, "-m", path, "--kl-base", base, "--kl-divergence", "--json")
  row = json.loads(out)
  code, out, err = run(monkeypatch, capfd, "-m", path, "--save-all-logits", base, "--kl-divergence", "--json", "-f",
                       text)
  assert json.loads(out) == row and f"-f {text}: it is not read" in err
  assert code == 0 and row["perplexity"] == first["perplexity"] and row["same_top"] == 1 and abs(row["kl"]) < 1e-6
  llm, read = tinygrad_llm.load(str(path), max_context=96), Reader(base)
  with Writer(other, read.tokens, read.vocab_size) as writer:  # made-up log-probabilities of another model
    rng = np.random.default_rng(1)
    made = [rng.normal(0, 2, (31, read.vocab_size)).astype(np.float32) for _ in range(read.chunks)]
    for x in made: writer.write(x, np.log(np.exp(x).sum(1)))
  _, found = measure(llm, read.tokens, lambda _: None, base=Reader(other))
  kl, nll, base_nll = [], reference(llm, 64), []
  for x, chunk in zip(made, read.tokens):
    theirs = x - np.log(np.exp(x.astype(np.float64)).sum(1, keepdims=True))
    fed = [llm.tokenizer.bos, *chunk[1:].tolist()] if llm.tokenizer.add_bos else chunk.tolist()
    mine = llm.logits(fed)[32:63, :read.vocab_size].astype(np.float64)
    mine -= np.log(np.exp(mine - mine.max(1, keepdims=True)).sum(1, keepdims=True)) + mine.max(1, keepdims=True)
    kl += (np.exp(theirs) * (theirs - mine)).sum(1).tolist()
    base_nll += (-theirs[np.arange(31), chunk[33:]]).tolist()
  report = found.report()
  assert report["kl"] == pytest.approx(np.mean(kl), rel=2e-3) and report["kl_max"] == pytest.approx(max(kl), rel=2e-3)
  assert report["ln_ratio"] == pytest.approx(nll.mean() - np.mean(base_nll), abs=2e-3)
  change = np.exp(-nll) - np.exp(-np.array(base_nll))
  assert report["rms_dp"] == pytest.approx(math.sqrt((change ** 2).mean()), rel=1e-2)
  covariance = np.cov(nll, base_nll, ddof=0)[0, 1] / np.sqrt(nll.var() * np.var(base_nll))
  assert report["correlation"] == pytest.approx(covariance, abs=5e-3)

def test_statistics_formulas():
  assert Perplexity([math.log(2), math.log(8)]).value == pytest.approx(4)
  assert Perplexity([math.log(2), math.log(8)]).error == pytest.approx(4 * math.log(2))
  assert Perplexity([800.0]).value == math.inf
  same = Divergence([1.0, 2.0], [1.0, 2.0], [0.0, 0.0], [True, False]).report()
  assert same["correlation"] == pytest.approx(1) and same["ln_ratio_error"] == pytest.approx(0, abs=1e-6)
  assert (same["same_top"], same["same_top_error"]) == (0.5, 0.5)

def test_other_callers_between_chunks(path):
  llm = tinygrad_llm.load(str(path), max_context=96, chunk=16)
  ids = chunks_of(llm, TEXT, 64)[0].tolist()
  want, rows = llm.logits(ids), []
  for part in llm.iter_logits(ids, 21):
    rows.append(part)
    list(llm.generate([1, 2, 3], max_tokens=3))
  np.testing.assert_array_equal(np.concatenate(rows), want[21:])

def damaged(base, how) -> bytes:
  data = base.read_bytes()
  if how == "cut": return data[:-2]
  if how == "magic": return b"_Logits_" + data[8:]
  if how == "tokens": return data[:HEAD.size] + b"\xff" * 4 + data[HEAD.size + 4:]
  if how == "empty": return b""
  if how in ("scale", "not a number"):  # the scale of the second chunk's last record
    at = len(data) - 2 * 384 - 8
    return data[:at] + struct.pack("<f", math.nan if how == "not a number" else 1e-3) + data[at + 4:]
  return HEAD.pack(b"_logits_", *struct.unpack("<3i", data[8:20])[:2], 0) + data[HEAD.size:]

@pytest.mark.parametrize("how", ["cut", "magic", "tokens", "empty", "no chunks", "scale", "not a number"])
def test_damaged_base_files(path, tmp_path, monkeypatch, capfd, how):
  base = tmp_path / "base"
  with Writer(base, np.zeros((2, 8), int), 384) as writer:
    logits = np.random.default_rng(1).normal(0, 3, (3, 384)).astype(np.float32)
    for _ in range(2): writer.write(logits, np.log(np.exp(logits).sum(1)))
  base.write_bytes(damaged(base, how))
  code, out, err = run(monkeypatch, capfd, "-m", path, "--kl-base", base, "--kl-divergence")
  assert (code, out, err.count("\n")) == (2, "", 1) and str(base) in err

def test_rejects_bad_input(path, model_file, text, tmp_path, monkeypatch, capfd):
  base, short, latin, none = (tmp_path / x for x in ("base", "short", "latin", "none"))
  short.write_text("Too short.")
  latin.write_bytes(b"caf\xe9 " * 400)
  with Writer(base, np.zeros((1, 64), int), 77) as writer:
    for _ in range(31): writer.write(np.zeros((1, 77), np.float32), np.ones(1, np.float32))
  cases = {"fewer than two contexts": ["-f", short, "-c", 32], "byte 3 is not UTF-8": ["-f", latin, "-c", 32],
           "-f": [], "none": ["-f", none], "context is 96": ["-f", text, "-c", 97], "-c": ["-f", text, "-c", 3],
           "vocabulary of 77": ["--kl-base", base, "--kl-divergence"],
           "chunks of 64": ["--kl-base", base, "--kl-divergence", "-c", 32], "needs --kl-base": ["--kl-divergence"],
           "--chunks": ["-f", text, "--chunks", 0], "-c: invalid": ["-f", text, "-c", "x"],
           "cannot be written": ["-f", text, "--kl-base", tmp_path / "no" / "base"]}
  for words, args in cases.items():
    code, out, err = run(monkeypatch, capfd, "-m", path, *args)
    assert (code, out, err.count("\n")) == (2, "", 1), (words, err)
    assert words.split(":")[0] in err, (words, err)

def test_model_that_adds_eos(path, text, monkeypatch, capfd):
  from tinygrad_llm.files import gguf
  class Ends:
    kv = {"tokenizer.ggml.add_eos_token": True}
  monkeypatch.setattr(perplexity, "open_gguf", lambda p: Ends if p else gguf.open_gguf(p))
  code, out, err = run(monkeypatch, capfd, "-m", path, "-f", text, "-c", 32)
  assert (code, out, err.count("\n")) == (2, "", 1) and "add_eos_token" in err
