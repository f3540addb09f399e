"""
Converts a GGUF to a model directory of mlx-lm: config.json and model.safetensors, for the peer `mlx`.

  python bench/mlx_model.py model.gguf DIR      prints one JSON object: the formats of the weights

Float matrices keep their values. MLX has none of GGUF's quantised types. Such matrices are dequantised and quantised
again to MLX's format with the nearest number of bits, so the weights differ; `weights` names the formats. Other tensors
(norms, biases, the router) get the activations' type, as in models that mlx-lm converts. This is float16, or the file's
float type if all its matrices are F32 or BF16.
Names and layouts follow mlx-lm's models/*.py, which follow Hugging Face's checkpoints. In architectures whose RoPE
rotates neighbours ("norm"), a GGUF holds the rows of q and k in another order; the conversion undoes it.
"""
from __future__ import annotations
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import json, math, re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
import numpy as np
from tinygrad_llm.bench import share
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import GGML_TYPES, GGUF, TensorInfo, open_gguf
from tinygrad_llm.nn.archs import ARCHS
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.layers import AttentionConfig, FFNConfig, MoEConfig, Rope
from tinygrad_llm.nn.reader import read_config
from tinygrad_llm.quants.table import quant_type, reference

# {architecture of a GGUF: model_type of mlx-lm}
MODEL_TYPES = {"llama": "llama", "olmoe": "olmoe", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
  "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj",
  **{f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}, **{f"attn_{x}_norm": f"self_attn.{x}_norm" for x in "qk"},
  "ffn_gate_inp": "mlp.gate", **{f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
  **{f"ffn_{x}_exps": f"mlp.switch_mlp.{x}_proj" for x in ("gate", "up", "down")}}

def hf_name(name: str) -> str | None:
  """Renames blk.3.attn_q.weight to model.layers.3.self_attn.q_proj.weight. None if mlx-lm has no such tensor."""
  stem, _, suffix = name.rpartition(".")
  layer = re.fullmatch(r"blk\.(\d+)\.(.+)", stem)
  module = LAYER_NAMES.get(layer[2]) if layer else NAMES.get(stem)
  if module is None: return None
  return f"model.layers.{layer[1]}.{module}.{suffix}" if layer else f"{module}.{suffix}"

def unpermuted(rows: np.ndarray, heads: int) -> np.ndarray:
  """Reorders the rows of q or k: in each head, from pairs (2i, 2i + 1) to pairs (i, i + half)."""
  half = len(rows) // heads // 2
  return rows.reshape(heads, half, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)

# *** config.json

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # in all Llama 3.x

def llama3_factors(dim: int, theta: float, factor: float) -> np.ndarray:
  """Returns the divisors of the frequencies for rope_type "llama3", (dim / 2,)."""
  turns = LLAMA3["original_max_position_embeddings"] * theta ** (-np.arange(0, dim, 2) / dim) / (2 * math.pi)
  smooth = np.clip((turns - LLAMA3["low_freq_factor"]) / (LLAMA3["high_freq_factor"] - LLAMA3["low_freq_factor"]), 0, 1)
  return 1 / ((1 - smooth) / factor + smooth)

def rope_scaling(rope: Rope, factors: np.ndarray | None) -> dict[str, Any] | None:
  """Returns config.json's rope_scaling. factors: rope_freqs.weight. ValueError if mlx-lm has no such scaling."""
  if factors is not None:
    factor = float(factors.max())
    if rope.scale != 1 or not np.allclose(factors, llama3_factors(rope.dim, rope.theta, factor), rtol=1e-3):
      raise ValueError("rope_freqs.weight is not Llama 3's")
    return {"rope_type": "llama3", "factor": factor, **LLAMA3}
  factor = 1 / rope.scale
  if rope.yarn is not None:
    if not math.isclose(rope.magnitude, 1 + 0.1 * math.log(factor), rel_tol=1e-4): raise ValueError("YaRN's magnitude")
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": rope.yarn.context,
            "beta_fast": rope.yarn.beta_fast, "beta_slow": rope.yarn.beta_slow}
  if rope.magnitude != 1: raise ValueError("rope.scaling.attn_factor")
  return {"rope_type": "linear", "factor": factor} if factor != 1 else None

def attention(config: ModelConfig) -> AttentionConfig:
  """Returns the attention of the first layer, which is grouped-query attention in every model that MLX-LM gets."""
  mixer = config.layers[0].attention
  if mixer is None or mixer.latent: raise ValueError(f"the attention of {config.arch!r}")
  return mixer

def hf_config(config: ModelConfig, factors: np.ndarray | None = None) -> dict[str, Any]:
  """Returns a model's config.json without its quantisation. ValueError if mlx-lm lacks a feature of the model."""
  if config.arch not in MODEL_TYPES: raise ValueError(f"architecture {config.arch!r}")
  if len(set(config.layers)) != 1: raise ValueError("layers that differ, or windows")
  attn, ffn, rope = attention(config), config.layers[0].ffn, config.ropes[0]
  if not isinstance(ffn, FFNConfig | MoEConfig): raise ValueError("its feed-forward networks")
  if rope.dim != attn.head_dim: raise ValueError(f"{rope.dim} rotated dimensions of {attn.head_dim}")
  if config.arch in ("qwen2", "olmoe") and attn.head_dim * attn.heads != config.dim:
    raise ValueError(f"heads of {attn.head_dim} in {config.arch}")
  if attn.softcap or config.logit_softcap or attn.window: raise ValueError("soft caps or windows")
  out: dict[str, Any] = {
    "model_type": MODEL_TYPES[config.arch], "hidden_size": config.dim, "num_hidden_layers": config.n_layers,
    "intermediate_size": ffn.hidden_dim, "num_attention_heads": attn.heads, "rms_norm_eps": config.norm_eps,
    "num_key_value_heads": attn.kv_heads, "head_dim": attn.head_dim, "vocab_size": config.vocab_size,
    "max_position_embeddings": config.context_length, "rope_theta": rope.theta,
    "rope_scaling": rope_scaling(rope, factors), "tie_word_embeddings": config.tied}
  if not isinstance(ffn, FFNConfig):
    plain = ffn.scale == 1 and ffn.groups == 1 and ffn.gating == "softmax"
    if config.arch == "llama" or ffn.shared_dim or not plain: raise ValueError("its kind of experts")
    out |= {"num_experts": ffn.n_experts, "num_experts_per_tok": ffn.n_used, "norm_topk_prob": ffn.norm_weights}
    if config.arch != "olmoe": out |= {"moe_intermediate_size": ffn.hidden_dim, "decoder_sparse_step": 1,
                                       "mlp_only_layers": []}
  return out

# *** model.safetensors

@dataclass(frozen=True)
class Format:
  """How MLX quantises a matrix: `bits` a weight, and a scale (affine: and a bias) for each `group` in a row."""
  mode: str
  bits: int
  group: int
  def __str__(self) -> str: return f"{f'{self.bits}-bit' if self.mode == 'affine' else self.mode} g{self.group}"

def mlx_format(kind: str, n: int) -> Format | None:
  """Returns MLX's nearest format to a GGML type, for rows of n weights. None if they stay floats."""
  _, block, nbytes = next(row for row in GGML_TYPES.values() if row[0] == kind)
  if block == 1: return None
  if kind == "MXFP4": return Format("mxfp4", 4, 32)
  if kind == "NVFP4": return Format("nvfp4", 4, 16)
  bits = min((2, 3, 4, 5, 6, 8), key=lambda bits: abs(bits + 0.5 - nbytes * 8 / block))  # 0.5: scale and bias of 64
  return next((Format("affine", bits, group) for group in (64, 32) if n % group == 0), None)

def float_type(kinds: set[str]) -> str:
  """Returns MLX's type for the activations, from the types of a file's matrices."""
  return "float32" if kinds <= {"F32", "F64"} else "bfloat16" if kinds <= {"F32", "BF16"} else "float16"

def decoded(file: GGUF, info: TensorInfo) -> np.ndarray:
  """Returns a tensor as float32."""
  file.read_into(info, memoryview(raw := bytearray(info.nbytes)))
  return reference(quant_type(info), raw, info.shape[-1]).reshape(info.shape)

def tensors(file: GGUF, config: ModelConfig) -> Iterator[tuple[str, TensorInfo, np.ndarray]]:
  """Yields (mlx-lm's name, GGUF's info, float32) of each tensor. ValueError for one that mlx-lm has no place for."""
  heads = attention(config)
  for info in file.tensors.values():
    if info.name == "rope_freqs.weight" or (m := re.match(r"blk\.(\d+)\.", info.name)) and int(m[1]) >= config.n_layers:
      continue
    if (name := hf_name(info.name)) is None or info.name.endswith(".bias") and config.arch != "qwen2":
      raise ValueError(f"tensor {info.name}")
    x = decoded(file, info)
    if ARCHS[config.arch].rope == "norm" and (part := re.search(r"\.attn_([qk])\.", info.name)):
      x = unpermuted(x, heads.heads if part[1] == "q" else heads.kv_heads)
    yield name, info, x

def convert(path: str, folder: pathlib.Path) -> dict[str, Any]:
  """
  Writes the directory. Returns {"weights": formats, by descending bytes; "bytes_per_token": of the new weights}.

  InputError if mlx-lm cannot run the model, or is not installed.
  """
  try: import mlx.core as mx
  except ImportError as e:
    raise InputError(f"mlx: not installed ({e}); run: pip install -e '.[mlx]'") from e
  file = open_gguf(path)
  config = read_config(file)
  arrays, formats, sizes, touched = dict[str, Any](), dict[str, Format](), dict[str, int](), 0.0
  matrices = {GGML_TYPES[t.type][0] for t in file.tensors.values() if len(t.shape) > 1 and "gate_inp" not in t.name}
  dtype = float_type(matrices)
  try:
    freqs = file.tensors.get("rope_freqs.weight")
    settings = hf_config(config, decoded(file, freqs) if freqs is not None else None)
    for name, info, x in tensors(file, config):
      module, made = name.rpartition(".")[0], {name: mx.array(x).astype(getattr(mx, dtype))}
      kind = mlx_format(GGML_TYPES[info.type][0], x.shape[-1]) if x.ndim > 1 and "gate_inp" not in info.name else None
      if kind is not None:
        packed = mx.quantize(made[name], group_size=kind.group, bits=kind.bits, mode=kind.mode)
        made = dict(zip((name, f"{module}.scales", f"{module}.biases"), packed))
        formats[module] = kind
      mx.eval(list(made.values()))
      nbytes = sum(array.nbytes for array in made.values())
      label = str(kind) if kind else dtype
      sizes[label] = sizes.get(label, 0) + nbytes
      touched += nbytes * share(info, config)
      arrays |= made
  except ValueError as e:
    raise InputError(f"{path}: mlx-lm has nothing for {e}; leave mlx out of --peers for this model") from e
  if formats:
    each = {name: {"group_size": f.group, "bits": f.bits, "mode": f.mode} for name, f in formats.items()}
    settings["quantization"] = {"group_size": 64, "bits": 4, **each}  # the first two are defaults
  folder.mkdir(parents=True, exist_ok=True)
  mx.save_safetensors(str(folder / "model.safetensors"), arrays)
  (folder / "config.json").write_text(json.dumps(settings, indent=1) + "\n")
  weights = ", ".join(sorted(sizes, key=lambda label: -sizes[label]))
  return {"weights": f"mlx {weights}", "bytes_per_token": round(touched)}

def _main() -> None:
  parser = Parser(prog="python bench/mlx_model.py", description="Convert a GGUF to a model directory of mlx-lm.")
  parser.add_argument("model", help="a .gguf file")
  parser.add_argument("folder", type=pathlib.Path, help="the directory to write")
  args = parser.parse_args()
  print(json.dumps(convert(args.model, args.folder)))

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
