"""The parts of one layer, a dataclass for each kind. Shapes are in elements."""
from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True)
class YaRN:
  """YaRN (https://arxiv.org/abs/2309.00071): slow rotations are scaled, fast ones kept, those between mixed."""
  context: int  # positions before the extension
  beta_fast: float  # a rotation with at least so many turns in `context` is fast
  beta_slow: float

@dataclass(frozen=True)
class Rope:
  """
  Rotary position embedding.

  `dim`: rotated dimensions. `scale`: factor of the positions (1 / the file's factor; 0: no rotation). `magnitude`:
  factor of cosine and sine. `factors`: name of a tensor whose elements divide the frequencies; "": none. Where
  more than `short_context` positions are allocated, `long_factors` replace them; "": never.
  """
  dim: int
  theta: float
  scale: float = 1.0
  magnitude: float = 1.0
  yarn: YaRN | None = None
  factors: str = ""
  long_factors: str = ""
  short_context: int = 0

@dataclass(frozen=True)
class Temperature:
  """Queries at position p are multiplied by 1 + scale * log(1 + floor((p + offset) / length)) (Llama 4)."""
  scale: float
  length: int
  offset: int = 0

@dataclass(frozen=True)
class LatentConfig:
  """
  Multi-head latent attention. Ranks and dimensions are in elements; a head's rotated dimensions come after nope_dim.

  q_rank: rank of the low-rank query; 0: its matrix is full. split: the file has attn_k_b and attn_v_b, not attn_kv_b.
  """
  q_rank: int
  kv_rank: int
  nope_dim: int
  value_dim: int
  split: bool

@dataclass(frozen=True)
class AttentionConfig:
  """
  Causal attention. `scale` multiplies scores.

  `rope`: index into ModelConfig.ropes; None: nothing is rotated. `style`: of the rotation, see archs.Arch. `window`:
  how many positions are seen, the query's included; 0: all. A `softcap` c limits a score x to c tanh(x / c); 0: no
  limit. `kv_from`: the layer whose keys and values are read; None: this one's. `value_norm`: values are normed without
  weights (RMS), and a layer without a matrix for them takes the keys before their norm. `gated`: a head's query comes
  with a gate, whose sigmoid multiplies the head's output. `temperature`: queries have ModelConfig.temperature.
  `chunked`: the window begins where the query's chunk of `window` positions does. `unit_norm`: rotated queries and keys
  are divided by their root mean square. `layer_norm`: a norm of queries and keys is a LayerNorm. `late_norm`: it comes
  after the rotation, and is of each head.
  """
  heads: int
  kv_heads: int
  head_dim: int
  scale: float
  rope: int | None
  style: str
  window: int = 0
  softcap: float = 0.0
  latent: LatentConfig | None = None
  kv_from: int | None = None
  value_norm: bool = False
  gated: bool = False
  chunked: bool = False
  unit_norm: bool = False
  temperature: bool = False
  layer_norm: bool = False
  late_norm: bool = False

  @property
  def value_dim(self) -> int: return self.latent.value_dim if self.latent else self.head_dim

@dataclass(frozen=True)
class FFNConfig:
  """A feed-forward network of `hidden_dim` elements inside, with a gate or none; activation: see ffn.ACTIVATIONS."""
  hidden_dim: int
  activation: str
  gated: bool = True

@dataclass(frozen=True)
class MoEConfig:
  """
  Mixture of experts: each token goes to `n_used` of `n_experts`, within the best `groups_used` of `groups`.

  hidden_dim: of one expert. shared_dim: of the shared expert, which every token passes; 0: none. scale: factor of the
  weights of the chosen experts. With weigh_input, the weight is a factor of the one expert's
  input, not of its output, and the expert has the highest logit. Inputs and outputs of experts have latent_dim
  elements, to which a matrix maps, and another one back; 0: as many as the model's.
  """
  n_experts: int
  n_used: int
  hidden_dim: int
  shared_dim: int
  activation: str
  gating: str
  norm_weights: bool
  scale: float
  groups: int
  groups_used: int
  weigh_input: bool = False
  gated: bool = True
  latent_dim: int = 0

@dataclass(frozen=True)
class DenseAndExpertsConfig:
  """A feed-forward network and experts side by side, with norms of their own; their outputs are added."""
  dense: FFNConfig
  experts: MoEConfig

@dataclass(frozen=True)
class ShortConvConfig:
  """A gated short convolution (LFM2, https://arxiv.org/abs/2511.23404) over the last `taps` tokens of each channel."""
  dim: int
  taps: int

  @property
  def state(self) -> tuple[tuple[int, ...], ...]:
    """The shapes of a sequence's state."""
    return (self.taps - 1, self.dim),

@dataclass(frozen=True)
class DeltaConfig:
  """
  Gated DeltaNet (https://arxiv.org/abs/2412.06464). Keys and values of a head have head_dim elements.

  taps: of the short convolution. grouped: value heads that share a key head are neighbours; else value head h has key
  head h % k_heads. per_channel: Kimi Delta Attention (https://arxiv.org/abs/2510.26692), see kda_inputs.
  """
  k_heads: int
  v_heads: int
  head_dim: int
  taps: int
  grouped: bool = False
  per_channel: bool = False

  @property
  def channels(self) -> int:
    """How many channels the convolution has: queries, keys and values."""
    return (2 * self.k_heads + self.v_heads) * self.head_dim

  @property
  def state(self) -> tuple[tuple[int, ...], ...]:
    """The shapes of a sequence's state."""
    return (self.taps - 1, self.channels), (self.v_heads, self.head_dim, self.head_dim)

@dataclass(frozen=True)
class Mamba2Config:
  """
  Mamba-2 (https://arxiv.org/abs/2405.21060). Each of `heads` heads has `head_dim` channels.

  Each of `groups` groups of heads shares vectors of `state_size` elements. taps: of the short convolution.
  """
  heads: int
  head_dim: int
  groups: int
  state_size: int
  taps: int

  @property
  def inner(self) -> int: return self.heads * self.head_dim

  @property
  def channels(self) -> int:
    """How many channels the convolution has."""
    return self.inner + 2 * self.groups * self.state_size

  @property
  def state(self) -> tuple[tuple[int, ...], ...]:
    """The shapes of a sequence's state."""
    return ((self.taps - 1, self.channels),
            (self.groups, self.heads // self.groups, self.head_dim, self.state_size))

FeedForwardConfig = FFNConfig | MoEConfig | DenseAndExpertsConfig
RecurrentConfig = ShortConvConfig | DeltaConfig | Mamba2Config
MixerConfig = AttentionConfig | RecurrentConfig

@dataclass(frozen=True)
class LayerConfig:
  """
  One layer: mixers, whose outputs are added, and a feed-forward network. Layers that are alike have equal ones.

  A recurrent mixer is the first.

  `before`, `after`: the names of the norms of their inputs and of their outputs, first the mixers'; "": none.
  `parallel`: the feed-forward network reads the mixers' input. `needs`: optional tensors that must be there.
  """
  mixers: tuple[MixerConfig, ...]
  ffn: FeedForwardConfig | None
  before: tuple[str, str]
  after: tuple[str, str] = ("", "")
  parallel: bool = False
  needs: tuple[str, ...] = ()

  @property
  def attention(self) -> AttentionConfig | None:
    """The mixer that needs a KV cache."""
    return next((mixer for mixer in self.mixers if isinstance(mixer, AttentionConfig)), None)

  @property
  def experts(self) -> MoEConfig | None:
    """The experts, with or without a dense network beside them."""
    ffn = self.ffn.experts if isinstance(self.ffn, DenseAndExpertsConfig) else self.ffn
    return ffn if isinstance(ffn, MoEConfig) else None

  @property
  def recurrent(self) -> RecurrentConfig | None:
    """The mixer that needs a state."""
    return next((mixer for mixer in self.mixers if not isinstance(mixer, AttentionConfig)), None)
