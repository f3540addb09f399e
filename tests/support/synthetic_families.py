"""
The traits of every architecture, as llama.cpp's converters write its files and src/models/*.cpp of llama.cpp read them.
"""
from gguf import GGUFWriter
from tests.support.synthetic_shapes import MLA, Family, MoE, Shape


def granite_scales(w: GGUFWriter, s: Shape) -> None:
  w.add_embedding_scale(0.5)
  w.add_residual_scale(0.6)
  w.add_attention_scale(0.12)
  w.add_logit_scale(1.25)

DEEPSEEK_V2_LITE = MoE(dense=1, shared=2, gating="softmax", scale=1.0, groups=1, groups_used=1)
DEEPSEEK_KEYS = ("ffn", "dense", "shared")
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
}
