"""Conversion of a GGUF to an mlx-lm model: names, rows and config.json, and logits where mlx-lm is installed."""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from gguf import GGUFReader
from tests.support.reference import Reference, kl
from tests.support.synthetic import llama3_factors, write_model
import tinygrad_llm
from bench import mlx_model, peers
from tinygrad_llm.bench import ModelInfo, Test, random_tokens
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.layers import LayerConfig, MoEConfig
from tinygrad_llm.nn.reader import read_config
from tinygrad_llm.files.gguf import GGML_TYPES, open_gguf

Test.__test__ = False  # type: ignore[attr-defined]  # pytest takes it for a class of tests

ROOT = pathlib.Path(mlx_model.__file__).parent.parent
VOCAB = 384

def config_of(path: pathlib.Path) -> ModelConfig: return read_config(open_gguf(path))

@pytest.fixture(scope="module")
def llama(model_file): return model_file(types="F16", vocab=VOCAB, heads=4, rope_freqs=True)

# *** without mlx

def rotated(x: np.ndarray, position: int, neox: bool) -> np.ndarray:
  """Rotates x (heads, dim): pairs (i, i + half), or (2i, 2i + 1), by position * 100 ** -(i / half)."""
  half = x.shape[1] // 2
  z = x[:, :half] + 1j * x[:, half:] if neox else x[:, ::2] + 1j * x[:, 1::2]
  z = z * np.exp(1j * position * 100.0 ** (-np.arange(half) / half))
  return np.concatenate([z.real, z.imag], 1)  # the order of the dimensions does not matter in a product

def test_reordered_qk_rows_keep_rope_scores():
  """Scores of two positions with reordered rows equal the scores with the file's own rotation."""
  draw = np.random.default_rng(0).standard_normal
  q, k, x, y = draw((24, 8)), draw((24, 8)), draw(8), draw(8)
  def scores(q: np.ndarray, k: np.ndarray, neox: bool) -> np.ndarray:
    return (rotated((q @ x).reshape(3, 8), 7, neox) * rotated((k @ y).reshape(3, 8), 2, neox)).sum(1)
  want = scores(q, k, neox=False)
  np.testing.assert_allclose(scores(*(mlx_model.unpermuted(m, 3) for m in (q, k)), neox=True), want)
  assert not np.allclose(scores(q, k, neox=True), want)

@pytest.mark.parametrize("arch", mlx_model.MODEL_TYPES)
def test_every_tensor_is_mapped(model_file, arch):
  path = model_file(arch=arch, types="F16", vocab=VOCAB)
  file, config = open_gguf(path), config_of(path)
  found = {name: x for name, _, x in mlx_model.tensors(file, config)}
  assert len(found) == len(file.tensors) and all(x.dtype == np.float32 for x in found.values())
  layer = "model.layers.1."
  assert found["model.embed_tokens.weight"].shape == (VOCAB, 128) and found["model.norm.weight"].shape == (128,)
  assert found[layer + "self_attn.k_proj.weight"].shape == (mlx_model.attention(config).kv_heads * 32, 128)
  assert all(found[f"{layer}{name}_layernorm.weight"].shape == (128,) for name in ("input", "post_attention"))
  assert (layer + "self_attn.q_proj.bias" in found) == (arch == "qwen2")
  assert (layer + "self_attn.q_norm.weight" in found) == arch.startswith(("qwen3", "olmoe"))
  assert ("lm_head.weight" in found) == (not config.tied)
  moe, width = isinstance(config.layers[1].ffn, MoEConfig), 64 if arch == "qwen3moe" else 256
  down = found[f"{layer}mlp.{'switch_mlp.' * moe}down_proj.weight"]
  assert down.shape == ((8,) if moe else ()) + (128, width)
  raw = {t.name: t.data for t in GGUFReader(path).tensors}
  np.testing.assert_array_equal(found[layer + "self_attn.v_proj.weight"], raw["blk.1.attn_v.weight"].astype(np.float32))
  q = found[layer + "self_attn.q_proj.weight"]
  assert np.array_equal(q, raw["blk.1.attn_q.weight"].astype(np.float32)) == (arch != "llama")
  if arch == "llama": np.testing.assert_array_equal(q[[0, 1, 16, 17]], raw["blk.1.attn_q.weight"][[0, 2, 1, 3]])

def test_hf_config(llama, model_file):
  made = mlx_model.hf_config(config_of(llama), llama3_factors(32, 500000.0))
  assert made["rope_scaling"] == {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                                  "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
  assert json.loads(json.dumps(made)) == made and made["model_type"] == "llama" and made["tie_word_embeddings"]
  assert (made["hidden_size"], made["num_attention_heads"], made["num_key_value_heads"], made["head_dim"],
          made["intermediate_size"], made["vocab_size"], made["rope_theta"]) == (128, 4, 2, 32, 256, VOCAB, 500000)
  assert mlx_model.hf_config(config_of(llama))["rope_scaling"] is None
  moe = mlx_model.hf_config(config_of(model_file(arch="qwen3moe", types="F16", vocab=VOCAB)))
  assert (moe["model_type"], moe["num_experts"], moe["num_experts_per_tok"], moe["moe_intermediate_size"],
          moe["norm_topk_prob"], moe["mlp_only_layers"]) == ("qwen3_moe", 8, 2, 64, True, [])
  assert mlx_model.hf_config(config_of(model_file(arch="olmoe", types="F16", vocab=VOCAB)))["intermediate_size"] == 256

def test_rejects_models_mlx_lm_cannot_run(llama, model_file):
  config = config_of(llama)
  def refused(words: str, *args) -> None:
    with pytest.raises(ValueError, match=words): mlx_model.hf_config(*args)
  refused("architecture 'deepseek2'", config_of(model_file(arch="deepseek2", types="F16", vocab=VOCAB)))
  rope, layer = config.ropes[0], config.layers[0]
  def attention(**changed) -> tuple[LayerConfig, ...]:
    return (replace(layer, mixers=(replace(mlx_model.attention(config), **changed),)),) * 2
  refused("16 rotated dimensions of 32", replace(config, ropes=(replace(rope, dim=16),)))
  refused("heads of 32 in qwen2", replace(config, arch="qwen2", layers=attention(heads=8)))
  refused("windows", replace(config, layers=attention(window=8)))
  refused("windows", replace(config, layers=(layer, *attention(window=8)[1:])))
  refused("attn_factor", replace(config, ropes=(replace(rope, magnitude=2.0),)))
  refused("not Llama 3's", config, np.linspace(1, 8, 16))

@pytest.mark.parametrize(("kind", "n", "text"), [
  ("Q4_K", 2048, "4-bit g64"), ("IQ4_XS", 256, "4-bit g64"), ("Q5_0", 96, "5-bit g32"), ("Q6_K", 256, "6-bit g64"),
  ("Q8_0", 64, "8-bit g64"), ("Q2_K", 256, "2-bit g64"), ("Q3_K", 256, "3-bit g64"), ("MXFP4", 32, "mxfp4 g32"),
  ("NVFP4", 64, "nvfp4 g16"), ("F16", 64, "None"), ("F32", 64, "None"), ("BF16", 64, "None")])
def test_nearest_mlx_format(kind, n, text): assert str(mlx_model.mlx_format(kind, n)) == text

def test_nearest_mlx_format_within_1_5_bits():
  """Each block type of GGUF gets an MLX format within 1.5 bits a weight."""
  for name, block, nbytes in GGML_TYPES.values():
    if (found := mlx_model.mlx_format(name, 256)) is not None: assert abs(found.bits + 0.5 - nbytes * 8 / block) <= 1.5

def test_activation_type():
  assert [mlx_model.float_type(set(kinds.split())) for kinds in ("F32", "F32 BF16", "F16", "BF16 Q4_K", "F16 F32")] == [
    "float32", "bfloat16", "float16", "float16", "float16"]

@pytest.fixture
def no_mlx(tmp_path, monkeypatch):
  (tmp_path / "none" / "mlx").mkdir(parents=True)
  (tmp_path / "none" / "mlx" / "__init__.py").write_text("raise ImportError('not here')")
  monkeypatch.setenv("PYTHONPATH", str(tmp_path / "none"))

def test_missing_mlx_does_not_stop_other_peers(llama, no_mlx, tmp_path):
  done = subprocess.run([sys.executable, str(ROOT / "bench" / "mlx_model.py"), str(llama), str(tmp_path / "x")],
                        capture_output=True, text=True, env=os.environ)
  assert done.returncode == 2 and done.stderr == "error: mlx: not installed (not here); run: pip install -e '.[mlx]'\n"
  script = tmp_path / "peer.py"
  script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom bench.peer import serve\nimport numpy as np\n"
                    "class Fake:\n  def load(self, **given): return 'fake'\n  def time(self, **given): return 10 ** 9\n"
                    "  def logits(self, n): return np.zeros(4)\nserve(Fake())\n")
  class Other(peers.Contestant):
    def start(self, run: peers.Run) -> None:
      self.peer = run.start(self, [sys.executable, str(script)], {}, {})
      self.logits = self.peer.logits(1)
  said: list[str] = []
  info = ModelInfo.from_gguf(open_gguf(llama))
  run = peers.Run(str(llama), info, [test := Test(0, 1)], 1, 2, 0.1, None, said.append)
  run.measure(contestants := [Other("other"), peers.MLXLM("mlx")])
  assert len(contestants[0].samples[test].ns) == 2 and not contestants[0].failed
  assert contestants[1].failed == "mlx: not installed (not here); run: pip install -e '.[mlx]'"
  assert f"mlx: {contestants[1].failed}" in said

# *** with mlx

has_mlx = pytest.mark.skipif(importlib.util.find_spec("mlx_lm") is None, reason="mlx-lm is not installed")
IDS = random_tokens(VOCAB, 20)

def mlx_logits(path: pathlib.Path, folder: pathlib.Path) -> tuple[dict, np.ndarray]:
  """The conversion's description, and the logits after 5, 10, 15 and 20 tokens."""
  from bench.peer_mlx import MLX
  about, peer = mlx_model.convert(str(path), folder), MLX()
  peer.load(str(folder), IDS, 1, {})
  return about, np.stack([peer.logits(n) for n in (5, 10, 15, 20)])

YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 256}
@has_mlx
@pytest.mark.parametrize(("arch", "options"), [
  *((arch, {}) for arch in mlx_model.MODEL_TYPES), ("llama", {"rope_freqs": True}), ("llama", {"kv": YARN}),
  ("llama", {"kv": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}}),
  ("llama", {"tied": False, "head_dim": 64})])
def test_mlx_float32_matches_reference(tmp_path, arch, options):
  path = write_model(tmp_path / "m.gguf", arch, types="F32", vocab=VOCAB, context=1024, **options)
  about, logits = mlx_logits(path, tmp_path / "mlx")
  want = Reference(path).logits(IDS)[[4, 9, 14, 19]]
  assert np.abs(logits - want).max() < 1e-4 * want.std()
  assert about["weights"] == "mlx float32"
  assert about["bytes_per_token"] == pytest.approx(ModelInfo.from_gguf(open_gguf(path)).bytes_per_token, rel=1e-3)

@has_mlx
@pytest.mark.parametrize(("kind", "weights", "limit"), [
  ("F16", "mlx float16", 1e-4), ("BF16", "mlx bfloat16", 2e-3), ("Q8_0", "mlx 8-bit g64, float16", 5e-3),
  ("Q6_K", "mlx 6-bit g64, float16", 0.05), ("Q4_K_M", "mlx 4-bit g64, 6-bit g64, float16", 0.5),
  ("MXFP4", "mlx mxfp4 g32, float16", 1e-4), ("NVFP4", "mlx nvfp4 g16, float16", 0.1)])
def test_mlx_quantised_is_close_to_reference(tmp_path, kind, weights, limit):
  path = write_model(tmp_path / "m.gguf", types=kind, dim=256, vocab=VOCAB)
  about, logits = mlx_logits(path, tmp_path / "mlx")
  assert about["weights"] == weights
  assert kl(Reference(path).logits(IDS)[[4, 9, 14, 19]], logits) < limit < peers.MAX_KL_QUANTISED_AGAIN

@has_mlx
def test_mlx_matches_this_project(llama, tmp_path):
  want = tinygrad_llm.load(str(llama), max_context=32).logits(IDS)[[4, 9, 14, 19]]
  _, logits = mlx_logits(llama, tmp_path / "mlx")
  assert np.abs(logits - want).max() < 0.02 * want.std() and (logits.argmax(-1) == want.argmax(-1)).all()

@has_mlx
def test_detects_wrong_row_order(llama, tmp_path, monkeypatch):
  """Comparing logits shows rows in the wrong order; peers.py's KL of a random model is too small to show them."""
  monkeypatch.setattr(mlx_model, "unpermuted", lambda rows, heads: rows)
  want = Reference(llama).logits(IDS)[[4, 9, 14, 19]]
  assert np.abs(mlx_logits(llama, tmp_path)[1] - want).max() > 0.5 * want.std()

@has_mlx
def test_cache_state_between_calls(llama, tmp_path):
  """A prompt fed in two pieces gives the logits of one fed at once; time() leaves no state behind."""
  from bench.peer_mlx import MLX
  mlx_model.convert(str(llama), tmp_path)
  (peer := MLX()).load(str(tmp_path), IDS, 1, {})
  want = peer.logits(12)
  assert peer.time(6, 0, 6, 2) > 0 and peer.time(0, 4, 6, 1) > 0
  peer.keep(6)
  np.testing.assert_allclose(np.array(peer.feed(6, 12)), want, atol=0.02 * want.std())
  np.testing.assert_array_equal(peer.logits(12), want)

@has_mlx
def test_mlx_peer_interleaves_with_this_project(llama, tmp_path):
  command = [sys.executable, "bench/peers.py", "-m", str(llama), "--peers", "mlx", "-p", "4", "-n", "2", "-r", "2",
             "--seconds", "0.05", "--out", str(tmp_path / "out.json")]
  done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "DEV": "CPU"})
  assert done.returncode == 0, done.stderr
  (model,) = json.loads((tmp_path / "out.json").read_text())["models"]
  assert [(r["test"], r["peer"], r["weights"]) for r in model["rows"]] == [
    (test, peer, weights) for test in ("pp4", "tg2") for peer, weights in
    (("tinygrad_llm", None), ("mlx", "mlx float16"))]
  assert model["peers"][1]["kl"] < 1e-3 and "| tg2 | mlx float16 |" in done.stdout
