"""The models of the golden files: record_golden.py writes the files, test_golden.py reads them."""
import hashlib
import pathlib
from typing import Any

import numpy as np
from tests.support.reference import Reference, clear_choices
from tests.support.synthetic import write_model
from tests.support.synthetic_layers import MLA, Gemma4, Indexer, MoE
from tests.support.synthetic_recurrent import KDA, Delta, Mamba2

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
DEFAULT_MODEL = pathlib.Path(__file__).parents[2] / "tinygrad_llm" / "models" / "stories.gguf"
TOKENS, FEWER = 80, 40  # FEWER: of RARER
MARGIN = 0.1  # of expert routing, in standard deviations of the scores: llama.cpp's rounding must not flip a choice

def yarn(arch: str, factor: float, **more: float) -> dict[str, Any]:
  """YaRN metadata with an original context of 64 tokens, so that scaling matters in short tests."""
  keys = {"type": "yarn", "factor": factor, "original_context_length": 64, **more}
  return {f"{arch}.rope.scaling.{key}": value for key, value in keys.items()}

# with these seeds, llama.cpp agrees with the exact model on at least 97% of the best tokens
LATENT = {"kv_lora": 256, "nope": 64, "rope": 32, "value": 64}
SHAPES: dict[str, dict[str, Any]] = {
  "llama": {"arch": "llama", "heads": 8, "kv_heads": 2, "rope_freqs": True, "seed": 0},
  "llama-yarn": {"arch": "llama", "kv": yarn("llama", 4.0), "seed": 0},
  "qwen2": {"arch": "qwen2", "heads": 4, "kv_heads": 2, "seed": 7},
  "qwen3": {"arch": "qwen3", "heads": 4, "kv_heads": 2, "head_dim": 128, "tied": False, "seed": 7},
  "qwen3moe": {"arch": "qwen3moe", "head_dim": 128, "moe": MoE(ffn=256), "seed": 2},
  "olmoe": {"arch": "olmoe", "ffn": 256, "moe": MoE(experts=6, used=3), "seed": 0},
  # DeepSeek-V2-Lite
  "deepseek2": {"arch": "deepseek2", "moe": MoE(ffn=256, dense=1, shared=2, gating="softmax", scale=1.0, groups=1,
                                                groups_used=1), "mla": MLA(**LATENT),
                "kv": yarn("deepseek2", 40.0, yarn_log_multiplier=0.0707), "seed": 0},
  "moonlight": {"arch": "deepseek2", "moe": MoE(ffn=256, dense=1, shared=2, gating="sigmoid", norm=True, scale=2.446,
                                                bias=True, groups=1, groups_used=1), "mla": MLA(**LATENT), "seed": 0},
  # DeepSeek-V3; GLM-4.7-Flash has one group
  "deepseek3": {"arch": "deepseek2", "moe": MoE(experts=12, used=3, ffn=256, dense=1, shared=1, gating="sigmoid",
                                                norm=True, scale=2.5, bias=True, groups=4, groups_used=2),
                "mla": MLA(q_lora=256, **LATENT), "seed": 0},
  "deepseek2-old": {"arch": "deepseek2", "moe": MoE(ffn=256, dense=1, shared=2, scale=1.0),
                    "mla": MLA(absorbed=False, **LATENT), "seed": 5},
  "youtu": {"arch": "deepseek2", "dense": True, "tied": True, "mla": MLA(q_lora=256, **LATENT), "seed": 0},
  "gemma3": {"arch": "gemma3", "head_dim": 128, "pattern": 2, "window": 24, "seed": 0, "kv": {
    "gemma3.final_logit_softcapping": 6.0, "gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}},
  "gemma": {"arch": "gemma", "kv_heads": 1, "head_dim": 128, "seed": 0},
  "gemma2": {"arch": "gemma2", "head_dim": 128, "window": 24, "seed": 2, "kv": {
    "gemma2.attn_logit_softcapping": 5.0, "gemma2.final_logit_softcapping": 6.0}},
  # E2B, E4B; 31B; 26B-A4B
  "gemma4-e": {"arch": "gemma4", "layers": 6, "head_dim": 128, "kv_heads": 1, "ffn": (512,) * 3 + (1024,) * 3,
               "parts": {"gemma4": Gemma4(64, shared=3, per_layer=256)},
               "kv": {"gemma4.final_logit_softcapping": 6.0}, "seed": 0},
  "gemma4-dense": {"arch": "gemma4", "layers": 3, "head_dim": 128, "kv_heads": (2, 2, 1),
                   "parts": {"gemma4": Gemma4(64, keys_only=True)}, "seed": 2},
  "gemma4-moe": {"arch": "gemma4", "layers": 3, "head_dim": 128, "kv_heads": (2, 2, 1), "seed": 0,
                 "moe": MoE(ffn=256, layout="fused"), "parts": {"gemma4": Gemma4(64, keys_only=True)}},
  "gpt-oss": {"arch": "gpt-oss", "head_dim": 64, "moe": MoE(ffn=256), "kv": yarn("gpt-oss", 32.0), "seed": 0},
}
SPARSE = {"moe": MoE(ffn=256, dense=1, shared=1, gating="sigmoid", norm=True, scale=2.5, bias=True),
          "mla": MLA(q_lora=256, **LATENT)}
RARER: dict[str, dict[str, Any]] = {
  "mixtral": {"arch": "llama", "ffn": 256, "tied": False, "moe": MoE(), "seed": 0},
  "phi3": {"arch": "phi3", "seed": 0},
  "phi3-long": {"arch": "phi3", "kv": {"phi3.rope.scaling.original_context_length": 64}, "seed": 0},
  "qwen2moe": {"arch": "qwen2moe", "moe": MoE(ffn=256, shared=1, shared_ffn=512, shared_gate=True), "seed": 0},
  "qwen2vl": {"arch": "qwen2vl", "eps": 1e-12, "seed": 0},  # this llama.cpp does not read its epsilon
  "qwen3vl": {"arch": "qwen3vl", "head_dim": 128, "seed": 0},
  "qwen3vlmoe": {"arch": "qwen3vlmoe", "head_dim": 128, "moe": MoE(ffn=256), "seed": 0},
  "glm4": {"arch": "glm4", "seed": 0},
  "glm4moe": {"arch": "glm4moe", "seed": 0, "moe": MoE(ffn=256, dense=1, shared=1, gating="sigmoid", norm=True,
                                                       scale=1.5, bias=True)},
  "minimax-m2": {"arch": "minimax-m2", "ffn": 256, "head_dim": 128, "seed": 0,
                 "moe": MoE(ffn=256, gating="sigmoid", bias=True)},
  "granitemoe": {"arch": "granitemoe", "ffn": 256, "moe": MoE(shared=1, shared_ffn=512), "seed": 0},
  "mistral3": {"arch": "mistral3", "head_dim": 128, "seed": 2, "kv": {
    **yarn("mistral3", 4.0, yarn_log_multiplier=1.0), "mistral3.rope.scaling.original_context_length": 16,
    "mistral3.attention.temperature_scale": 0.3}},
  "smollm3": {"arch": "smollm3", "layers": 4, "seed": 1},
  "ernie4_5": {"arch": "ernie4_5", "seed": 0},
  "ernie4_5-moe": {"arch": "ernie4_5-moe", "moe": MoE(ffn=256, dense=1, shared=2, bias=True), "seed": 0},
  "exaone4": {"arch": "exaone4", "seed": 0},
  "cohere2": {"arch": "cohere2", "layers": 4, "window": 12, "seed": 1},
  "command-r": {"arch": "command-r", "seed": 1},
  "olmo2": {"arch": "olmo2", "seed": 1},
  "olmo3": {"arch": "olmo2", "layers": 4, "window": 12, "kv": yarn("olmo2", 8.0), "seed": 0},
  "llama4": {"arch": "llama4", "layers": 4, "moe": MoE(ffn=256, shared=1, used=1, step=2), "seed": 0},
  "hunyuan-dense": {"arch": "hunyuan-dense", "head_dim": 128, "seed": 1},
  "deepseek32": {"arch": "deepseek32", **SPARSE, "kv": yarn("deepseek32", 40.0, yarn_log_multiplier=0.1), "seed": 0},
  "glm-dsa": {"arch": "glm-dsa", **SPARSE, "layers": 3, "parts": {"indexer": Indexer(types=(1, 1, 0))}, "seed": 2},
}
RECURRENT: dict[str, dict[str, Any]] = {
  "lfm2": {"arch": "lfm2", "layers": 3, "seed": 5},
  "lfm2moe": {"arch": "lfm2moe", "layers": 3, "moe": MoE(ffn=256, dense=1, gating="sigmoid", bias=True), "seed": 1},
  # Qwen 3.5: head size 256, a quarter of it rotated
  "qwen35": {"arch": "qwen35", "layers": 3, "head_dim": 256, "parts": {"delta": Delta(size=64)}, "seed": 2},
  "qwen35moe": {"arch": "qwen35moe", "head_dim": 128, "parts": {"delta": Delta(v_heads=8)}, "moe": MoE(
    ffn=256, shared=1, shared_gate=True), "seed": 1},
  "qwen3next": {"arch": "qwen3next", "head_dim": 128, "parts": {"delta": Delta(v_heads=8)}, "moe": MoE(
    ffn=256, shared=1, shared_gate=True), "seed": 3},
  "kimi-linear": {"arch": "kimi-linear", "layers": 3, "parts": {"kda": KDA(size=64)}, "mla": MLA(**LATENT), "moe": MoE(
    ffn=256, dense=1, shared=1, gating="sigmoid", bias=True, scale=2.446), "seed": 5},
  "granitehybrid": {"arch": "granitehybrid", "layers": 3, "parts": {"mamba2": Mamba2(inner=512)}, "seed": 1},
  "granitehybrid-moe": {"arch": "granitehybrid", "parts": {"mamba2": Mamba2(inner=512)}, "ffn": 256,
                        "moe": MoE(shared=1), "seed": 0},
  "nemotron_h": {"arch": "nemotron_h", "layers": 4, "seed": 0},
  "nemotron_h_moe": {"arch": "nemotron_h_moe", "layers": 4, "moe": MoE(
    ffn=256, shared=1, shared_ffn=512, norm=True, scale=2.5, bias=True, groups=1, groups_used=1), "seed": 0},
  "nemotron_h_moe-latent": {"arch": "nemotron_h_moe", "layers": 4, "dim": 512, "moe": MoE(
    ffn=256, shared=1, shared_ffn=512, norm=True, scale=2.5, bias=True, latent=256), "seed": 0},
  "falcon-h1": {"arch": "falcon-h1", "seed": 0},
}
TYPES = {"llama": "F16 Q4_K_M Q6_K Q8_0", "qwen2": "F16 Q4_K_M Q6_K Q8_0", "qwen3": "F16 Q4_K_M Q6_K Q8_0",
         "llama-yarn": "F16", "qwen3moe": "F16 Q4_K_M Q8_0", "olmoe": "F16 Q4_K_M", "deepseek2": "F16 Q4_K_M",
         "moonlight": "Q8_0", "deepseek3": "F16 Q4_K_M", "deepseek2-old": "F16 Q4_K_M", "youtu": "Q8_0",
         "gemma3": "F16 Q4_K_M", "gemma": "F16 Q4_K_M", "gemma2": "F16 Q4_K_M", "gemma4-e": "F16 Q4_K_M",
         "gemma4-dense": "F16 Q4_K_M", "gemma4-moe": "F16 Q4_K_M", "gpt-oss": "F16 MXFP4_MOE"}
COMMON = {"dim": 256, "ffn": 512, "layers": 2, "vocab": 512, "blocks": True}
CASES: dict[str, dict[str, Any]] = {
  f"{name}-{types}": {**COMMON, **shape, "types": types} for name, shape in (SHAPES | RARER | RECURRENT).items()
  for types in TYPES.get(name, "F16 Q4_K_M").split()
}

def write_case(name: str, path: pathlib.Path) -> str:
  """Writes the model of a synthetic case and returns its sha256."""
  write_model(path, **CASES[name])
  return hashlib.sha256(path.read_bytes()).hexdigest()

def case_ids(name: str, path: pathlib.Path) -> np.ndarray:
  """Random tokens of a case at which no choice of experts is close. path: the model that write_case wrote."""
  count = FEWER if name.rsplit("-", 1)[0] in RARER else TOKENS
  ids = np.random.default_rng(CASES[name]["seed"]).integers(0, CASES[name]["vocab"], count)
  return np.array(clear_choices(Reference(path), ids, MARGIN), np.int32)
