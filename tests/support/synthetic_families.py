"""
The traits of every architecture, as llama.cpp's converters write its files and src/models/*.cpp of llama.cpp read them.
"""
from collections.abc import Iterator
from dataclasses import replace

from gguf import GGUFWriter
from tests.support import synthetic_gemma4 as gemma4
from tests.support.synthetic_recurrent import (KDA, Delta, Mamba2, ShortConv, add_delta, add_kda, add_mamba2,
  add_shortconv)
from tests.support.synthetic_shapes import MLA, Family, Indexer, MoE, Shape, Spec


def granite_scales(w: GGUFWriter, s: Shape) -> None:
  w.add_embedding_scale(0.5)
  w.add_residual_scale(0.6)
  w.add_attention_scale(0.12)
  w.add_logit_scale(1.25)

def multiply_logits(w: GGUFWriter, s: Shape) -> None:
  w.add_logit_scale(0.75)

def sections(w: GGUFWriter, s: Shape) -> None:
  """Pairs of time, height and width; all of them are rotated by the position in a text."""
  pairs = s.head_dim // 2
  w.add_rope_dimension_sections([pairs - 2 * (pairs // 3), pairs // 3, pairs // 3, 0])

def rope_factors(s: Shape, gain: float) -> Iterator[Spec]:
  """Divisors of the frequencies for contexts up to the original one, and for longer ones."""
  pairs = int(s.head_dim * (s.family.rotated or 1)) // 2
  yield Spec("rope_factors_long.weight", (pairs,), 0.8, 4.0, matrix=False)
  yield Spec("rope_factors_short.weight", (pairs,), 0.05, 1.2, matrix=False)

def indexer(w: GGUFWriter, s: Shape) -> None:
  part = s.parts["indexer"]
  w.add_indexer_head_count(part.heads)
  w.add_indexer_key_length(part.size)
  w.add_indexer_top_k(part.top_k)
  if part.types: w.add_array(f"{s.arch}.attention.indexer.types", part.types)

def qwen35_keys(w: GGUFWriter, s: Shape) -> None:
  add_delta(w, s)
  pairs = int(s.head_dim * (s.family.rotated or 1)) // 2  # of time, height and width in turn
  w.add_rope_dimension_sections([-(-pairs // 3), -(-(pairs - 1) // 3), -(-(pairs - 2) // 3), 0])

def granite_hybrid_keys(w: GGUFWriter, s: Shape) -> None:
  granite_scales(w, s)
  add_mamba2(w, s)
  w.add_rope_scaling_finetuned(False)  # not rotated

DEEPSEEK_V2_LITE = MoE(dense=1, shared=2, gating="softmax", scale=1.0, groups=1, groups_used=1)
DEEPSEEK_KEYS = ("ffn", "dense", "shared")
LFM2 = Family("qwen", 1000000.0, qk_norm="head", mixers=("shortconv", "attention"), parts={"shortconv": ShortConv()},
              marked=("kv",), last_norm="token_embd_norm", keys=add_shortconv)
QWEN35 = Family("qwen", 10000000.0, qk_norm="head", mixers=("delta", "attention"), parts={"delta": Delta()},
                query_gate=True, names=("attn_norm", "post_attention_norm"), rotated=0.25, key_length=True,
                keys=qwen35_keys)
QWEN_MOE, QWEN_MOE_KEYS = MoE(shared=1, shared_gate=True), ("ffn", "shared_ffn")
NEMOTRON_H = Family("qwen", 10000.0, mixers=("mamba2", "", "attention", ""), parts={"mamba2": Mamba2()}, gated=False,
                    hidden=(1, 1.2), no_ffn=("mamba2", "attention"), names=("attn_norm", "attn_norm"),
                    marked=("kv", "ffn"), eps_key="layer", key_length=True, keys=add_mamba2)
FAMILIES = {
  "llama": Family("llama", 500000.0, expert_keys=()),
  "qwen2": Family("qwen", 1000000.0, qkv_bias=True),
  "qwen3": Family("qwen", 1000000.0, qk_norm="head"),
  "qwen3moe": Family("qwen", 1000000.0, qk_norm="head", moe=MoE(), tied=False),
  "olmoe": Family("olmo", 10000.0, qk_norm="all", moe=MoE(), tied=False, expert_keys=(), mha=True),
  "deepseek2": Family("deepseek", 10000.0, moe=DEEPSEEK_V2_LITE, mla=MLA(), tied=False, mha=True, mixers=("latent",),
                      expert_keys=DEEPSEEK_KEYS),
  "gemma3": Family("gemma", 1000000.0, qk_norm="head", window=32, norms="both", rotated=None, key_length=True,
                   stream=True),
  # both factors are clamped at 7: here one in twelve exceeds it
  "gpt-oss": Family("gpt-oss", 150000.0, qkv_bias=True, moe=MoE(), window=16, tied=False, sinks=True,
                    biases=("out", "experts"), names=("attn_norm", "post_attention_norm"), hidden=(4, 10), sharp=1.2,
                    rotated=None, key_length=True),
  "seed_oss": Family("qwen", 10000000.0, qkv_bias=True, tied=False, names=("attn_norm", "post_attention_norm")),
  "granite": Family("llama", 10000.0, keys=granite_scales),
  "gemma": Family("gemma", 10000.0, rotated=None, key_length=True, write_base=False, stream=True),
  "gemma2": Family("gemma", 10000.0, norms="both", rotated=None, key_length=True, write_base=False, stream=True),
  "gemma4": Family("gemma4", 1000000.0, norms="both", key_length=True, stream=True, window=24,
                   mixers=(gemma4.WINDOW, gemma4.WINDOW, gemma4.FULL), parts={"gemma4": gemma4.Gemma4()},
                   keys=gemma4.keys, layer_tensors=gemma4.layer_tensors, model_tensors=gemma4.model_tensors),
  "mixtral-old": Family("llama", 1000000.0, arch="llama", moe=MoE(layout="split"), tied=False, expert_keys=()),
  "phi3": Family("llama", 10000.0, fused=("qkv", "up"), tied=False, rotated=0.75, model_tensors=rope_factors,
                 keys=lambda w, s: w.add_rope_scaling_attn_factors(1.19)),
  "qwen2moe": Family("qwen", 1000000.0, qkv_bias=True, tied=False, expert_keys=("ffn", "shared_ffn"),
                     moe=MoE(shared=1, shared_ffn=96, shared_gate=True)),
  "qwen2vl": Family("qwen", 1000000.0, qkv_bias=True, keys=sections),
  "qwen3vl": Family("qwen", 5000000.0, qk_norm="head", keys=sections, key_length=True),
  "qwen3vlmoe": Family("qwen", 5000000.0, qk_norm="head", moe=MoE(), tied=False, keys=sections, key_length=True),
  "glm4": Family("qwen", 10000.0, qkv_bias=True, norms="both", fused=("up",), rotated=0.5, tied=False),
  "glm4moe": Family("qwen", 1000000.0, qkv_bias=True, qk_norm="head", names=("attn_norm", "post_attention_norm"),
                    rotated=0.5, tied=False, expert_keys=DEEPSEEK_KEYS, key_length=True,
                    moe=MoE(dense=1, shared=1, gating="sigmoid", norm=True, scale=1.5, bias=True)),
  "minimax-m2": Family("qwen", 5000000.0, qk_norm="all", rotated=0.5, tied=False, key_length=True,
                       moe=MoE(gating="sigmoid", bias=True), wide_experts=True),
  "granitemoe": Family("llama", 10000.0, moe=MoE(shared=1, shared_ffn=96), keys=granite_scales,
                       expert_keys=("shared_ffn",)),
  "mistral3": Family("llama", 1000000.0, tied=False, key_length=True),
  "smollm3": Family("llama", 2000000.0),
  "ernie4_5": Family("llama", 500000.0),
  "ernie4_5-moe": Family("llama", 500000.0, moe=MoE(dense=1, shared=2, bias=True),
                         expert_keys=("ffn", "dense", "step", "shared_ffn")),
  "exaone4": Family("llama", 1000000.0, norms="post", qk_norm="head"),
  "cohere2": Family("llama", 50000.0, norms="parallel", layer_norm=True, window=32, keys=multiply_logits),
  "command-r": Family("llama", 8000000.0, norms="parallel", layer_norm=True, keys=multiply_logits),
  "olmo2": Family("olmo", 500000.0, norms="post", qk_norm="all", tied=False, mha=True),
  "llama4": Family("llama", 500000.0, tied=False, moe=MoE(shared=1, used=1, step=2), expert_keys=("ffn", "step")),
  "hunyuan-dense": Family("llama", 10000.0, qk_norm="head", key_length=True),
  "deepseek32": Family("deepseek", 10000.0, mla=MLA(q_lora=64), tied=False, mha=True, mixers=("sparse",), keys=indexer,
                       moe=MoE(dense=1, shared=1, gating="sigmoid", norm=True, scale=2.5, bias=True),
                       expert_keys=DEEPSEEK_KEYS, parts={"indexer": Indexer()}),
  "glm-dsa": Family("deepseek", 1000000.0, mla=MLA(q_lora=64), tied=False, mha=True, mixers=("sparse",), keys=indexer,
                    moe=MoE(dense=1, shared=1, gating="sigmoid", norm=True, scale=2.5, bias=True),
                    expert_keys=DEEPSEEK_KEYS, parts={"indexer": Indexer()}),
  "lfm2": LFM2,
  "lfm2moe": replace(LFM2, moe=MoE(dense=1, gating="sigmoid", bias=True), expert_keys=("ffn", "dense")),
  "qwen35": QWEN35,
  "qwen35moe": replace(QWEN35, moe=QWEN_MOE, expert_keys=QWEN_MOE_KEYS, tied=False),
  "qwen3next": replace(QWEN35, moe=QWEN_MOE, expert_keys=QWEN_MOE_KEYS, tied=False, keys=add_delta),
  "granitehybrid": Family("llama", 10000.0, mixers=("mamba2", "attention"), parts={"mamba2": Mamba2()}, marked=("kv",),
                          expert_keys=("shared_ffn",), keys=granite_hybrid_keys),
  "nemotron_h": NEMOTRON_H,
  "nemotron_h_moe": replace(NEMOTRON_H, moe=MoE(shared=1, shared_ffn=96, norm=True, scale=2.5, bias=True, groups=1,
                                                groups_used=1), expert_keys=("ffn", "shared", "shared_ffn")),
  "falcon-h1": Family("llama", 100000.0, mixers=("attention+mamba2",), parts={"mamba2": Mamba2()}, bare=("ffn_norm",),
                      key_length=True, keys=add_mamba2, tied=False),
  "kimi-linear": Family("deepseek", 10000.0, moe=MoE(dense=1, shared=1, gating="sigmoid", bias=True, scale=2.446),
                        mla=MLA(), tied=False, mixers=("kda", "latent"), parts={"kda": KDA()}, marked=("kv",),
                        expert_keys=DEEPSEEK_KEYS, keys=add_kda),
}
