"""Matmuls with packed matrices: Linear has the same ones for all tokens, ExpertLinear each token's experts."""
from __future__ import annotations
from collections.abc import Sequence
from tinygrad import Tensor, UOp, dtypes
from tinygrad.uop.ops import resolve
from tinygrad_llm.patches.tiles import amx_tiles
from tinygrad_llm.weights import numerics
from tinygrad_llm.weights.expert_blocks import ExpertBlocks
from tinygrad_llm.weights.pair_groups import PairGroups
from tinygrad_llm.weights.weight import Weight

def _multiplies_bytes(weight: Weight) -> bool: return weight.layout is not None and numerics.multiplies_bytes()

def _multiplies_tiles(weight: Weight) -> bool:
  return (weight.layout is not None or weight.qtype.name == "BF16") and numerics.multiplies_tiles()

def _has_tokens(x: Tensor) -> bool: return bool(resolve(x.shape[1] != 1))

def _in_bytes(x: Tensor, of: Linear | ExpertLinear) -> Tensor:
  """x rounded to 8 bits, or to 16 bits where only decode steps multiply in bytes."""
  return numerics.quantize(x, of.group) if of.q8_of_prompts else numerics.fine(x)

def _most(n: int | UOp) -> int: return int(n.vmax) if isinstance(n, UOp) else n

class Linear:
  """
  y = x @ W.T for matrices that share an input. Neighbours of one type are the rows of one Weight, and one matmul.

  biases, scales: for each matrix (rows,) and (1, 1), or None: y * scale + bias.
  """
  def __init__(self, weights: Sequence[Weight], splits: Sequence[Sequence[int]], biases: Sequence[Weight | None],
               scales: Sequence[Weight | None]):
    self.weights, self.splits, self.biases, self.scales = weights, splits, biases, scales
    self.q8, self.q8_of_prompts = [*map(_multiplies_bytes, weights)], numerics.multiplies_bytes_of_prompts()
    self.halves = numerics.multiplies_halves() and any(w.qtype.name != "F32" for w in weights)
    self.bf16 = all(w.qtype.name == "BF16" and numerics.multiplies_bf16(w.shape[-1]) for w in weights)
    self.tiles = all(map(_multiplies_tiles, weights))
    self.heads_apart = numerics.stores_heads_apart() and not self.tiles
    self.group = numerics.group_of_prompts(w.qtype for w, q8 in zip(weights, self.q8) if q8)

  def stores(self, x: Tensor) -> bool:
    """Whether a call materialises x (B, T, D) in the form it multiplies, so that the caller need not store x."""
    return all(self._as_bytes(x)) or self._as_bf16(x) or self.halves and _has_tokens(x)

  def _as_bytes(self, x: Tensor) -> list[bool]:
    return self.q8 if self.q8_of_prompts or not _has_tokens(x) else [False] * len(self.q8)

  def _as_bf16(self, x: Tensor) -> bool:
    return self.bf16 and _has_tokens(x) or self.tiles and _most(x.shape[1]) >= amx_tiles.TOKENS

  def __call__(self, x: Tensor, head_dim: int = 0) -> list[Tensor]:
    """
    x (B, T, D) -> (B, T, rows) for each matrix.

    head_dim: on CPUs, a prompt's y is stored as (B, heads, T, head_dim). The kernels that read y are then the same,
    whichever matrices share a Weight. With the shapes of a 1B model in Q4_K_M, the matmul takes 1.04x its time,
    attention 1.0x.
    """
    by_heads = head_dim and _has_tokens(x) and self.heads_apart
    ys: list[Tensor] = []
    if as_bf16 := self._as_bf16(x): x = numerics.bf16(x).float()
    x8 = _in_bytes(x, self) if any(as_bytes := self._as_bytes(x)) and not as_bf16 else x
    if self.halves and _has_tokens(x): x = numerics.halves(x)
    for weight, rows, q8 in zip(self.weights, self.splits, as_bytes):
      y = weight.matmul(x8 if q8 else x)
      # contiguous: otherwise a matrix of another type than its siblings is fused into the kernel that reads them all.
      # Values are then computed where they are stacked with keys. A 1B model's shapes, Q6_K, 2 cores: 416 -> 58 us.
      if by_heads:
        y = y.reshape(*y.shape[:2], -1, head_dim).transpose(1, 2).contiguous().transpose(1, 2).reshape(y.shape)
      elif len(rows) == 1 < len(self.weights): y = y.contiguous()
      ys += y.split(list(rows), dim=-1)
    ys = [y if scale is None else y * scale.float() for y, scale in zip(ys, self.scales)]
    return [y if bias is None else y + bias.float() for y, bias in zip(ys, self.biases)]

class ExpertLinear:
  """
  y = x @ W.T with the matrices of the experts that each token chose.

  weights: (m, experts, rows, n) each; the m matrices of an expert share their input. biases, scales: for each matrix
  (experts, rows) and (experts, 1), or None.
  """
  def __init__(self, weights: Sequence[Weight], biases: Sequence[Weight | None], scales: Sequence[Weight | None]):
    self.weights, self.biases, self.scales, self.q8 = weights, biases, scales, [*map(_multiplies_bytes, weights)]
    self.q8_of_prompts, self.halves = numerics.multiplies_bytes_of_prompts(), numerics.multiplies_halves()
    self.tiles = all(map(_multiplies_tiles, weights))
    self.group = numerics.group_of_prompts(w.qtype for w in weights)

  @property
  def shares_blocks(self) -> bool:
    """Whether the slots of a block share their expert's dequantised weights."""
    return self.halves or self.tiles or self.q8_of_prompts and all(self.q8)

  @property
  def shares_groups(self) -> bool:
    """Whether the rows of a step that chose the same expert share its dequantised weights."""
    return all(self.q8)

  def multiplied(self, x: Tensor) -> Tensor:
    """x in the dtype in which of_blocks() multiplies it; unchanged where that is int8."""
    return x.cast(dtypes.bfloat16) if self.tiles else numerics.half(x) if self.halves else x

  def __call__(self, x: Tensor, ids: Tensor) -> list[Tensor]:
    """x (B, T, 1 or K, n), ids (B, T, K) -> (B, T, K, rows) for each matrix. Only the chosen experts are read."""
    ys: list[Tensor] = []
    # Tokens and experts are one axis, because an axis of constant size K would be unrolled. The estimate of the bytes
    # moved, for a symbolic number of tokens, then nests deeper than Python's recursion limit (MXFP4, 4 of 32 experts:
    # 309 loads, 957 levels).
    chosen = ids.flatten()  # (B * T * K,)
    def flat(x: Tensor) -> Tensor: return x.expand(*ids.shape, x.shape[-1]).reshape(chosen.shape[0], 1, -1)
    as_bytes = self.q8 if self.q8_of_prompts or not _has_tokens(x) else [False] * len(self.q8)
    x, x8 = flat(x), flat(_in_bytes(x, self) if any(as_bytes) else x)
    for weight, q8 in zip(self.weights, as_bytes):
      y = ((x8 if q8 else x) * weight.experts(chosen)).sum(-1).reshape(weight.shape[0], *ids.shape, -1)
      ys += [y[i] for i in range(weight.shape[0])]  # (B, T, K, rows) each
    return self.scaled(ys, ids)

  def of_blocks(self, x: Tensor, blocks: ExpertBlocks) -> list[Tensor]:
    """
    x (T, n) of tokens, or (N, S, n) of the blocks' slots -> (N, S, rows) for each matrix. It needs shares_blocks.
    """
    ys, experts = list[Tensor](), blocks.experts
    if self.tiles:
      x = (x if x.ndim == 3 else blocks.of_slots(numerics.bf16(x))).cast(dtypes.float)
    elif self.halves: x = x if x.ndim == 3 else blocks.gathered(numerics.halves(x))
    else:
      packed = numerics.pack(x, self.group)
      packed = blocks.filled(packed) if x.ndim == 3 else blocks.of_slots(packed.contiguous())  # (N, S, groups, words)
      x = numerics.unpacked(packed)
    for weight in self.weights:
      y = (x.unsqueeze(2) * weight.of_blocks(experts).unsqueeze(2)).sum(-1)  # (m, N, S, rows)
      ys += [y[i] for i in range(weight.shape[0])]
    return self.scaled(ys, experts.unsqueeze(-1))

  def of_groups(self, x: Tensor, groups: PairGroups) -> list[Tensor]:
    """
    x (B, n) of rows, or (N, S, n) of the groups' slots -> (N, S, rows) for each matrix, materialised. It needs
    shares_groups. Scales and biases are left to scaled(). Where no group lies, products are Invalid.
    """
    ys, packed = list[Tensor](), numerics.pack(x)
    x = numerics.unpacked(packed.contiguous() if x.ndim == 2 else groups.filled(packed))
    if x.ndim == 2: x = groups.gathered(x)
    for weight in self.weights:
      y = (x.unsqueeze(2) * weight.experts(groups.experts).unsqueeze(2)).sum(-1)  # (m, N, S, rows)
      y = groups.filled(y.transpose(0, 1))
      ys += [y[:, i] for i in range(weight.shape[0])]
    return ys

  def scaled(self, ys: list[Tensor], ids: Tensor) -> list[Tensor]:
    """ys (.., rows) with the scales and biases of the experts `ids` (..), or of shape (.., 1)."""
    ys = [y if scale is None else y * scale.rows(ids) for y, scale in zip(ys, self.scales)]
    return [y if bias is None else y + bias.rows(ids) for y, bias in zip(ys, self.biases)]
