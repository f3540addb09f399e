"""Scales beside matrices, as in NVFP4 files, and other tensors that a file may have and nothing reads."""
import dataclasses

from tests.tools import fuzz
import numpy as np
import pytest
import tinygrad_llm
from tests.support.extended import sample
from gguf import GGUFReader
from tests.support.reference import Reference, clear_choices
from tinygrad_llm import InputError
from tinygrad_llm.weights import numerics

MODELS = {
  "dense": {"arch": "qwen2", "tied": False},  # its biases are added to the scaled products
  "experts": {"arch": "qwen3moe", "tied": False},
}
IDS = np.random.default_rng(3).integers(0, 320, 40).tolist()

@pytest.mark.parametrize(("name", "bytes_"), sample(
  [(name, bytes_) for name in MODELS for bytes_ in (False, True)], [("dense", True)]))
def test_scales(model_file, monkeypatch, capfd, name, bytes_):
  """
  Scales apply in attention, feed-forward, experts and head, in a prompt and in a decode step. With 8-bit activations,
  the logits are right to their precision.
  """
  if not bytes_: monkeypatch.setattr(numerics, "multiplies_bytes", lambda: False)
  elif not numerics.multiplies_bytes(): pytest.skip("no products of bytes on this device")
  path = model_file(types="NVFP4", vocab=320, scaled=True, **MODELS[name])
  names = {t.name for t in GGUFReader(path).tensors}
  wanted = ("attn_q", "attn_output", "ffn_down_exps" if name == "experts" else "ffn_down")
  assert names >= {"output.scale", *(f"blk.1.{x}.{kind}" for x in wanted for kind in ("scale", "input_scale"))}
  reference = Reference(path)
  ids = clear_choices(reference, IDS, 0.01)
  llm = tinygrad_llm.load(str(path), max_context=64, chunk=64)
  assert capfd.readouterr().err == ""
  exact, limit = reference.logits(ids), 0.1 if bytes_ else 2e-3
  assert np.abs(llm.logits(ids) - exact).max() <= limit * exact.std()
  llm.prefill(ids[:-1])
  assert np.abs(llm.step(ids[-1], len(ids) - 1) - exact[-1]).max() <= limit * exact.std()
  for x in ("output.scale", f"blk.1.{wanted[1]}.scale", f"blk.1.{wanted[2]}.scale"):  # each scale matters
    held, reference.w[x] = reference.w[x], np.ones_like(reference.w[x])
    assert np.abs(reference.logits(ids) - exact).max() > 0.1 * exact.std()
    reference.w[x] = held

def added(path, out, *tensors):
  """Writes the file with more F32 tensors of ones: (name, elements)."""
  sample = fuzz.take_apart(path.read_bytes())
  entries, data = list(sample.parts.tensors), sample.parts.data
  for name, n in tensors:
    data = data.ljust(-(-len(data) // 32) * 32, b"\0")
    entries.append(fuzz.TensorEntry(name.encode(), (n,), 0, len(data)))
    data += np.ones(n, np.float32).tobytes()
  out.write_bytes(dataclasses.replace(sample.parts, tensors=tuple(entries), data=data).raw())
  return out

def test_rejects_misshaped_or_misplaced_scales(model_file, tmp_path):
  path = model_file(types="Q8_0", vocab=320)
  for name, n, words in (("blk.0.ffn_up.scale", 2, "shape (2,) should be (1,)"),
                         ("token_embd.scale", 1, "a scale of this tensor is not supported; use another quant type"),
                         ("blk.1.attn_norm.scale", 1, "a scale of this tensor is not supported")):
    with pytest.raises(InputError) as e: tinygrad_llm.load(str(added(path, tmp_path / "m.gguf", (name, n))))
    assert str(e.value).startswith(f"{tmp_path / 'm.gguf'}: {name}: {words}")

def test_warns_about_unused_tensors(model_file, tmp_path, capfd):
  path, count = model_file(types="Q8_0", vocab=320), 0
  harmless = [("blk.0.attn_q.input_scale", 1), ("cls.output.weight", 4)]
  tinygrad_llm.load(str(added(path, tmp_path / "a.gguf", *harmless)))
  assert capfd.readouterr().err == ""
  names = ["blk.0.attn_x_norm.weight", "rope_factors_odd.weight", "x\n\x1b[2J", "blk.1.attn_gate.weight"]
  out = added(path, tmp_path / "b.gguf", *((name, 4) for name in names))
  count = len(GGUFReader(out).tensors)
  for _ in range(2): tinygrad_llm.load(str(out))
  assert capfd.readouterr().err == (f"warning: {out}: 4 of {count} tensors are not used: blk.0.attn_x_norm.weight, "
                                    "rope_factors_odd.weight, x\\n\\x1b[2J, ..\n")
