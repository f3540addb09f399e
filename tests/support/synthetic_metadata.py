"""The metadata under `<arch>.` of every architecture, named as llama.cpp's converters write it (conversion/*.py)."""
from gguf import ExpertGatingFuncType, GGUFWriter
from tests.support.synthetic_shapes import MoE, Shape


def add_metadata(w: GGUFWriter, s: Shape, *, context: int, base: float, eps: float, window: int, pattern: int,
                 key_length: bool) -> None:
  """All metadata under `<arch>.`. window, pattern: sliding-window attention (0: not written)."""
  w.add_vocab_size(s.vocab)
  w.add_context_length(context)
  w.add_embedding_length(s.dim)
  w.add_block_count(s.layers)
  w.add_feed_forward_length(s.ffn)
  w.add_head_count(s.heads)
  m = s.mla
  kv: int | tuple[int, ...] = 1 if m and m.absorbed else s.heads if m else s.kv_heads
  if m and "kv" in s.family.marked: kv = tuple(1 if s.attends(i) else 0 for i in range(s.layers))
  w.add_head_count_kv(kv)
  if m:
    w.add_key_length(m.kv_lora + m.rope if m.absorbed else m.nope + m.rope)
    w.add_value_length(m.kv_lora if m.absorbed else m.value)
    if m.absorbed:
      w.add_key_length_mla(m.nope + m.rope)
      w.add_value_length_mla(m.value)
    w.add_kv_lora_rank(m.kv_lora)
    if m.q_lora: w.add_q_lora_rank(m.q_lora)
  elif key_length or s.family.key_length:
    w.add_key_length(s.head_dim)
    w.add_value_length(s.head_dim)
  if (share := s.family.rotated) is not None: w.add_rope_dimension_count(m.rope if m else int(s.head_dim * share))
  if s.family.write_base: w.add_rope_freq_base(base)
  (w.add_layer_norm_eps if s.family.layer_norm or s.family.eps_key else w.add_layer_norm_rms_eps)(eps)
  if window: w.add_sliding_window(window)
  if pattern: w.add_sliding_window_pattern(pattern)
  if nextn := s.parts.get("nextn"): w.add_nextn_predict_layers(nextn)
  if s.family.keys: s.family.keys(w, s)
  if s.moe: add_experts(w, s, s.moe)
  elif m:  # a dense model of this architecture (Youtu-LLM)
    w.add_leading_dense_block_count(s.layers)
    w.add_expert_feed_forward_length(s.width(0))
    w.add_expert_shared_count(0)

def add_experts(w: GGUFWriter, s: Shape, m: MoE) -> None:
  keys = s.family.expert_keys
  w.add_expert_count(m.experts)
  w.add_expert_used_count(m.used)
  if "ffn" in keys: w.add_expert_feed_forward_length(m.ffn)
  if "shared_ffn" in keys: w.add_expert_shared_feed_forward_length(m.shared_width)
  if "dense" in keys: w.add_leading_dense_block_count(m.dense)
  if "shared" in keys: w.add_expert_shared_count(m.shared)
  if "step" in keys: w.add_interleave_moe_layer_step(m.step)
  if m.latent: w.add_moe_latent_size(m.latent)
  if m.scale: w.add_expert_weights_scale(m.scale)
  if m.norm: w.add_expert_weights_norm(True)
  if m.gating: w.add_expert_gating_func(ExpertGatingFuncType[m.gating.upper()])
  if m.groups:
    w.add_expert_group_count(m.groups)
    w.add_expert_group_used_count(m.groups_used)
