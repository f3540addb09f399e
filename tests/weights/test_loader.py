"""Loading: bytes held, memory used, split files, refused files."""
import pathlib
import subprocess
import sys
import numpy as np
import pytest
from tests.support.extended import some
import tinygrad_llm
from tests.support.synthetic import write_model
from tests.support.child import run
from tinygrad_llm import InputError
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.weights import numerics, memory

@pytest.mark.parametrize("types", some(["F16", "Q4_0", "Q8_0", "Q4_K_M", "Q6_K", "Q3_K", "MXFP4"], 1, 3))
def test_bytes_held(model_file, types):
  path = model_file(types=types, dim=256, ffn=512, vocab=512, layers=1, blocks=True)
  file = sum(t.nbytes for t in open_gguf(path).tensors.values())
  held = sum(w.nbytes for w in tinygrad_llm.load(str(path)).weights.values())
  assert 0.99 * file <= held <= 1.05 * file

def test_adjacent_tensors_of_one_type_are_joined(model_file):
  path = model_file(types="Q8_0", vocab=384, context=96)
  names = tinygrad_llm.load(str(path)).weights
  assert ("blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight") in names
  assert ("blk.1.ffn_gate.weight", "blk.1.ffn_up.weight") in names

@pytest.mark.parametrize("vocab", some([384, 528, 1100, 1571], 1, 3))
def test_loading_in_pieces(model_file, monkeypatch, vocab):
  """Loading in pieces gives the same memory for any number and size of pieces; the last piece may overlap another."""
  path = str(model_file(types="Q8_0", vocab=vocab, context=96, layers=1))
  whole = [w.stored.numpy() for w in tinygrad_llm.load(path).weights.values()]
  written = []
  fill = memory.fill
  monkeypatch.setattr(memory, "fill", lambda tensor, write: written.append(tensor.shape) or fill(tensor, write))
  monkeypatch.setattr(memory, "PIECE", 20 << 10)
  pieces = [w.stored.numpy() for w in tinygrad_llm.load(path).weights.values()]
  assert len(written) > len(whole) + 1 and all(map(np.array_equal, whole, pieces))

def test_padding_of_rows():
  """Few rows of zeros make a matrix whole tiles; large ones are shared by 2, 4 or 8 threads. Small ones have none."""
  wanted = {1: 1, 511: 511, 512: 512, 513: 528, 2047: 2048, 2049: 2080, 4095: 4096, 4097: 4160, 8193: 8320}
  assert {rows: memory.padded(rows) for rows in wanted} == wanted
  assert [memory.padded(rows) for rows in (32000, 32064, 128256, 151936, 262144)] == [
    32000, 32128, 128256, 151936, 262144]
  assert all(rows <= memory.padded(rows) < 1.03 * rows for rows in range(512, 70000))

@pytest.mark.parametrize("types, vocab", some([("Q4_K", 8193), ("F16", 8207), ("BF16", 8201), ("Q8_0", 8209)], 0, 1))
def test_threads_share_any_matrix(model_file, types, vocab):
  """A head whose rows are no multiple of threads is shared by them, too, and its logits are of these rows."""
  path = str(model_file(types=types, vocab=vocab, dim=256, layers=1, context=96, tied=False, blocks=True))
  llm = tinygrad_llm.load(path)
  found, ids = llm.logits([1, vocab - 1, 3]), [*llm.stream([1, 2, 3], max_tokens=5, ignore_eos=True)]
  assert found.shape[-1] == vocab and np.isfinite(found).all() and max(ids) < vocab
  head, = (w for names, w in llm.weights.items() if names == ("output.weight",))
  assert head.stored.shape[0] * (head.layout.tile if head.layout else 1) == memory.padded(vocab) != vocab

def test_dequantize_expands_matrices(model_file, monkeypatch):
  monkeypatch.setattr(numerics, "multiplies_bytes", lambda: False)
  path = model_file(types="Q8_0", vocab=384, context=96)
  packed, expanded = (tinygrad_llm.load(str(path), dequantize=d) for d in (False, True))
  assert {w.qtype.name for w in expanded.weights.values()} == {"F16", "F32"}
  a, b = (llm.logits([1, 2, 3]) for llm in (packed, expanded))
  assert np.abs(a - b).max() < 0.02 * a.std()

def test_split_files(tmp_path: pathlib.Path):
  shape = {"types": "Q4_K_M", "dim": 256, "ffn": 256, "layers": 1, "blocks": True}
  whole, first = write_model(tmp_path / "whole.gguf", **shape), write_model(tmp_path / "part.gguf", split=3, **shape)
  assert first.name.endswith("-00001-of-00003.gguf")
  a, b = ([w.stored.numpy() for w in tinygrad_llm.load(str(path)).weights.values()] for path in (whole, first))
  for x, y in zip(a, b, strict=True): np.testing.assert_array_equal(x, y)

def test_peak_memory(tmp_path: pathlib.Path):
  """The file is in memory once: VmHWM, which counts file pages, grows by at most 1.15 x its size (and a little)."""
  path = write_model(tmp_path / "big.gguf", types="Q6_K", dim=2048, ffn=8192, layers=3, heads=32, kv_heads=8,
                     vocab=4096, blocks=True)
  code = """import sys, tinygrad_llm
def peak(): return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024
tinygrad_llm.load(sys.argv[2], max_context=16); before = peak()
llm = tinygrad_llm.load(sys.argv[1], max_context=16); print(peak() - before)"""
  small = write_model(tmp_path / "small.gguf")
  if not pathlib.Path("/proc/self/status").exists(): pytest.skip("no /proc here")
  done = subprocess.run([sys.executable, "-c", code, str(path), str(small)], capture_output=True, text=True, check=True)
  assert int(done.stdout) <= 1.15 * path.stat().st_size + (32 << 20)

NEITHER, OTHER = "llama.cpp loads no such file either", "another model than this code computes"

@pytest.mark.parametrize(("change", "words", "why"), [
  ({"kv": {"general.architecture": "gpt9"}}, "general.architecture: 'gpt9' is not supported", OTHER),
  ({"kv": {"llama.attention.head_count_kv": 3}}, "head_count_kv", NEITHER),
  ({"kv": {"llama.embedding_length": 192}}, "token_embd.weight: shape", NEITHER),
  ({"kv": {"llama.block_count": 3}}, r"blk\.2\.attn_norm\.weight: the tensor is missing", NEITHER),
  ({"kv": {"llama.rope.scaling.type": "dynamic"}}, "rope.scaling.type: 'dynamic' is not", OTHER),
  ({"arch": "qwen2", "kv": {"qwen2.expert_count": 8}}, "expert_count", OTHER),
  ({"kv": {"llama.expert_count": 8}}, r"blk\.0\.ffn_down_exps\.weight: no such tensor of 3 dimensions", NEITHER),
  ({"kv": {"llama.attention.layer_norm_rms_epsilon": float("nan")}}, "layer_norm_rms_epsilon", "all logits are NaN"),
  ({"kv": {"tokenizer.ggml.pre": "martian"}}, "tokenizer.ggml.pre", NEITHER),
])
def test_rejects_bad_files(tmp_path: pathlib.Path, change, words, why):
  path = write_model(tmp_path / "bad.gguf", **change)
  with pytest.raises(InputError, match=words) as e: tinygrad_llm.load(str(path))
  assert str(e.value).startswith(f"{path}: ")
  assert "\n" not in str(e.value)

HUGE = """
import re, sys
from tinygrad import Tensor, dtypes
import tinygrad_llm
from tinygrad_llm.device.buffers import empty, fill
full, part = (empty((64, 1 << 18), dtypes.uint8, full=full) for full in (True, False))
for tensor in (full, part): fill(tensor, lambda memory: memory.fill(7))
def pages(tensor):
  at = tensor.uop.base.buffer._buf.va_addr
  areas = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", open("/proc/self/smaps").read(), flags=re.M)[1:]
  area, = (a for a in areas if int(a.split("-")[0], 16) <= at < int(a.split("-")[1].split()[0], 16))
  return "hg" in re.search("VmFlags: (.*)", area)[1].split(), "sh" in re.search("VmFlags: (.*)", area)[1].split()
print(*pages(full), *pages(part), (full + part).sum().item() == 14 << 24)
"""

@pytest.mark.skipif(not pathlib.Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no large pages")
@pytest.mark.parametrize(("env", "wanted"), [({}, "True False False False True"),
                                             ({"NO_HUGE_PAGES": "1"}, "False True False True True")])
def test_huge_pages(env, wanted):
  """Huge pages are requested only for buffers that are written completely; without the patch the memory is shared."""
  assert run(HUGE, DEV="CPU", **env).stdout.split("\n")[-2] == wanted
