"""The supported architectures, and what a file of each cannot say about itself."""
from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True)
class Arch:
  """
  The differences of one architecture from the others, as far as a file has neither a key nor a tensor for them.

  `rope`: how dimensions pair up, "norm" (2i, 2i + 1) or "neox" (i, i + half); "": nothing is rotated. `sections`: the
  same in a file with `rope.dimension_sections`; "": that key is not read. `rope_alpha`: the file may say how much
  larger the base is. `late_norm`: queries and keys are normed after the rotation. `unit_norm`: rotated ones are normed
  without weights. `rope_switch`: a file whose `rope.scaling.finetuned` is false has no rotation at all (Granite 4.0 H).
  `mla`: multi-head latent attention. `indexer`: an indexer chooses the positions that a query sees, one in "each"
  layer, or those that are "listed".
  `window_pattern`: used where the file has a sliding window and no pattern. The last of so many layers then sees the
  whole context, the others the window. `window`: used where the file has no sliding window. `chunked`: it is the size
  of all windows, which are chunks. `all_windows`: all layers have the file's window. `window_theta`: base of the
  rotation, without scaling, in layers with a window; 0: as in the other layers. `window_rope`: the rotation of layers
  with a window: "file", the file may name another base; "same", as in the others; "plain", without their scaling.
  `window_layers`: only a model of so many layers has windows; 0: any. `rope_layers`: which layers are rotated: "all";
  "3 of 4", all but each fourth; "windows", those with a window, and all where none has one. `lists_windows`: the file
  must say which layers have a window. `window_sizes`: these may have a head size of their own. `odd_layers`: a model of
  so many layers divides scores by sqrt(dim / heads). `score_scale`: factor of the scores; 0: the head size's inverse
  square root. `score_cap`, `logit_cap`: used where the file has no soft caps. `value_norm`: see layers.AttentionConfig.
  `shares_kv`: the last layers may read the keys and values of earlier ones. `per_layer`: there may be per-layer
  embeddings.
  `yarn_log`: by how much the file's `rope.scaling.yarn_log_multiplier` is multiplied; 0: that key is not read.
  `flat_yarn`: a rotation with that multiplier has the magnitude 1. `temperature`: queries grow with their position:
  "file", as the file says; "unrotated", in layers without a rotation; "refused", a file that says so is refused.
  `before`, `after`, `parallel`: a layer's norms, see layers.LayerConfig. `layer_norm`: all norms are LayerNorm.
  `last_norm`: the tensor's name. `recurrent`: the mixer of layers that have no attention, where `recurrent_if` says how
  a file tells them: "kv_heads": their number of KV heads is 0; "interval": a list, or each n-th layer has attention;
  "always": all layers have it, beside attention. A "grouped_delta" and a "kda" are a "delta" with
  layers.DeltaConfig.grouped and per_channel. `one_part`: a layer with a feed-forward width has no mixer, a layer
  without one no feed-forward network; either has one norm, whose name is the first of `before`.
  `query_gate`: attention's outputs have gates, see layers.AttentionConfig.
  `scale_embd`: embeddings are multiplied by sqrt(dim). `scales`: the file may scale embeddings, scores and the outputs
  of attention and feed-forward, and divide logits. `multiply_logits`: it may multiply logits. `activation`, `gated`:
  see layers.FFNConfig.
  `gating`: how router logits become weights unless the file says, see moe.MoE; "": no experts. `may_be_dense`: a file
  without a number of experts has none. `expert_step`: the file says that each n-th layer has experts, the others are
  dense. `expert_width`: the key of an expert's width. `norm_weights`: the weights of the chosen experts are made to sum
  to 1, unless the file says. `shared`: how a file says the shared expert's width: "expert", an expert's; "count", so
  many times an expert's; "key", by a key; or "dense", by a key, and without it as wide as a dense layer. `weigh_input`:
  see layers.MoEConfig. `dense_too`: layers with experts have a dense feed-forward network beside them.
  `needs`: tensors of a layer that must be there, although others of their kind are optional.
  """
  rope: str
  sections: str = ""
  rope_alpha: bool = False
  late_norm: bool = False
  unit_norm: bool = False
  rope_switch: bool = False
  mla: bool = False
  indexer: str = ""
  window_pattern: int = 0
  window: int = 0
  chunked: bool = False
  lists_windows: bool = False
  window_sizes: bool = False
  all_windows: bool = False
  window_theta: float = 0.0
  window_rope: str = "file"
  window_layers: int = 0
  rope_layers: str = "all"
  odd_layers: int = 0
  score_scale: float = 0.0
  score_cap: float = 0.0
  logit_cap: float = 0.0
  value_norm: bool = False
  shares_kv: bool = False
  per_layer: bool = False
  yarn_log: float = 0.0
  flat_yarn: bool = False
  temperature: str = ""
  before: tuple[str, str] = ("attn_norm", "ffn_norm")
  after: tuple[str, str] = ("", "")
  parallel: bool = False
  layer_norm: bool = False
  last_norm: str = "output_norm"
  recurrent: str = ""
  recurrent_if: str = ""
  one_part: bool = False
  query_gate: bool = False
  scale_embd: bool = False
  scales: bool = False
  multiply_logits: bool = False
  activation: str = "silu"
  gated: bool = True
  expert_step: bool = False
  expert_width: str = "expert_feed_forward_length"
  gating: str = ""
  may_be_dense: bool = False
  norm_weights: bool = False
  weigh_input: bool = False
  shared: str = "count"
  dense_too: bool = False
  needs: tuple[str, ...] = ()

POST_NORMS, NONE = ("post_attention_norm", "post_ffw_norm"), ("", "")
OTHER_NAME = "attn_norm", "post_attention_norm"  # post_attention_norm is what others call ffn_norm
QKV_BIAS = "attn_q.bias", "attn_k.bias", "attn_v.bias"
QK_NORM = "attn_q_norm.weight", "attn_k_norm.weight"

ARCHS: dict[str, Arch] = {
  "cohere2": Arch(rope="norm", window_pattern=4, window=4096, window_rope="same", rope_layers="windows",
                  before=("attn_norm", ""), parallel=True, layer_norm=True, multiply_logits=True),
  "command-r": Arch(rope="norm", before=("attn_norm", ""), parallel=True, layer_norm=True, multiply_logits=True),
  "deepseek2": Arch(rope="norm", mla=True, yarn_log=10.0, flat_yarn=True, temperature="refused", gating="softmax"),
  "deepseek32": Arch(rope="norm", mla=True, indexer="each", yarn_log=10.0, gating="sigmoid"),
  "ernie4_5": Arch(rope="norm"),
  "ernie4_5-moe": Arch(rope="norm", gating="softmax", expert_step=True, norm_weights=True, shared="key"),
  "exaone4": Arch(rope="neox", window_pattern=4, window=4096, window_rope="same", window_layers=64,
                  rope_layers="windows", before=NONE, after=POST_NORMS, needs=QK_NORM),
  "falcon-h1": Arch(rope="neox", recurrent="mamba2", recurrent_if="always"),
  "gemma": Arch(rope="neox", scale_embd=True, activation="gelu"),
  "gemma2": Arch(rope="neox", window_pattern=2, window=4096, odd_layers=46, score_cap=50.0, logit_cap=30.0,
                 after=POST_NORMS, scale_embd=True, activation="gelu"),
  "gemma3": Arch(rope="neox", window_pattern=6, window_theta=10000.0, odd_layers=62, after=POST_NORMS, scale_embd=True,
                 activation="gelu", needs=QK_NORM),
  "gemma4": Arch(rope="neox", lists_windows=True, window_sizes=True, window_theta=10000.0, score_scale=1.0,
                 logit_cap=30.0, value_norm=True, shares_kv=True, per_layer=True, after=POST_NORMS, scale_embd=True,
                 activation="gelu", gating="softmax", may_be_dense=True, norm_weights=True, dense_too=True,
                 needs=QK_NORM),
  "glm-dsa": Arch(rope="norm", mla=True, indexer="listed", gating="sigmoid"),
  "glm4": Arch(rope="norm", sections="neox", after=POST_NORMS),
  "glm4moe": Arch(rope="neox", sections="neox", before=OTHER_NAME, gating="sigmoid", needs=("exp_probs_b.bias",)),
  "gpt-oss": Arch(rope="neox", window_pattern=2, before=OTHER_NAME, activation="swiglu_oai",
                  gating="softmax_chosen",
                  needs=(*QKV_BIAS, "attn_output.bias", "attn_sinks.weight", "ffn_gate_inp.bias", "ffn_gate_exps.bias",
                         "ffn_up_exps.bias", "ffn_down_exps.bias")),
  "granite": Arch(rope="norm", rope_switch=True, scales=True),
  "granitehybrid": Arch(rope="norm", rope_switch=True, recurrent="mamba2", recurrent_if="kv_heads", scales=True,
                        gating="softmax", may_be_dense=True, norm_weights=True, shared="key",
                        expert_width="feed_forward_length"),
  "granitemoe": Arch(rope="norm", scales=True, gating="softmax", norm_weights=True, shared="key",
                     expert_width="feed_forward_length"),
  "hunyuan-dense": Arch(rope="neox", sections="neox", rope_alpha=True, late_norm=True, needs=QK_NORM),
  "kimi-linear": Arch(rope="", mla=True, recurrent="kda", recurrent_if="kv_heads", gating="sigmoid", norm_weights=True,
                      needs=("exp_probs_b.bias",)),
  "lfm2": Arch(rope="neox", all_windows=True, recurrent="shortconv", recurrent_if="kv_heads",
               last_norm="token_embd_norm", needs=QK_NORM),
  "lfm2moe": Arch(rope="neox", recurrent="shortconv", recurrent_if="kv_heads", last_norm="token_embd_norm",
                  gating="softmax", norm_weights=True, needs=(*QK_NORM, "exp_probs_b.bias")),
  "llama": Arch(rope="norm", gating="softmax", may_be_dense=True, norm_weights=True),  # with experts: Mixtral
  "llama4": Arch(rope="norm", window_pattern=4, window=8192, chunked=True, rope_layers="3 of 4", unit_norm=True,
                 temperature="unrotated", gating="sigmoid", expert_step=True, shared="expert", weigh_input=True),
  "minimax-m2": Arch(rope="neox", gating="sigmoid", norm_weights=True, expert_width="feed_forward_length",
                     needs=(*QK_NORM, "exp_probs_b.bias")),
  "mistral3": Arch(rope="norm", yarn_log=1.0, temperature="file", gating="softmax", may_be_dense=True,
                   norm_weights=True, expert_width="feed_forward_length"),
  "nemotron_h": Arch(rope="", recurrent="mamba2", recurrent_if="kv_heads", one_part=True,
                     activation="relu2", gated=False),
  "nemotron_h_moe": Arch(rope="", recurrent="mamba2", recurrent_if="kv_heads", one_part=True,
                         activation="relu2", gated=False, gating="sigmoid", shared="key", needs=("exp_probs_b.bias",)),
  "olmo2": Arch(rope="neox", window_pattern=4, window_rope="plain", before=NONE, after=POST_NORMS, needs=QK_NORM),
  "olmoe": Arch(rope="neox", gating="softmax", needs=QK_NORM),
  "phi3": Arch(rope="neox"),
  "qwen2": Arch(rope="neox", needs=QKV_BIAS),
  "qwen2moe": Arch(rope="neox", gating="softmax", shared="dense", needs=(*QKV_BIAS, "ffn_gate_inp_shexp.weight")),
  "qwen2vl": Arch(rope="neox", sections="neox", needs=QKV_BIAS),
  "qwen3": Arch(rope="neox", needs=QK_NORM),
  "qwen35": Arch(rope="neox", sections="neox", before=OTHER_NAME, recurrent="delta", recurrent_if="interval",
                 query_gate=True, needs=QK_NORM),
  "qwen35moe": Arch(rope="neox", sections="neox", before=OTHER_NAME, recurrent="delta", recurrent_if="interval",
                    query_gate=True, gating="softmax", norm_weights=True, shared="dense",
                    needs=(*QK_NORM, "ffn_gate_inp_shexp.weight")),
  "qwen3moe": Arch(rope="neox", gating="softmax", norm_weights=True, needs=QK_NORM),
  "qwen3next": Arch(rope="neox", before=OTHER_NAME, recurrent="grouped_delta", recurrent_if="interval",
                    query_gate=True, gating="softmax", norm_weights=True, shared="dense",
                    needs=(*QK_NORM, "ffn_gate_inp_shexp.weight")),
  "qwen3vl": Arch(rope="neox", sections="neox", needs=QK_NORM),
  "qwen3vlmoe": Arch(rope="neox", sections="neox", gating="softmax", norm_weights=True, needs=QK_NORM),
  "seed_oss": Arch(rope="neox", before=OTHER_NAME, needs=QKV_BIAS),
  "smollm3": Arch(rope="norm", rope_layers="3 of 4"),
}
