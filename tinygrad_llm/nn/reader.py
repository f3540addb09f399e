"""Reads a model's configuration from the metadata of its file (`<arch>.*`), and checks it."""
from __future__ import annotations
import math
import numpy as np
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import GGUF
from tinygrad_llm.files.purpose import ONLY_DRAFTS, POOLINGS, only_drafts, pooling
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.keys import Keys
from tinygrad_llm.nn.layers import (AttentionConfig, DenseAndExpertsConfig, FeedForwardConfig, FFNConfig, LatentConfig,
  LayerConfig, MixerConfig, MoEConfig, RecurrentConfig, Rope, ShortConvConfig, YaRN)
from tinygrad_llm.nn.reader_recurrent import delta, intervals, kda, mamba2
from tinygrad_llm.nn.reader_rope import rope_style, rotated_layers, temperature, with_factors

GATINGS = {1: "softmax", 2: "sigmoid", 3: "softmax_chosen"}  # of expert_gating_func
SWA = "rope.freq_base_swa"  # of layers with a window

def read_config(file: GGUF) -> ModelConfig:
  """
  The model of a file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). InputError names the bad field.
  """
  return _Model(file).config()

class _Model(Keys):
  """Sizes that many parts need, and then the parts."""
  def __init__(self, file: GGUF):
    super().__init__(file)
    self.dim = self.size("embedding_length")
    blocks, self.context = self.size("block_count", high=1 << 12), self.size("context_length", 4096, high=1 << 31)
    ahead = self.size("nextn_predict_layers", 0, low=0)  # the last blocks may serve multi-token prediction only
    if only_drafts(file.tensors, ahead):
      raise InputError(f"{file.path}: blk.0: no such layer, {ONLY_DRAFTS}; load the whole {self.arch} model's file")
    if (n := blocks - ahead) < 1: self.fail("nextn_predict_layers", f"{ahead} of {blocks} blocks")
    if (embd := file.tensors.get("token_embd.weight")) is None or len(embd.shape) != 2:
      raise InputError(f"{file.path}: token_embd.weight: no such matrix; the file is not a language model")
    self.n_layers, self.vocab_size = n, embd.shape[0]
    self.heads = self.sizes("attention.head_count", n, high=1 << 14)
    marks_recurrent = self.features.recurrent_if == "kv_heads"
    self.kv_heads = self.heads if not self.has("attention.head_count_kv") else self.sizes(
      "attention.head_count_kv", n, low=0 if marks_recurrent else 1, high=1 << 14)
    for heads, kv_heads in zip(self.heads, self.kv_heads):
      if kv_heads and heads % kv_heads:
        self.fail("attention.head_count_kv", f"{kv_heads} does not divide {heads} heads")
    both = self.features.recurrent_if == "always"
    self.recurrent = intervals(self, n) if self.features.recurrent_if == "interval" else [
      both or marks_recurrent and not kv_heads for kv_heads in self.kv_heads]
    self.attends = [both or not recurrent for recurrent in self.recurrent]
    if self.features.one_part:
      widths = self.sizes("feed_forward_length", n, low=0)
      self.recurrent, self.attends = ([x and not width for x, width in zip(y, widths)]
                                      for y in (self.recurrent, self.attends))
    self.windows = self._windows()
    self.rotated = rotated_layers(self.features, self.windows)
    self.temperature = temperature(self, self.context, self.rotated)
    self.sources = self._sources()
    if not self.value("attention.causal", bool, True):
      self.fail("attention.causal", "each position sees all others", "encoders are not supported")

  def config(self) -> ModelConfig:
    ropes, attentions = self._attentions()
    recurrent = self._recurrent() if any(self.recurrent) else None
    layers = tuple(self._layer(i, recurrent, *parts) for i, parts in enumerate(zip(attentions, self._ffns())))
    dense = self._indexed() if self.features.indexer else 0
    return ModelConfig(
      arch=self.arch, dim=self.dim, vocab_size=self.vocab_size, context_length=min(self.context, dense or self.context),
      layers=layers, dense_context=dense, ropes=ropes,
      temperature=self.temperature, last_norm=self.features.last_norm, layer_norm=self.features.layer_norm,
      norm_eps=self._eps(),
      embd_scale=self._scale("embedding_scale", self.dim ** 0.5 if self.features.scale_embd else 1.0),
      per_layer=self.size("embedding_length_per_layer_input", 0, low=0) if self.features.per_layer else 0,
      branch_scale=self._scale("residual_scale"), logit_scale=self._logit_scale(),
      logit_softcap=self.number("final_logit_softcapping", self.features.logit_cap),
      tied="output.weight" not in self.file.tensors,
      pooling=pooling(self.size("pooling_type", 0, low=0, high=len(POOLINGS) - 1), self.file.tensors))

  def _layer(self, i: int, recurrent: RecurrentConfig | None, attention: AttentionConfig, ffn: FeedForwardConfig | None
             ) -> LayerConfig:
    features, parts, mixers = self.features, list[str](), list[MixerConfig]()
    if recurrent and self.recurrent[i]: mixers.append(recurrent)
    if self.attends[i]:
      mixers.append(attention)
      parts.append("attn_" if self.sources[i] is None else "attn_q")
    if isinstance(ffn, MoEConfig): parts += ["ffn_", "exp_"]
    needs = tuple(name for name in features.needs if name.startswith(tuple(parts)))
    # a dense network and experts side by side have norms of their own
    before = (features.before[0], "") if isinstance(ffn, DenseAndExpertsConfig) else features.before
    if features.one_part: before = ("", before[0]) if ffn else (before[0], "")
    return LayerConfig(tuple(mixers), ffn, before, features.after, features.parallel, needs)

  def _eps(self) -> float:
    key, of_layer_norm = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
    is_other = self.features.layer_norm or not self.has(key) and self.has(of_layer_norm)  # as Nemotron-H has it
    return self.number(of_layer_norm if is_other else key)

  # *** mixers

  def _attentions(self) -> tuple[tuple[Rope, ...], list[AttentionConfig]]:
    """The rotations, and each layer's attention, which counts in layers that are not recurrent."""
    return (self._latent if self.features.mla else self._grouped)()

  def _recurrent(self) -> RecurrentConfig:
    """The mixer of recurrent layers."""
    if (kind := self.features.recurrent).endswith("delta"): return delta(self, kind == "grouped_delta")
    if kind == "kda": return kda(self, self.heads[0])
    if kind == "mamba2": return mamba2(self)
    return ShortConvConfig(self.dim, self.size("shortconv.l_cache", low=2, high=64))

  def _grouped(self) -> tuple[tuple[Rope, ...], list[AttentionConfig]]:
    features, swa = self.features, any(self.windows)
    full = self._head("", self.dim // self.heads[0])
    if swa and not features.window_sizes: self._check_window_sizes(*full)
    window_dim, window_rope_dim = self._head("_swa", *full) if features.window_sizes else full
    ropes = [self._rope(full[1])] if any(self.rotated) else []
    if theta := features.window_theta:
      ropes.append(Rope(window_rope_dim, self.number(SWA, theta, low=1e-6), magnitude=self._magnitude()))
    elif swa and features.window_rope == "plain": ropes.append(Rope(full[1], ropes[0].theta))
    elif swa and features.window_rope == "file" and self.has(SWA): ropes.append(self._rope(full[1], SWA))
    style = rope_style(self)
    softcap = self.number("attn_logit_softcapping", features.score_cap)
    unit_norm = features.unit_norm and self.size("expert_count", 0, low=0) != 128  # Maverick has none
    def attention(i: int, window: int, source: int | None) -> AttentionConfig:
      head_dim = window_dim if window else full[0]
      divisor = self.dim // self.heads[0] if self.n_layers == features.odd_layers else head_dim
      scale = self._scale("attention.scale", features.score_scale or divisor ** -0.5)
      rope = (len(ropes) - 1 if window else 0) if self.rotated[i] and ropes[0].scale else None
      return AttentionConfig(self.heads[i], self.kv_heads[i], head_dim, scale, rope, style, window, softcap,
                             kv_from=source, value_norm=features.value_norm, gated=features.query_gate,
                             temperature=self._grows(i), layer_norm=features.layer_norm,
                             late_norm=features.late_norm, chunked=features.chunked and window > 0,
                             unit_norm=unit_norm and self.rotated[i])
    return tuple(ropes), [attention(i, *x) for i, x in enumerate(zip(self.windows, self.sources))]

  def _check_window_sizes(self, head_dim: int, rope_dim: int) -> None:
    """InputError if layers with a window have other head sizes than layers without."""
    sizes = {"attention.key_length": head_dim, "attention.value_length": head_dim, "rope.dimension_count": rope_dim}
    for key, size in sizes.items():
      if (found := self.size(f"{key}_swa", size)) != size:
        self.fail(f"{key}_swa", f"{found} differs from {key} {size}", "not supported")

  def _grows(self, i: int) -> bool:
    """Whether queries of layer i grow with their position."""
    return self.temperature is not None and not (self.features.temperature == "unrotated" and self.rotated[i])

  def _head(self, suffix: str, default: int, rope_default: int | None = None) -> tuple[int, int]:
    """The elements of a head, and how many are rotated. suffix: "_swa": of layers with a window."""
    head_dim = self.size(f"attention.key_length{suffix}", default)
    if (value_dim := self.size(f"attention.value_length{suffix}", head_dim)) != head_dim:
      self.fail(f"attention.value_length{suffix}", f"{value_dim} differs from key_length {head_dim}", "not supported")
    rope_dim = self.size(key := f"rope.dimension_count{suffix}", rope_default or head_dim)
    if any(self.rotated) and (rope_dim % 2 or rope_dim > head_dim):
      self.fail(key, f"{rope_dim} is not an even number up to {head_dim}")
    return head_dim, rope_dim

  def _sources(self) -> list[int | None]:
    """For each layer, the one whose keys and values it reads: the last of its kind that has some; None: its own."""
    n, key = self.n_layers, "attention.shared_kv_layers"
    first = n - (self.size(key, 0, low=0, high=n - 1) if self.features.shares_kv else 0)
    last = {bool(window): i for i, window in enumerate(self.windows[:first])}
    sources: list[int | None] = [None] * first
    for i in range(first, n):
      if (source := last.get(bool(self.windows[i]))) is None:
        self.fail(key, f"{n - first} of {n} layers leave none that has keys for layer {i}")
      if self.kv_heads[source] != self.kv_heads[i]:
        self.fail("attention.head_count_kv", f"{self.kv_heads[i]} in layer {i}, which reads the keys of layer {source}")
      sources.append(source)
    return sources

  def _latent(self) -> tuple[tuple[Rope, ...], list[AttentionConfig]]:
    rotated = bool(self.features.rope)  # Kimi Linear has neither a rotation nor a low-rank query
    if self.features.temperature == "refused" and self.number("attention.temperature_scale", 0.0):
      self.fail("attention.temperature_scale", "queries that grow with their position", "not supported")
    heads = self.heads[0]
    suffix = "_mla" if self.has("attention.key_length_mla") else ""
    key = f"attention.key_length{suffix}"
    head_dim, rope_dim = self.size(key, self.dim // heads), self.size("rope.dimension_count")
    if rope_dim % 2 or rope_dim >= head_dim:
      self.fail("rope.dimension_count", f"{rope_dim} is not an even number below {key} {head_dim}")
    latent = LatentConfig(
      q_rank=self.size("attention.q_lora_rank", 0, low=0) if rotated else 0,
      kv_rank=self.size("attention.kv_lora_rank"),
      nope_dim=head_dim - rope_dim, value_dim=self.size(f"attention.value_length{suffix}", self.dim // heads),
      split=not any(name.endswith(".attn_kv_b.weight") for name in self.file.tensors))
    ropes, scale = (self._rope(rope_dim),) if rotated else (), self._scale("attention.scale", head_dim ** -0.5)
    for rope in ropes:
      if not rope.yarn and (rope.scale, rope.magnitude) != (1.0, 1.0):
        self.fail("rope.scaling.type", "latent attention with another scaling than YaRN", "not supported")
      if rope.yarn: scale *= (rope.magnitude * (1 - 0.1 * self._yarn_log() * math.log(rope.scale))) ** 2
    softcap, style = self.number("attn_logit_softcapping", 0.0), self.features.rope
    place = 0 if rotated else None
    return ropes, [AttentionConfig(heads, 1, head_dim, scale, place, style, window, softcap, latent)
                   for heads, window in zip(self.heads, self.windows)]

  def _indexed(self) -> int:
    """How many positions the indexer of sparse attention chooses: up to so many, attention is dense."""
    for key in ("head_count", "key_length"): self.size(f"attention.indexer.{key}")
    if self.features.indexer == "listed" and self.has(key := "attention.indexer.types"):
      self.sizes(key, self.n_layers, low=0, high=1)
    return self.size("attention.indexer.top_k")

  def _windows(self) -> tuple[int, ...]:
    """How many positions each layer sees, the query's included; 0: all."""
    period, key = self.features.window_pattern, "attention.sliding_window_pattern"
    if not (period or self.features.all_windows or self.features.lists_windows): return (0,) * self.n_layers
    if self.features.window_layers not in (0, self.n_layers): return (0,) * self.n_layers
    listed = self.features.lists_windows
    window = self.size("attention.sliding_window", None if listed else self.features.window, int(listed), 1 << 31)
    if self.features.chunked and window: window = self.features.window
    if self.features.all_windows: return (window,) * self.n_layers
    if isinstance(pattern := self.file.kv.get(f"{self.prefix}.{key}"), np.ndarray):
      if len(pattern) < self.n_layers: self.fail(key, f"it has {len(pattern)} elements for {self.n_layers} layers")
      return tuple(window if local else 0 for local in pattern[:self.n_layers])
    if listed: self.fail(key, "not a list of layers", "convert the model again with a current converter")
    period = self.size(key, period, low=0)
    return tuple(window if not period or layer % period < period - 1 else 0 for layer in range(self.n_layers))

  def _rope(self, dim: int, base: str = "rope.freq_base") -> Rope:
    """The rotation; `base` is the key of its base."""
    return with_factors(self, self._scaled_rope(dim, base), self.context)

  def _scaled_rope(self, dim: int, base: str) -> Rope:
    theta, kind = self.number(base, 10000.0, low=1e-6), self.value("rope.scaling.type", str, "linear")
    if self.features.rope_alpha and dim > 2: theta *= (self.number("rope.scaling.alpha", 0.0) or 1) ** (dim / (dim - 2))
    if self.features.rope_switch and not self.value("rope.scaling.finetuned", bool, True): return Rope(dim, theta, 0.0)
    magnitude = self._magnitude()
    if kind in ("none", "longrope"): return Rope(dim, theta, magnitude=magnitude)
    if kind not in ("linear", "yarn"):
      self.fail("rope.scaling.type", f"{kind!r:.40} is not supported", "supported: none, linear, longrope, yarn")
    key = "rope.scaling.factor" if self.has("rope.scaling.factor") else "rope.scale_linear"  # its old name
    factor = self.number(key, 1.0) or 1.0
    if factor < 1e-6: self.fail(key, f"{factor} is not a number from 1e-6")
    if kind == "linear": return Rope(dim, theta, 1 / factor, magnitude)
    if theta <= 1 or factor < 1: self.fail(key, f"{factor} at a {base} of {theta}: YaRN needs at least 1")
    if not (self.features.flat_yarn and self._yarn_log()):
      magnitude *= (1 + 0.1 * math.log(factor)) / (1 + 0.1 * self._yarn_log() * math.log(factor))
    original = self.size("rope.scaling.original_context_length", self.context, high=1 << 31)
    betas = (self.number(f"rope.scaling.yarn_beta_{x}", beta, low=1e-6) for x, beta in (("fast", 32.0), ("slow", 1.0)))
    return Rope(dim, theta, 1 / factor, magnitude, YaRN(original, *betas))

  def _magnitude(self) -> float: return self.number("rope.scaling.attn_factor", 1.0, low=1e-6, high=1e6)

  def _yarn_log(self) -> float:
    """
    The multiplier of YaRN's 0.1 log(factor) for all dimensions. It divides the rotation's magnitude.

    In MLA, it is a factor of the attention scale instead.
    """
    times = self.features.yarn_log
    return times * self.number("rope.scaling.yarn_log_multiplier", 0.0) if times else 0.0

  def _scale(self, key: str, default: float = 1.0) -> float:
    """The file's scale; the default where the architecture has no scales, or the file has none or 0."""
    return self.number(key, default) or default if self.features.scales else default

  def _logit_scale(self) -> float:
    """The factor of logits."""
    if self.features.multiply_logits: return self.number("logit_scale", 1.0) or 1.0
    return 1 / self._scale("logit_scale")

  # *** feed-forward networks

  def _ffns(self) -> list[FeedForwardConfig | None]:
    """Each layer's feed-forward network."""
    sparse, features = self._sparse(), self.features
    only_experts = all(sparse) and not features.dense_too
    dense = [FFNConfig(hidden, features.activation, features.gated) for hidden in self.sizes(
      "feed_forward_length", self.n_layers, 0 if only_experts else None,
      low=int(not (only_experts or features.one_part)))]
    experts = self._experts(sparse.index(True)) if any(sparse) else []
    def with_experts(i: int) -> FeedForwardConfig:
      return DenseAndExpertsConfig(dense[i], experts[i]) if features.dense_too else experts[i]
    def has_mixer_alone(i: int) -> bool: return features.one_part and not dense[i].hidden_dim
    return [None if has_mixer_alone(i) else with_experts(i) if sparse[i] else dense[i] for i in range(self.n_layers)]

  def _sparse(self) -> list[bool]:
    """Which layers have experts."""
    n = self.n_layers
    if self.features.may_be_dense and not self.size("expert_count", 0, low=0): return [False] * n
    if not self.features.gating:
      if self.size("expert_count", 0, low=0) > 1:
        self.fail("expert_count", f"{self.arch} models with experts are not supported", "use a dense model")
      return [False] * n
    first = self.size("leading_dense_block_count", 0, low=0)
    step = self.size("interleave_moe_layer_step", low=0) if self.features.expert_step else 1
    parted = self.features.one_part
    return [i >= first and step > 0 and (i + 1) % step == 0 and not (parted and (self.recurrent[i] or self.attends[i]))
            for i in range(n)]

  def _experts(self, first: int) -> list[MoEConfig]:
    n, n_experts = self.n_layers, self.size("expert_count", high=1 << 12)
    groups, low = self.size("expert_group_count", 0, low=0), int(not self.features.one_part)  # 0: in a layer without
    hidden = self.sizes(self.features.expert_width, n, self._width_of_experts(first), low=low)
    groups_used = self.size("expert_group_used_count", high=groups) if groups > 1 else 1
    if groups > 1 and (n_experts % groups or n_experts < 2 * groups):
      self.fail("expert_group_count", f"{groups} groups of 2 and more cannot be made of {n_experts} experts")
    used = self.sizes("expert_used_count", n, low=low, high=n_experts // max(groups, 1) * groups_used)
    if self.features.weigh_input and max(used) > 1:
      self.fail("expert_used_count", f"{max(used)} experts, whose inputs are weighed", "supported: 1")
    shared = self._shared(hidden)
    latent = self.size("moe_latent_size") if f"blk.{first}.ffn_latent_down.weight" in self.file.tensors else 0
    scale = self.number("expert_weights_scale", 1.0) or 1.0
    norm_weights = self.value("expert_weights_norm", bool, self.features.norm_weights)
    return [MoEConfig(n_experts, used[i], hidden[i], shared[i], self.features.activation, self._gating(),
                      norm_weights, scale, max(groups, 1), groups_used, self.features.weigh_input,
                      self.features.gated, latent) for i in range(n)]

  def _width_of_experts(self, layer: int) -> int:
    """By the tensors of a layer: all experts' matrices are one tensor, or each is one, in the oldest files."""
    name = f"blk.{layer}.ffn_down_exps.weight"
    for found, axes in ((name, 3), (f"blk.{layer}.ffn_down.0.weight", 2)):
      if (down := self.file.tensors.get(found)) is not None and len(down.shape) == axes: return down.shape[-1]
    raise InputError(f"{self.file.path}: {name}: no such tensor of 3 dimensions; convert the model again")

  def _shared(self, hidden: tuple[int, ...]) -> tuple[int, ...]:
    """The width of each layer's shared expert, 0: none; `hidden`: an expert's."""
    if self.features.shared == "count":
      count = self.size("expert_shared_count", 0, low=0, high=1 << 10)
      return tuple(width * count for width in hidden)
    if self.features.shared == "expert": return hidden
    width = self.size("expert_shared_feed_forward_length", 0, low=0)
    if not width and self.features.shared == "dense": width = self.size("feed_forward_length")
    return (width,) * self.n_layers

  def _gating(self) -> str:
    if kind := self.size("expert_gating_func", 0, low=0):
      if kind not in GATINGS: self.fail("expert_gating_func", f"{kind} is not supported", "supported: 1, 2, 3")
      return GATINGS[kind]
    # GLM-4.7-Flash was converted before there was a key for it
    old_glm = self.features.mla and self.n_layers in (47, 48) and self.vocab_size == 154880
    return "sigmoid" if old_glm else self.features.gating
