"""The tensors of attention: grouped-query and latent."""
import math
from collections.abc import Iterator

from tests.support.synthetic_shapes import Indexer, Shape, Spec, bias, matrix, norm

SIGMOID = 0.54  # root mean square of sigmoid(x), x gaussian of standard deviation 1

def attention(s: Shape, i: int, gain: float) -> Iterator[Spec]:
  """Grouped-query attention of layer i; its output has the standard deviation `gain`."""
  f, name, heads, kv = s.family, f"blk.{i}.attn_", s.heads, s.kv(i)
  sharp, reads = f.sharp or (1 if s.qk_norm else 1.5), math.sqrt(s.dim) * s.read
  if "qkv" in f.fused:
    yield matrix(name + "qkv", i, 1.25 / reads, (heads + 2 * kv) * s.head_dim, s.dim)
    if s.qkv_bias: yield bias(name + "qkv", 0.5, (heads + 2 * kv) * s.head_dim)
  for part, n, std in (("q", heads, sharp), ("k", kv, sharp), ("v", kv, 1)):
    if "qkv" not in f.fused:
      rows = n * s.head_dim * (2 if f.query_gate and part == "q" else 1)
      yield matrix(name + part, i, std / reads, rows, s.dim)
      if s.qkv_bias: yield bias(name + part, 0.5, n * s.head_dim)
    if s.qk_norm == "heads" and part != "v":
      yield Spec(f"{name}{part}_norm.weight", (n, s.head_dim), 0.15, 1.5, matrix=False)
    elif s.qk_norm and part != "v": yield norm(f"{name}{part}_norm", s.head_dim * (n if s.qk_norm == "all" else 1), 1.5)
  inner = heads * s.head_dim
  yield matrix(name + "output", i, gain / (SIGMOID if f.query_gate else 1) / math.sqrt(inner), s.dim, inner)
  if "out" in f.biases: yield bias(name + "output", gain / 2, s.dim)
  if f.sinks: yield Spec(name + "sinks.weight", (heads,), 1.0, 1.0, matrix=False)

def latent_attention(s: Shape, i: int, gain: float) -> Iterator[Spec]:
  """Multi-head latent attention of layer i; its output has the standard deviation `gain`."""
  assert s.mla
  m, name, n = s.mla, f"blk.{i}.attn_", s.heads * (s.mla.nope + s.mla.rope)
  if m.q_lora:
    yield matrix(name + "q_a", i, 1 / math.sqrt(s.dim), m.q_lora, s.dim)
    yield norm(name + "q_a_norm", m.q_lora)
    yield matrix(name + "q_b", i, 1.2 / math.sqrt(m.q_lora), n, m.q_lora)
  else: yield matrix(name + "q", i, 1.2 / math.sqrt(s.dim), n, s.dim)
  yield matrix(name + "kv_a_mqa", i, 1.2 / math.sqrt(s.dim), m.kv_lora + m.rope, s.dim)
  yield norm(name + "kv_a_norm", m.kv_lora)
  std = 1.2 / math.sqrt(m.kv_lora)
  if m.absorbed:
    yield matrix(name + "k_b", i, std, s.heads, m.kv_lora, m.nope)
    yield matrix(name + "v_b", i, std, s.heads, m.value, m.kv_lora)
  else: yield matrix(name + "kv_b", i, std, s.heads * (m.nope + m.value), m.kv_lora)
  yield matrix(name + "output", i, gain / math.sqrt(s.heads * m.value), s.dim, s.heads * m.value)

def sparse_attention(s: Shape, i: int, gain: float) -> Iterator[Spec]:
  """Latent attention and its indexer, in layers that have one of their own."""
  part = s.parts["indexer"]
  assert s.mla and isinstance(part, Indexer)
  yield from latent_attention(s, i, gain)
  if part.types and not part.types[i]: return
  name = f"blk.{i}.indexer."
  yield norm(name + "k_norm", part.size)
  yield bias(name + "k_norm", 0.1, part.size)
  yield matrix(name + "proj", i, 1 / math.sqrt(s.dim), part.heads, s.dim)
  yield matrix(name + "attn_k", i, 1 / math.sqrt(s.dim), part.size, s.dim)
  yield matrix(name + "attn_q_b", i, 1 / math.sqrt(s.mla.q_lora), part.heads * part.size, s.mla.q_lora)
