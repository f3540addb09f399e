"""
Small float32 models of every architecture. All tests load a model with sizes(), so its kernels are lowered only once a
run (session.py).
"""
from typing import Any

import numpy as np
from tests.support.golden_cases import yarn
from tests.support.synthetic_layers import MLA, Gemma4, Indexer, MoE
from tests.support.synthetic_recurrent import KDA, Delta, Mamba2

EPS = 0.01  # large enough to matter
SIGMOID = {"gating": "sigmoid", "norm": True, "bias": True, "dense": 1}
MODELS: dict[str, dict[str, Any]] = {
  "llama": {"arch": "llama", "heads": 4, "kv_heads": 1, "rope_freqs": True},
  "llama-untied": {"arch": "llama", "tied": False, "head_dim": 48,
                   "kv": {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}},
  "llama-unscaled": {"arch": "llama", "kv": {"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0,
                                             "llama.rope.scaling.attn_factor": 1.2}},
  "llama-yarn": {"arch": "llama", "kv": yarn("llama", 2.0)},
  "mixtral": {"arch": "llama", "eps": EPS, "ffn": 64, "tied": False, "moe": MoE(experts=8, used=2)},
  "granite": {"arch": "granite", "eps": EPS},
  "granite-unrotated": {"arch": "granite", "kv": {"granite.rope.scaling.finetuned": False}},  # Granite 4.0 H
  "seed_oss": {"arch": "seed_oss", "eps": EPS, "head_dim": 48},
  "qwen2": {"arch": "qwen2"},
  "qwen2-yarn": {"arch": "qwen2", "kv": yarn("qwen2", 4.0, attn_factor=0.9)},
  "qwen3": {"arch": "qwen3", "eps": EPS, "tied": False, "head_dim": 64},
  "qwen3moe": {"arch": "qwen3moe", "eps": EPS},
  "olmoe": {"arch": "olmoe", "eps": EPS, "ffn": 64, "moe": MoE(experts=6, used=3)},
  # DeepSeek-V2-Lite: an unfactored query matrix, softmax gating, YaRN with its factor in the scores
  "deepseek2": {"arch": "deepseek2", "eps": EPS, "kv": yarn("deepseek2", 40.0, yarn_log_multiplier=0.0707)},
  # GLM-4.7-Flash, DeepSeek-V3: low-rank queries, sigmoid gating, groups
  "deepseek2-groups": {"arch": "deepseek2", "eps": EPS, "mla": MLA(q_lora=48),
                       "moe": MoE(experts=12, used=3, shared=1, scale=2.5, groups=4, groups_used=2, **SIGMOID)},
  # older files: attn_kv_b is not split, and the key of the gating function is missing
  "deepseek2-old": {"arch": "deepseek2", "moe": MoE(dense=1, shared=2, scale=16.0), "mla": MLA(absorbed=False)},
  # Youtu-LLM: no experts at all
  "deepseek2-dense": {"arch": "deepseek2", "dense": True, "tied": True, "mla": MLA(q_lora=48)},
  "gemma3": {"arch": "gemma3", "eps": EPS, "head_dim": 48, "pattern": 2, "window": 24,
             "kv": {"gemma3.final_logit_softcapping": 5.0, "gemma3.rope.scaling.type": "linear",
                    "gemma3.rope.scaling.factor": 8.0, "gemma3.rope.scaling.attn_factor": 1.2}},
  "gemma3-sliding": {"arch": "gemma3", "head_dim": 32},  # two layers of the usual pattern of six layers
  # as recent converters write it: arrays, and a base of the window layers
  "gemma3-arrays": {"arch": "gemma3", "eps": EPS, "head_dim": 48, "layers": 3, "window": 24, "kv_heads": (2, 2, 2),
                    "ffn": (256, 256, 256), "kv": {"gemma3.attention.sliding_window_pattern": [True, False, True],
                                                   "gemma3.rope.freq_base_swa": 20000.0}},
  "gemma3-full": {"arch": "gemma3", "head_dim": 32, "window": 0},  # no window, no key
  "gemma": {"arch": "gemma", "eps": EPS, "head_dim": 48},
  "gemma2": {"arch": "gemma2", "eps": EPS, "head_dim": 48, "window": 24,
             "kv": {"gemma2.attn_logit_softcapping": 2.0, "gemma2.final_logit_softcapping": 5.0}},
  "gemma2-plain": {"arch": "gemma2", "head_dim": 32},  # window and caps are not written
  # E2B, E4B: per-layer embeddings; the last layers read the keys and values of layer 1 (a window) or 2 (full)
  "gemma4-e": {"arch": "gemma4", "eps": EPS, "layers": 6, "head_dim": 64, "kv_heads": 1, "ffn": (256,) * 3 + (512,) * 3,
               "kv": {"gemma4.final_logit_softcapping": 5.0}, "parts": {"gemma4": Gemma4(shared=3, per_layer=32)}},
  # 12B, 31B: full layers have fewer KV heads, and no matrix of values
  "gemma4-dense": {"arch": "gemma4", "layers": 3, "head_dim": 64, "kv_heads": (2, 2, 1),
                   "parts": {"gemma4": Gemma4(keys_only=True, suppress=(7, 300))}},
  # 26B-A4B
  "gemma4-moe": {"arch": "gemma4", "layers": 3, "head_dim": 64, "kv_heads": (2, 2, 1), "moe": MoE(layout="fused"),
                 "parts": {"gemma4": Gemma4(keys_only=True)}},
  "gemma4-split": {"arch": "gemma4", "eps": EPS, "head_dim": 48, "mixers": ("gemma4-window", "gemma4-full"),
                   "tied": False, "moe": MoE(experts=6, used=3), "parts": {"gemma4": Gemma4(48, scaled=False)}},
  "gpt-oss": {"arch": "gpt-oss", "eps": EPS, "head_dim": 48, "kv": yarn("gpt-oss", 32.0)},
  "gpt-oss-bases": {"arch": "gpt-oss", "kv": yarn("gpt-oss", 32.0) | {"gpt-oss.rope.freq_base_swa": 500.0}},
  "mixtral-old": {"arch": "mixtral-old", "eps": EPS, "ffn": 64},
  "phi3": {"arch": "phi3", "eps": EPS, "head_dim": 32},
  "phi3-long": {"arch": "phi3", "eps": EPS, "kv": {"phi3.rope.scaling.original_context_length": 64}},
  "qwen2moe": {"arch": "qwen2moe", "eps": EPS},
  "qwen2vl": {"arch": "qwen2vl", "eps": EPS},
  "qwen3vl": {"arch": "qwen3vl", "eps": EPS, "head_dim": 48},
  "qwen3vlmoe": {"arch": "qwen3vlmoe", "eps": EPS},
  "glm4": {"arch": "glm4", "eps": EPS},
  "glm4moe": {"arch": "glm4moe", "eps": EPS, "head_dim": 48},
  "glm4moe-plain": {"arch": "glm4moe", "eps": EPS, "qk_norm": False},  # GLM-4.5-Air
  "minimax-m2": {"arch": "minimax-m2", "eps": EPS, "ffn": 64, "head_dim": 48},
  "granitemoe": {"arch": "granitemoe", "eps": EPS, "ffn": 64},
  "mistral3": {"arch": "mistral3", "eps": EPS, "head_dim": 48, "kv": {
    **yarn("mistral3", 4.0, yarn_log_multiplier=1.0), "mistral3.rope.scaling.original_context_length": 32,
    "mistral3.attention.temperature_scale": 0.3}},
  "smollm3": {"arch": "smollm3", "eps": EPS, "layers": 4},
  "ernie4_5": {"arch": "ernie4_5", "eps": EPS, "head_dim": 48},
  "ernie4_5-moe": {"arch": "ernie4_5-moe", "eps": EPS},
  "exaone4": {"arch": "exaone4", "eps": EPS},
  "cohere2": {"arch": "cohere2", "eps": EPS, "layers": 4, "window": 24},
  "command-r": {"arch": "command-r", "eps": EPS},
  "command-r-plus": {"arch": "command-r", "eps": EPS, "qk_norm": "heads"},
  "olmo2": {"arch": "olmo2", "eps": EPS},
  "olmo3": {"arch": "olmo2", "eps": EPS, "layers": 4, "window": 24, "kv": yarn("olmo2", 8.0)},
  "llama4": {"arch": "llama4", "eps": EPS, "layers": 4},
  "hunyuan-dense": {"arch": "hunyuan-dense", "eps": EPS, "head_dim": 48},
  "deepseek32": {"arch": "deepseek32", "eps": EPS, "kv": yarn("deepseek32", 8.0, yarn_log_multiplier=0.1)},
  "glm-dsa": {"arch": "glm-dsa", "eps": EPS, "layers": 3, "parts": {"indexer": Indexer(types=(1, 1, 0))}},
  # short convolution: KV heads by layer, 0 where a layer convolves
  "lfm2": {"arch": "lfm2", "eps": EPS, "layers": 3},
  "lfm2-window": {"arch": "lfm2", "eps": EPS, "layers": 3, "window": 24},
  "lfm2moe": {"arch": "lfm2moe", "eps": EPS, "layers": 3},
  # gated delta rule; a small state, so that the epsilon of its keys' norm matters
  "qwen35": {"arch": "qwen35", "eps": EPS, "layers": 3, "parts": {"delta": Delta(size=16)}},
  # the last layer predicts further tokens, it is not run
  "qwen35-nextn": {"arch": "qwen35", "layers": 3, "parts": {"delta": Delta(), "nextn": 1}},
  # the list of recurrent layers contradicts the period
  "qwen35-listed": {"arch": "qwen35", "eps": EPS, "mixers": ("attention", "delta"),
                    "parts": {"delta": Delta(v_heads=6, size=16, taps=3, listed=True)}},
  "qwen35moe": {"arch": "qwen35moe", "eps": EPS, "layers": 3, "parts": {"delta": Delta(v_heads=6, size=16)},
                "moe": MoE(shared=1, shared_ffn=96, shared_gate=True, layout="fused")},
  "qwen3next": {"arch": "qwen3next", "eps": EPS, "layers": 3, "parts": {"delta": Delta(v_heads=6, size=16)}},
  "qwen3next-old": {"arch": "qwen3next", "eps": EPS, "parts": {"delta": Delta(v_heads=6, size=16, joined=True)}},
  "kimi-linear": {"arch": "kimi-linear", "eps": EPS, "layers": 3, "parts": {"kda": KDA(size=16)}},
  # Mamba-2
  "granitehybrid": {"arch": "granitehybrid", "eps": EPS, "layers": 3},
  "granitehybrid-moe": {"arch": "granitehybrid", "eps": EPS, "ffn": 64, "moe": MoE(shared=1, shared_ffn=96)},
  "bamba": {"arch": "granitehybrid", "parts": {"mamba2": Mamba2(groups=1, state=32)},  # its attention is rotated
            "kv": {"granitehybrid.rope.scaling.finetuned": True}},
  "nemotron_h": {"arch": "nemotron_h", "eps": EPS, "layers": 4, "head_dim": 48},
  "nemotron_h_moe": {"arch": "nemotron_h_moe", "eps": EPS, "layers": 4},
  "nemotron_h_moe-latent": {"arch": "nemotron_h_moe", "eps": EPS, "layers": 4, "tied": False, "moe": MoE(
    shared=1, shared_ffn=96, norm=True, scale=2.5, bias=True, latent=48)},
  "falcon-h1": {"arch": "falcon-h1", "eps": EPS, "parts": {"mamba2": Mamba2(inner=192, heads=6)}},
  "falcon-h1-unnormed": {"arch": "falcon-h1", "eps": EPS, "tied": True, "parts": {"mamba2": Mamba2(norm=False)}},
}
VOCAB, LONG = 320, 2048
IDS = np.random.default_rng(0).integers(0, VOCAB, LONG).tolist()

def sizes(name: str) -> tuple[int, int, int]:
  """(compared tokens, tokens of a prefill chunk, cache positions) of a model; the first models get longer ones."""
  length = LONG if name == "llama" else 300 if name in ("llama-untied", "qwen2", "qwen3") else 100
  return length, 64 if length == 100 else 256, length + 16
