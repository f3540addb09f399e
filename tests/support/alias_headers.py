"""
The header of the file behind each name of hub.ALIASES: metadata, and the names and shapes of all tensors.

`header(alias)` has the real sizes; `layers`, `vocab` and `experts` cut them. `write` makes a file of it.

Each key has a source. "seen": llama.cpp printed it when it loaded a file of this family, in a log that somebody added
to a public issue: ggml-org/llama.cpp 7652, 8254, 13461, 22673, 23792, 25121, 28208; ikawrakow/ik_llama.cpp 370, 737,
1173, 1432; LlamaEdge 322; ollama 9771, 10503, 16685; lmstudio-bug-tracker 1495. "converter": conversion/*.py of
llama.cpp writes it. "assumed": taken from the preceding model of the family.

Sizes: config.json of the models. Sums of the tensors' elements are checked against the models' published numbers of
parameters (tests/files/test_alias_headers.py).
"""
import math
import pathlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from tests.support.synthetic import draw
from tests.support.synthetic_layers import Spec
from tests.support.synthetic_vocab import add_vocab

Shapes = dict[str, tuple[int, ...]]

@dataclass(frozen=True)
class Cut:
  """Sizes instead of the model's own; 0: the model's own."""
  layers: int = 0
  vocab: int = 0
  experts: int = 0

@dataclass
class Header:
  """
  metadata: the keys under the architecture's prefix, and tokenizer.ggml.pre. sources: where each is from. shapes: rows
  first, in the file's order. vocab: of synthetic_vocab. sections: arrays of numbers.
  """
  arch: str
  vocab: str
  metadata: dict[str, Any] = field(default_factory=dict)
  sources: dict[str, str] = field(default_factory=dict)
  shapes: Shapes = field(default_factory=dict)

  def add(self, source: str, **keys: Any) -> None:
    """Adds keys of one source; a double underscore stands for a dot."""
    for name, value in keys.items():
      key = f"{self.arch}.{name.replace('__', '.')}"
      self.metadata[key], self.sources[key] = value, source

  def tensors(self, *shapes: tuple[Any, ...], prefix: str = "") -> None:
    for name, *shape in shapes: self.shapes[f"{prefix}{name}"] = tuple(shape)

  @property
  def elements(self) -> int: return sum(math.prod(shape) for shape in self.shapes.values())

def start(arch: str, vocab: str, pre: str, *, dim: int, layers: int, context: int, eps: float, base: float, size: int,
          extra: int = 0) -> Header:
  """A header with what all have. extra: layers for multi-token prediction."""
  h = Header(arch, vocab, {"tokenizer.ggml.pre": pre}, {"tokenizer.ggml.pre": "seen"})
  h.add("seen", block_count=layers + extra, context_length=context, embedding_length=dim,
        attention__layer_norm_rms_epsilon=eps, rope__freq_base=base)
  h.tensors(("token_embd.weight", size, dim), ("output_norm.weight", dim))
  return h

def attention(h: Header, i: int, dim: int, heads: int, kv_heads: int, head_dim: int, norm: int = 0, gate=False) -> None:
  """Grouped-query attention. norm: the length of q and k's norms; gate: a gate beside each head's query."""
  h.tensors(("attn_q.weight", heads * head_dim * (1 + gate), dim), ("attn_k.weight", kv_heads * head_dim, dim),
            ("attn_v.weight", kv_heads * head_dim, dim), ("attn_output.weight", dim, heads * head_dim),
            prefix=f"blk.{i}.")
  if norm: h.tensors(("attn_q_norm.weight", norm), ("attn_k_norm.weight", norm), prefix=f"blk.{i}.")

def feed_forward(h: Header, i: int, dim: int, hidden: int, suffix: str = "") -> None:
  h.tensors((f"ffn_gate{suffix}.weight", hidden, dim), (f"ffn_up{suffix}.weight", hidden, dim),
            (f"ffn_down{suffix}.weight", dim, hidden), prefix=f"blk.{i}.")

def experts(h: Header, i: int, dim: int, n: int, hidden: int) -> None:
  h.tensors(("ffn_gate_inp.weight", n, dim), ("ffn_gate_exps.weight", n, hidden, dim),
            ("ffn_up_exps.weight", n, hidden, dim), ("ffn_down_exps.weight", n, dim, hidden), prefix=f"blk.{i}.")

def norms(h: Header, i: int, dim: int, second: str = "ffn_norm") -> None:
  h.tensors(("attn_norm.weight", dim), (f"{second}.weight", dim), prefix=f"blk.{i}.")

# *** architectures

def llama(cut: Cut, *, dim: int, layers: int, heads: int, head_dim: int, ffn: int, tied: bool) -> Header:
  """Llama 3.1 and 3.2."""
  n, size = cut.layers or layers, cut.vocab or 128256
  h = start("llama", "llama", "llama-bpe", dim=dim, layers=n, context=131072, eps=1e-5, base=500000.0, size=size)
  h.add("seen", feed_forward_length=ffn, attention__head_count=heads, attention__head_count_kv=8, vocab_size=size,
        rope__dimension_count=head_dim)
  if tied: h.add("seen", attention__key_length=head_dim, attention__value_length=head_dim)  # 3.2's config names it
  h.tensors(("rope_freqs.weight", head_dim // 2))
  if not tied: h.tensors(("output.weight", size, dim))
  for i in range(n):
    norms(h, i, dim)
    attention(h, i, dim, heads, 8, head_dim)
    feed_forward(h, i, dim, ffn)
  return h

def qwen3(cut: Cut, *, dim: int, layers: int, heads: int, ffn: int, tied: bool) -> Header:
  n, size = cut.layers or layers, cut.vocab or 151936
  h = start("qwen3", "qwen", "qwen2", dim=dim, layers=n, context=40960, eps=1e-6, base=1e6, size=size)
  h.add("seen", feed_forward_length=ffn, attention__head_count=heads, attention__head_count_kv=8,
        attention__key_length=128, attention__value_length=128)
  if not tied: h.tensors(("output.weight", size, dim))
  for i in range(n):
    norms(h, i, dim)
    attention(h, i, dim, heads, 8, 128, norm=128)
    feed_forward(h, i, dim, ffn)
  return h

def qwen3moe(cut: Cut) -> Header:
  """Qwen3-30B-A3B."""
  n, size, n_experts, dim = cut.layers or 48, cut.vocab or 151936, cut.experts or 128, 2048
  h = start("qwen3moe", "qwen", "qwen2", dim=dim, layers=n, context=40960, eps=1e-6, base=1e6, size=size)
  h.add("seen", feed_forward_length=6144, attention__head_count=32, attention__head_count_kv=4, expert_used_count=8,
        attention__key_length=128, attention__value_length=128, expert_count=n_experts, expert_feed_forward_length=768)
  h.tensors(("output.weight", size, dim))
  for i in range(n):
    norms(h, i, dim)
    attention(h, i, dim, 32, 4, 128, norm=128)
    experts(h, i, dim, n_experts, 768)
  return h

def delta_net(h: Header, i: int, dim: int, n_k: int, n_v: int, d: int = 128) -> None:
  """A layer of Gated DeltaNet: n_k heads of keys, n_v heads of values, of d elements each."""
  width = (2 * n_k + n_v) * d
  h.tensors(("attn_qkv.weight", width, dim), ("attn_gate.weight", n_v * d, dim), ("ssm_conv1d.weight", width, 4),
            ("ssm_dt.bias", n_v), ("ssm_a", n_v), ("ssm_beta.weight", n_v, dim), ("ssm_alpha.weight", n_v, dim),
            ("ssm_norm.weight", d), ("ssm_out.weight", dim, n_v * d), prefix=f"blk.{i}.")

def hybrid(arch: str, cut: Cut, mlp: Callable[[Header, int], None], *, dim: int, layers: int, heads: int,
           kv_heads: int, n_v: int, tied: bool, recurrent: bool, mtp: bool) -> Header:
  """
  The layers of Qwen 3.5: three in four are recurrent, n_v heads of values; `mlp` adds a layer's feed-forward.

  recurrent: the file lists the recurrent layers, as converters do since September 2026. mtp: a last layer for
  multi-token prediction.
  """
  n, size = cut.layers or layers, cut.vocab or 248320
  h = start(arch, "qwen", "qwen35", dim=dim, layers=n, context=262144, eps=1e-6, base=1e7, size=size, extra=mtp)
  h.add("seen", attention__head_count=heads, attention__head_count_kv=kv_heads, attention__key_length=256,
        attention__value_length=256, rope__dimension_sections=[11, 11, 10, 0], rope__dimension_count=64,
        ssm__conv_kernel=4, ssm__state_size=128, ssm__group_count=16, ssm__time_step_rank=n_v,
        ssm__inner_size=128 * n_v, full_attention_interval=4)
  is_recurrent = [(i + 1) % 4 != 0 for i in range(n)] + [False] * mtp
  if recurrent: h.add("converter", attention__recurrent_layers=is_recurrent)
  if mtp: h.add("seen", nextn_predict_layers=1)
  if not tied: h.tensors(("output.weight", size, dim))
  for i, state in enumerate(is_recurrent):
    norms(h, i, dim, "post_attention_norm")
    if state: delta_net(h, i, dim, 16, n_v)
    else: attention(h, i, dim, heads, kv_heads, 256, norm=256, gate=True)
    mlp(h, i)
  if mtp: h.tensors(("nextn.eh_proj.weight", dim, 2 * dim), ("nextn.enorm.weight", dim), ("nextn.hnorm.weight", dim),
                    ("nextn.shared_head_norm.weight", dim), prefix=f"blk.{n}.")
  return h

def qwen35(cut: Cut, *, dim: int, ffn: int, tied=False, recurrent=False, mtp=False, assumed=False, **sizes: int,
           ) -> Header:
  h = hybrid("qwen35", cut, lambda h, i: feed_forward(h, i, dim, ffn), dim=dim, tied=tied, recurrent=recurrent,
             mtp=mtp, **sizes)
  h.add("seen", feed_forward_length=ffn)
  if assumed: h.sources.update({key: "assumed" for key, source in h.sources.items() if source == "seen"})
  return h

def qwen35moe(cut: Cut) -> Header:
  """Qwen3.6-35B-A3B."""
  n_experts, dim = cut.experts or 256, 2048
  def mlp(h: Header, i: int) -> None:
    experts(h, i, dim, n_experts, 512)
    h.tensors(("ffn_gate_inp_shexp.weight", dim), prefix=f"blk.{i}.")
    feed_forward(h, i, dim, 512, "_shexp")
  h = hybrid("qwen35moe", cut, mlp, dim=dim, layers=40, heads=16, kv_heads=2, n_v=32, tied=False, recurrent=False,
             mtp=False)
  h.add("seen", expert_count=n_experts, expert_used_count=8, expert_feed_forward_length=512,
        expert_shared_feed_forward_length=512)
  return h

def olmoe(cut: Cut) -> Header:
  """OLMoE-1B-7B."""
  n, size, n_experts, dim = cut.layers or 16, cut.vocab or 50304, cut.experts or 64, 2048
  h = start("olmoe", "olmo", "olmo", dim=dim, layers=n, context=4096, eps=1e-5, base=10000.0, size=size)
  h.add("converter", feed_forward_length=1024, attention__head_count=16, attention__head_count_kv=16,
        expert_count=n_experts, expert_used_count=8)
  h.sources.update(dict.fromkeys(h.sources, "converter"))
  h.tensors(("output.weight", size, dim))
  for i in range(n):
    norms(h, i, dim)
    attention(h, i, dim, 16, 16, 128, norm=dim)
    experts(h, i, dim, n_experts, 1024)
  return h

def deepseek2(cut: Cut, *, pre: str, dim: int = 2048, layers: int, context: int, base: float, eps: float, heads: int,
              q_rank: int = 0, nope: int = 128, value: int = 128, ffn: int, vocab: int, n_experts: int = 0,
              used: int = 0, expert: int = 0, shared: int = 0, scale: float = 0.0, norm=False, gating: int = 0,
              groups=False, split=True, bias=False, tied=False, yarn=False, source: str = "seen") -> Header:
  """
  Multi-head latent attention with 512 latent elements and 64 rotated dimensions.

  - `q_rank`: rank of the queries; 0: their matrix is full
  - `n_experts`: 0 for a dense model; with experts, the first layer is dense. `expert`: width of one
  - `shared`: experts for every token. `bias`: of the selection of experts
  - `split`: attn_k_b and attn_v_b instead of attn_kv_b
  """
  n, size, E = cut.layers or layers, cut.vocab or vocab, min(n_experts, cut.experts or n_experts)
  h = start("deepseek2", "deepseek", pre, dim=dim, layers=n, context=context, eps=eps, base=base, size=size)
  h.add(source, feed_forward_length=ffn, attention__head_count=heads, attention__head_count_kv=1 if split else heads,
        vocab_size=size, attention__kv_lora_rank=512, rope__dimension_count=64, expert_shared_count=shared,
        leading_dense_block_count=1 if E else n, expert_feed_forward_length=expert or ffn,
        attention__key_length=512 + 64 if split else nope + 64, attention__value_length=512 if split else value)
  if split: h.add(source, attention__key_length_mla=nope + 64, attention__value_length_mla=value)
  if q_rank: h.add(source, attention__q_lora_rank=q_rank)
  if E: h.add(source, expert_count=E, expert_used_count=used)
  if scale: h.add(source, expert_weights_scale=scale)
  if norm: h.add(source, expert_weights_norm=True)
  if gating: h.add(source, expert_gating_func=gating)
  if groups: h.add("converter", expert_group_count=1, expert_group_used_count=1)
  if yarn: h.add("seen", rope__scaling__type="yarn", rope__scaling__factor=40.0,
                 rope__scaling__original_context_length=4096, rope__scaling__yarn_log_multiplier=0.0707)
  if source != "seen": h.sources.update(dict.fromkeys(h.sources, source))
  if not tied: h.tensors(("output.weight", size, dim))
  for i in range(n):
    blk = f"blk.{i}."
    norms(h, i, dim)
    if q_rank: h.tensors(("attn_q_a.weight", q_rank, dim), ("attn_q_a_norm.weight", q_rank),
                         ("attn_q_b.weight", heads * (nope + 64), q_rank), prefix=blk)
    else: h.tensors(("attn_q.weight", heads * (nope + 64), dim), prefix=blk)
    h.tensors(("attn_kv_a_mqa.weight", 512 + 64, dim), ("attn_kv_a_norm.weight", 512), prefix=blk)
    if split: h.tensors(("attn_k_b.weight", heads, 512, nope), ("attn_v_b.weight", heads, value, 512), prefix=blk)
    else: h.tensors(("attn_kv_b.weight", heads * (nope + value), 512), prefix=blk)
    h.tensors(("attn_output.weight", dim, heads * value), prefix=blk)
    if E and i:
      experts(h, i, dim, E, expert)
      if bias: h.tensors(("exp_probs_b.bias", E), prefix=blk)
      feed_forward(h, i, dim, expert * shared, "_shexp")
    else: feed_forward(h, i, dim, ffn)
  return h

# *** the models

_LLAMA_1B = partial(llama, dim=2048, layers=16, heads=32, head_dim=64, ffn=8192, tied=True)
_LLAMA_3B = partial(llama, dim=3072, layers=28, heads=24, head_dim=128, ffn=8192, tied=True)
_QWEN35_27B = partial(qwen35, dim=5120, layers=64, heads=24, kv_heads=4, ffn=17408, n_v=48)

MODELS: dict[str, Callable[[Cut], Header]] = {
  "llama3.2:1b": _LLAMA_1B, "llama3.2:1b-q4": _LLAMA_1B, "llama3.2:3b": _LLAMA_3B, "llama3.2:3b-f16": _LLAMA_3B,
  "llama3.1:8b": partial(llama, dim=4096, layers=32, heads=32, head_dim=128, ffn=14336, tied=False),
  "qwen3:0.6b": partial(qwen3, dim=1024, layers=28, heads=16, ffn=3072, tied=True),
  "qwen3:1.7b": partial(qwen3, dim=2048, layers=28, heads=16, ffn=6144, tied=True),
  "qwen3:8b": partial(qwen3, dim=4096, layers=36, heads=32, ffn=12288, tied=False),
  "qwen3:30b-a3b": qwen3moe,
  "qwen3.5:0.8b": partial(qwen35, dim=1024, layers=24, heads=8, kv_heads=2, ffn=3584, n_v=16, tied=True),
  "qwen3.5:4b": partial(qwen35, dim=2560, layers=32, heads=16, kv_heads=4, ffn=9216, n_v=32, tied=True),
  "qwen3.5:9b": partial(qwen35, dim=4096, layers=32, heads=16, kv_heads=4, ffn=12288, n_v=32),
  "qwen3.6:27b": _QWEN35_27B,
  "qwen3.6:35b-a3b": qwen35moe,
  "qwen3.8:27b": partial(_QWEN35_27B, recurrent=True, mtp=True, assumed=True),
  "olmoe": olmoe,
  "moonlight": partial(deepseek2, pre="kimi-k2", layers=27, context=8192, base=50000.0, eps=1e-5, heads=16, ffn=11264,
                       vocab=163840, n_experts=64, used=6, expert=1408, shared=2, scale=2.446, norm=True, gating=2,
                       groups=True, bias=True, source="converter"),
  "glm-4.7-flash": partial(deepseek2, pre="glm4", layers=47, context=202752, base=1e6, eps=1e-5, heads=20, q_rank=768,
                           nope=192, value=256, ffn=10240, vocab=154880, n_experts=64, used=4, expert=1536, shared=1,
                           scale=1.8, norm=True, groups=True, bias=True),
  "deepseek-v2-lite": partial(deepseek2, pre="deepseek-llm", layers=27, context=163840, base=10000.0, eps=1e-6,
                              heads=16, ffn=10944, vocab=102400, n_experts=64, used=6, expert=1408, shared=2,
                              scale=1.0, split=False, yarn=True),
  "youtu-llm:2b": partial(deepseek2, pre="youtu", layers=32, context=131072, base=1.6e6, eps=1e-6, heads=16,
                          q_rank=1536, ffn=6144, vocab=128256, tied=True, source="converter"),
}

def header(alias: str, layers: int = 0, vocab: int = 0, experts: int = 0) -> Header:
  """The header of an alias's file. layers, vocab, experts: instead of the model's own numbers."""
  return MODELS[alias](Cut(layers, vocab, experts))

def least_layers(alias: str) -> int:
  """The number of layers that has one of each kind: a period of recurrent layers, a dense one and one with experts."""
  return 4 if MODELS[alias] is qwen35moe or getattr(MODELS[alias], "func", None) is qwen35 else 2

# *** files

def _spec(name: str, shape: tuple[int, ...]) -> Spec:
  """A random tensor that keeps activations of the size of 1."""
  if name == "rope_freqs.weight": return Spec(name, shape, 0.0, 1.0, matrix=False)
  if name.endswith("ssm_a"): return Spec(name, shape, 0.1, -1.0, matrix=False)
  if name.endswith("bias") or "ssm_conv1d" in name or "ffn_gate_inp" in name:
    return Spec(name, shape, 0.3 / math.sqrt(shape[-1] if len(shape) > 1 else 1), matrix=False)
  if len(shape) == 1: return Spec(name, shape, 0.1, 1.0, matrix=False)
  return Spec(name, shape, 1 / math.sqrt(shape[-1]))

def write(path: pathlib.Path, h: Header, types: str = "Q8_0", seed: int = 0, hole=False) -> pathlib.Path:
  """Writes a file with the header and random weights, or none with `hole`. types: the type of the matrices."""
  w = GGUFWriter(path, h.arch)
  size = h.shapes["token_embd.weight"][0]
  add_vocab(w, h.vocab, size)
  for key, value in h.metadata.items():
    if key == "tokenizer.ggml.pre": w.kv_data[0].pop(key), w.add_string(key, value)
    elif isinstance(value, str): w.add_string(key, value)
    elif isinstance(value, bool): w.add_bool(key, value)
    elif isinstance(value, int): w.add_uint32(key, value)
    elif isinstance(value, list): w.add_array(key, value)
    else: w.add_float32(key, value)
  kinds = {name: types if _spec(name, shape).matrix else "F32" for name, shape in h.shapes.items()}
  for name, shape in h.shapes.items():
    qtype = GGMLQuantizationType[kinds[name]]
    w.add_tensor_info(name, shape, np.dtype(np.float32), _nbytes(shape, qtype), qtype)
  w.write_header_to_file(), w.write_kv_data_to_file(), w.write_ti_data_to_file()
  if hole:
    for file, infos in zip(w.fout or (), w.tensors):
      file.truncate(sum(w.ggml_pad(n, w.data_alignment) for n in (file.tell(), *(ti.nbytes for ti in infos.values()))))
  else:
    for name, shape in h.shapes.items(): w.write_tensor_data(draw(_spec(name, shape), kinds[name], seed, blocks=True))
  w.close()
  return path

def _nbytes(shape: tuple[int, ...], qtype: GGMLQuantizationType) -> int:
  from gguf import GGML_QUANT_SIZES
  per_block, nbytes = GGML_QUANT_SIZES[qtype]
  return math.prod(shape) // per_block * nbytes
