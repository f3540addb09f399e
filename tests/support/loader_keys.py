"""
Every metadata key that llama.cpp's loader reads, architecture by architecture, and its fate in our reader.

KEYS: {architecture: {key without the architecture's prefix: fate}}. A fate, and perhaps a colon and a reason:
- read: the configuration of the layers depends on it
- refused: a value that would change a number ends in an InputError that names the key
- no number: no logit depends on it

Source: llama_model_base::load_hparams and each load_arch_hparams of llama.cpp 0c1e57098. When llama.cpp is newer,
`python tests/tools/llama_cpp_keys.py LLAMA.CPP` prints what the table lacks. Tensors that change numbers by presence
are no keys: the loader warns of a tensor that nothing reads.
"""

def _keys(fate: str, *groups: str) -> dict[str, str]: return {key: fate for group in groups for key in group.split()}

READ, NO_WINDOW = "read", "no number: no layer has a window"
EMBEDDINGS, IMAGES = "no number: of embeddings alone", "no number: images alone"
NO_EXPERTS = "no number: it has no experts"

# every architecture
BASE = {
  **_keys(READ, "embedding_length block_count feed_forward_length attention.head_count attention.head_count_kv",
          "attention.key_length attention.value_length attention.layer_norm_rms_epsilon"),
  "nextn_predict_layers": "read: so many last layers are skipped",
  "attention.causal": "refused: false is an encoder",
  "rope.scaling.alpha": "no number: Hunyuan alone uses it",
  "pooling_type": "read: what the model is for",
  **_keys(EMBEDDINGS, "embedding_length_out classifier.pooling_type classifier.output_labels"),
}
ROPE = {
  **_keys(READ, "rope.dimension_count rope.freq_base rope.scaling.type rope.scaling.factor rope.scaling.attn_factor",
          "rope.scaling.original_context_length"),
  "rope.scale_linear": "read: the old name of rope.scaling.factor",
  "context_length": "read: YaRN's original context, where the file names none",
  "rope.scaling.finetuned": "no number: a note",
}
NO_ROPE = {
  **_keys("no number: nothing is rotated", "rope.dimension_count rope.freq_base rope.scaling.type rope.scaling.factor",
          "rope.scale_linear rope.scaling.attn_factor rope.scaling.original_context_length rope.scaling.finetuned"),
  "context_length": "no number: it bounds the context",
}
SWITCH = {"rope.scaling.finetuned": "read: false turns the rotation off"}

# feed-forward
DENSE = {
  "expert_count": "refused: it has no experts",
  **_keys(NO_EXPERTS, "expert_used_count expert_group_count expert_group_used_count"),
}
EXPERTS = _keys(READ, "expert_count expert_used_count expert_group_count expert_group_used_count")
WIDTH = {"expert_feed_forward_length": READ}
ONLY_EXPERTS = {"feed_forward_length": "no number: the experts' tensors have their width"}
GATING = {"expert_gating_func": READ}
WEIGHTS = _keys(READ, "expert_weights_scale expert_weights_norm")
SHARED = {"expert_shared_count": READ, "leading_dense_block_count": READ}
SHARED_WIDTH = {"expert_shared_feed_forward_length": READ}

# windows; the sizes of a layer with a window are head sizes and rotated dimensions of their own
FULL = _keys(NO_WINDOW, "attention.key_length_swa attention.value_length_swa rope.dimension_count_swa")
ONE_SIZE = _keys("refused: one head size for all layers", "attention.key_length_swa attention.value_length_swa",
                 "rope.dimension_count_swa")
WINDOW = {"attention.sliding_window": READ, "attention.sliding_window_pattern": "read: a period or an array"}
WINDOW_BASE = {"rope.freq_base_swa": READ}
ONE_BASE = {"rope.freq_base_swa": "no number: layers with a window have the same base"}

# mixers
SECTIONS = {"rope.dimension_sections": "read: pairs beyond three sections are not rotated"}
SCALES = _keys(READ, "logit_scale residual_scale embedding_scale attention.scale")
LATENT = {
  **_keys(READ, "attention.q_lora_rank attention.kv_lora_rank attention.key_length_mla attention.value_length_mla"),
  "attention.value_length": "read: where there is no attention.value_length_mla",
  "attention.key_length": "read: where there is no attention.key_length_mla",
}
YARN_LOG = {"rope.scaling.yarn_log_multiplier": READ}
MAMBA = _keys(READ, "ssm.conv_kernel ssm.inner_size ssm.state_size ssm.time_step_rank ssm.group_count")
DELTA = {**MAMBA, **_keys(READ, "attention.recurrent_layers full_attention_interval")}
INDEXER = _keys(READ, "attention.indexer.head_count attention.indexer.key_length attention.indexer.top_k")
LAYER_NORM = {"attention.layer_norm_epsilon": READ}
TEMPERATURE = "attention.temperature_scale"

def _arch(*groups: dict[str, str], without: str = "") -> dict[str, str]:
  """The keys of all groups; a later group's fate replaces an earlier one's."""
  keys = {key: fate for group in (BASE, *groups) for key, fate in group.items()}
  return {key: fate for key, fate in keys.items() if key not in without.split()}

_QWEN2 = _arch(ROPE, DENSE, FULL)
_QWEN3MOE = _arch(ROPE, EXPERTS, ONLY_EXPERTS, WIDTH, FULL)
_RMS = "attention.layer_norm_rms_epsilon"  # LayerNorm architectures have none
_ERNIE = _arch(ROPE, FULL, {"rope.dimension_sections": "no number: PaddleOCR alone uses it"})
_ERNIE_EXPERTS = {**EXPERTS, **WIDTH, **SHARED_WIDTH, **_keys(READ, "interleave_moe_layer_step",
                                                               "leading_dense_block_count")}
_NEMOTRON_H = _arch(NO_ROPE, MAMBA, LAYER_NORM, FULL, {_RMS: "read: attention.layer_norm_epsilon where it is absent"})
_NEMOTRON_EXPERTS = EXPERTS | WIDTH | WEIGHTS | SHARED_WIDTH | {
  "moe_latent_size": READ, "expert_shared_count": "no number: the shared width is a key of its own"}

KEYS: dict[str, dict[str, str]] = {
  "llama": _arch(ROPE, EXPERTS, FULL, {"vocab_size": "no number: it tells models apart by name"}),
  "llama4": _arch(ROPE, EXPERTS, WIDTH, ONE_SIZE, WINDOW, WINDOW_BASE, {
    "attention.sliding_window": "read: 0 is no chunks; any other number is 8192", "interleave_moe_layer_step": READ}),
  "deci": _arch(ROPE, DENSE, FULL),
  "qwen2": _QWEN2,
  "qwen2moe": _arch(ROPE, EXPERTS, ONLY_EXPERTS, WIDTH, SHARED_WIDTH, FULL, {
    "feed_forward_length": "read: the shared expert's width, where it has none of its own"}),
  "qwen2vl": _QWEN2 | SECTIONS | {_RMS: "read: llama.cpp forgets it, and has 0"},
  "qwen3": _QWEN2,
  "qwen3moe": _QWEN3MOE,
  "qwen3vl": _QWEN2 | SECTIONS | {"n_deepstack_layers": IMAGES},
  "qwen3vlmoe": _QWEN3MOE | SECTIONS | {"n_deepstack_layers": IMAGES},
  "qwen35": _QWEN2 | SECTIONS | DELTA,
  "qwen35moe": _QWEN3MOE | SECTIONS | DELTA | SHARED_WIDTH | {
    "feed_forward_length": "read: the shared expert's width, where it has none of its own"},
  "qwen3next": _QWEN3MOE | DELTA | SHARED_WIDTH | {
    "feed_forward_length": "read: of layers without experts, and of the shared expert where it has none of its own"},
  "gemma": _QWEN2,
  "gemma2": _arch(ROPE, DENSE, ONE_SIZE, WINDOW, WINDOW_BASE, {
    "attention.sliding_window": "read: 4096 where it is absent",
    "attn_logit_softcapping": "read: 50 where it is absent", "final_logit_softcapping": "read: 30 where it is absent"}),
  "gemma3": _arch(ROPE, DENSE, ONE_SIZE, WINDOW, WINDOW_BASE, {"final_logit_softcapping": READ}),
  "gemma4": _arch(ROPE, EXPERTS, WIDTH, WINDOW, WINDOW_BASE, _keys(READ, "attention.key_length_swa",
    "attention.value_length_swa rope.dimension_count_swa attention.shared_kv_layers final_logit_softcapping",
    "embedding_length_per_layer_input")),
  "gpt-oss": _arch(ROPE, EXPERTS, ONLY_EXPERTS, WIDTH, ONE_SIZE, WINDOW, {
    "rope.freq_base_swa": "read: the base of all layers where it is absent"}),
  "granite": _arch(ROPE, SWITCH, DENSE, SCALES, FULL, {"deepstack_mapping": IMAGES,
    "expert_shared_feed_forward_length": NO_EXPERTS}),
  "granitemoe": _arch(ROPE, EXPERTS, SCALES, SHARED_WIDTH, FULL),
  "granitehybrid": _arch(ROPE, SWITCH, EXPERTS, SCALES, SHARED_WIDTH, MAMBA, FULL),
  "seed_oss": _QWEN2,
  "olmoe": _arch(ROPE, EXPERTS, ONLY_EXPERTS, FULL),
  "olmo2": _arch(ROPE, DENSE, ONE_SIZE, WINDOW, ONE_BASE),
  "deepseek2": _arch(ROPE, EXPERTS, WIDTH, GATING, WEIGHTS, SHARED, LATENT, YARN_LOG, FULL, {
    TEMPERATURE: "refused: queries grow with their position",
    "attention.temperature_length": "no number: without the scale, which is refused",
    "vocab_size": "no number: the rows of token_embd tell GLM-4.7-Flash"}),
  "deepseek32": _arch(ROPE, EXPERTS, WIDTH, GATING, WEIGHTS, SHARED, LATENT, YARN_LOG, INDEXER, FULL, {
    "rope.dimension_sections": "no number: nothing uses it"}),
  "glm-dsa": _arch(ROPE, EXPERTS, WIDTH, GATING, WEIGHTS, SHARED, LATENT, INDEXER, FULL, {
    "rope.dimension_sections": "no number: nothing uses it",
    "attention.indexer.types": "read: layers that have an indexer of their own",
    "context_length": "read: 1,048,576 and more share indexers, where the file has no attention.indexer.types"}),
  "glm4": _QWEN2 | SECTIONS,
  "glm4moe": _arch(ROPE, EXPERTS, WIDTH, GATING, WEIGHTS, SHARED, SECTIONS, FULL),
  "minimax-m2": _arch(ROPE, EXPERTS, GATING, FULL, {
    "expert_feed_forward_length": "no number: feed_forward_length is the experts' width"}),
  "phi3": _QWEN2 | {
    "attention.sliding_window": "no number: all positions are seen",
    "rope.scaling.original_context_length": "read: a longer context has the long factors",
    "context_length": "read: the original context, where the file names none"},
  "mistral3": _arch(ROPE, EXPERTS, YARN_LOG, FULL, _keys(READ, "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow"), {TEMPERATURE: "read: once every rope.scaling.original_context_length positions"}),
  "smollm3": _QWEN2,
  "ernie4_5": _ERNIE | dict.fromkeys(_ERNIE_EXPERTS, NO_EXPERTS) | DENSE,
  "ernie4_5-moe": _ERNIE | _ERNIE_EXPERTS,
  "exaone4": _arch(ROPE, DENSE, ONE_SIZE, WINDOW, ONE_BASE, {
    "attention.sliding_window": "read: in models of 64 layers"}),
  "cohere2": _arch(ROPE, DENSE, ONE_SIZE, WINDOW, ONE_BASE, LAYER_NORM, {"logit_scale": READ}, without=_RMS),
  "command-r": _arch(ROPE, DENSE, LAYER_NORM, FULL, {"logit_scale": READ}, without=_RMS),
  "hunyuan-dense": _QWEN2 | SECTIONS | {"rope.scaling.alpha": "read: it raises rope.freq_base"},
  "lfm2": _arch(ROPE, DENSE, ONE_SIZE, {"shortconv.l_cache": READ, "attention.sliding_window": READ,
    "attention.causal": "refused: false centres the convolution, too"}),
  "lfm2moe": _arch(ROPE, EXPERTS, WIDTH, GATING, FULL, {"shortconv.l_cache": READ, "leading_dense_block_count": READ}),
  "nemotron_h": _NEMOTRON_H | dict.fromkeys(_NEMOTRON_EXPERTS, NO_EXPERTS) | DENSE,
  "nemotron_h_moe": _NEMOTRON_H | _NEMOTRON_EXPERTS,
  "falcon-h1": _arch(ROPE, DENSE, MAMBA, FULL),
  "kimi-linear": _arch(NO_ROPE, EXPERTS, WIDTH, GATING, SHARED, LATENT, FULL, {
    "expert_weights_scale": READ, "ssm.conv_kernel": READ, "kda.head_dim": READ,
    "rope.dimension_count": "read: it divides a latent head; nothing is rotated"}, without="attention.q_lora_rank"),
}

# keys that converters write, that llama.cpp's loader ignores for most architectures, and that we read
BEYOND = {
  **_keys("the model's own code uses it", "rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow"),
  **_keys("a file that has it was trained with it", "attn_logit_softcapping final_logit_softcapping",
          "expert_gating_func expert_weights_scale expert_weights_norm expert_feed_forward_length expert_shared_count",
          "leading_dense_block_count"),
}
