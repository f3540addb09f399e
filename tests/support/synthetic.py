"""
Synthetic GGUF files of any shape, for tests and for speed runs.

`write_model` draws every matrix from its own random stream (seed, tensor name), so a tensor does not depend on the rest
of the file. It uses only integers and exactly rounded float operations: a file of blocks or floats is the same, byte
for byte, on every machine. There are two ways to fill a quantised matrix:
- values (default): gaussian values, quantised (gguf.quants, else tinygrad_llm.quantize); blocks where neither can
- blocks: random quants with plausible scales: any type, hundreds of MB/s, independent of every quantiser

The models are well-conditioned, so a small error stays small. Contributions to the residual stream are of the stream's
size; attention scores and logits have standard deviations of about 2.

  python tests/support/synthetic.py OUT.gguf --shape llama-1b --types Q4_K_M
"""
import argparse
import binascii
import math
import pathlib
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, LlamaFileType, quants
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support.synthetic_layers import (DEEPSEEK_V2_LITE, FAMILIES, MLA, MoE, Shape, Spec, add_metadata, fill,
  scales, tensors)
from tests.support.synthetic_gemma4 import Gemma4
from tests.support.synthetic_recurrent import KDA, Delta, Mamba2
from tests.support.synthetic_vocab import add_vocab

SHAPES: dict[str, dict[str, Any]] = {
  "tiny": {"arch": "llama", "dim": 256, "ffn": 512, "layers": 2, "heads": 8, "kv_heads": 2, "vocab": 512},
  "llama-1b": {"arch": "llama", "dim": 2048, "ffn": 8192, "layers": 16, "heads": 32, "kv_heads": 8, "vocab": 128256,
               "context": 131072, "rope_freqs": True},
  "llama-8b": {"arch": "llama", "dim": 4096, "ffn": 14336, "layers": 32, "heads": 32, "kv_heads": 8, "vocab": 128256,
               "context": 131072, "rope_freqs": True, "tied": False},
  "smollm-135m": {"arch": "llama", "dim": 576, "ffn": 1536, "layers": 30, "heads": 9, "kv_heads": 3, "vocab": 49152},
  "gemma-3-4b": {"arch": "gemma3", "dim": 2560, "ffn": 10240, "layers": 34, "heads": 8, "kv_heads": 4, "head_dim": 256,
                 "vocab": 262144, "context": 131072, "window": 1024},
  "qwen3-30b-a3b": {"arch": "qwen3moe", "dim": 2048, "ffn": 6144, "layers": 48, "heads": 32, "kv_heads": 4,
                    "head_dim": 128, "vocab": 151936, "context": 32768, "moe": MoE(experts=128, used=8, ffn=768)},
  "gpt-oss-20b": {"arch": "gpt-oss", "dim": 2880, "ffn": 2880, "layers": 24, "heads": 64, "kv_heads": 8, "head_dim": 64,
                  "vocab": 201088, "context": 131072, "window": 128, "moe": MoE(experts=32, used=4, ffn=2880)},
  "olmoe-1b-7b": {"arch": "olmoe", "dim": 2048, "ffn": 1024, "layers": 16, "heads": 16, "vocab": 50304,
                  "moe": MoE(experts=64, used=8)},
  "deepseek-v2-lite": {"arch": "deepseek2", "dim": 2048, "ffn": 10944, "layers": 27, "heads": 16, "vocab": 102400,
                       "context": 163840, "mla": MLA(kv_lora=512, nope=128, rope=64, value=128),
                       "moe": replace(DEEPSEEK_V2_LITE, experts=64, used=6, ffn=1408)},
  "lfm2-1.2b": {"arch": "lfm2", "dim": 2048, "ffn": 8192, "layers": 16, "heads": 32, "kv_heads": 8, "vocab": 65536,
                "context": 128000},
  "qwen35-4b": {"arch": "qwen35", "dim": 2560, "ffn": 9216, "layers": 32, "heads": 16, "kv_heads": 4, "head_dim": 256,
                "vocab": 248320, "context": 262144, "parts": {"delta": Delta(k_heads=16, v_heads=32, size=128)}},
  "granite-4-h-3b": {"arch": "granitehybrid", "dim": 2048, "ffn": 8192, "layers": 40, "heads": 32, "kv_heads": 8,
                     "vocab": 100352, "context": 131072,
                     "parts": {"mamba2": Mamba2(inner=4096, heads=64, state=128, groups=1)}},
  "kimi-linear-48b": {"arch": "kimi-linear", "dim": 2304, "ffn": 9216, "layers": 27, "heads": 32, "vocab": 163840,
                      "context": 1048576, "mla": MLA(kv_lora=512, nope=128, rope=64, value=128),
                      "parts": {"kda": KDA(size=128)},
                      "moe": replace(FAMILIES["kimi-linear"].moe, experts=256, used=8, ffn=1024)},
  "gemma-4-e4b": {"arch": "gemma4", "dim": 2560, "ffn": 10240, "layers": 42, "heads": 8, "kv_heads": 2, "head_dim": 512,
                  "vocab": 262144, "context": 131072, "window": 512,
                  "parts": {"gemma4": Gemma4(window_dim=256, shared=18, per_layer=256)}},
}

# *** quantised blocks ***

class Layout(NamedTuple):
  """
  The fields of a block format that random blocks need. Offsets are bytes in a block.

  `d`: offset of the fp16 scale. `unit`: standard deviation of the weights of random blocks with d = 1.
  `dmin`: offset of the fp16 scale of the minima (-1: none). `ratio`: the dmin / d that centres the weights on zero.
  """
  d: int
  unit: float
  dmin: int = -1
  ratio: float = 0

LAYOUTS = {
  "Q1_0": Layout(0, 1.0),
  "Q4_0": Layout(0, 4.64), "Q4_1": Layout(0, 4.61, 2, -7.5), "Q5_0": Layout(0, 9.25), "Q5_1": Layout(0, 9.23, 2, -15.5),
  "Q8_0": Layout(0, 73.9), "Q2_K": Layout(80, 9.9, 82, 1.5), "Q3_K": Layout(108, 43.), "Q4_K": Layout(0, 169., 2, 7.5),
  "Q5_K": Layout(0, 338., 2, 15.5), "Q6_K": Layout(208, 1365.), "IQ4_NL": Layout(0, 67.6), "IQ4_XS": Layout(0, 1255.),
  "IQ2_XS": Layout(0, 55.9),
}
E2M1_STD = 5.85     # standard deviation of the doubled 4-bit float values of MXFP4 and NVFP4

def pack_scales(sc: np.ndarray, m: np.ndarray) -> np.ndarray:
  """Packs 8 scales and 8 mins of 6 bits into the 12 bytes of Q4_K and Q5_K. (n, 8), (n, 8) uint8 -> (n, 12) uint8."""
  low = sc[:, :4] | (sc[:, 4:] >> 4) << 6, m[:, :4] | (m[:, 4:] >> 4) << 6
  return np.concatenate([*low, sc[:, 4:] & 15 | (m[:, 4:] & 15) << 4], axis=1)

def random_blocks(rng: np.random.Generator, name: str, n: int, std: float) -> np.ndarray:
  """n blocks of type `name`, (n, bytes) uint8: random quant bits, weights of about the standard deviation `std`."""
  nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[name]][1]
  x = rng.integers(0, 2**64, -(-n * nbytes // 8), dtype=np.uint64).view(np.uint8)[:n * nbytes].reshape(n, nbytes)
  jitter = rng.integers(0, 256, n, dtype=np.uint8)
  if name == "MXFP4":  # the scale is a power of two
    x[:, 0] = round(math.log2(std / E2M1_STD) + 0.34) + 128 - (jitter & 1)
    return x
  if name == "NVFP4":  # four scales of 4 exponent and 3 mantissa bits: 2^(e-7) (1 + m/8), or m/512 if e is 0
    scales = np.array([m / 512 if e == 0 else 2.0**(e - 7) * (1 + m / 8) for e in range(16) for m in range(8)][:127])
    near = int(np.abs(scales - 2 * std / E2M1_STD).argmin())
    x[:, :4] = np.clip(near - 1 + (x[:, :4] & 3).astype(int), 1, 126)
    return x
  lay = LAYOUTS[name]
  if name == "Q8_0": np.maximum(x.view(np.int8)[:, 2:], -127, out=x.view(np.int8)[:, 2:])
  if name == "Q2_K": x[:, :16] = x[:, :16] & 15 | np.minimum((x[:, :16] & 15) + (x[:, :16] >> 7), 15) << 4
  if name in ("Q4_K", "Q5_K"):
    sc, delta = rng.integers(0, 64, (n, 8), dtype=np.uint8), x[:, 4:12] & 7
    x[:, 4:16] = pack_scales(sc, np.clip(sc.view(np.int8) + delta.view(np.int8) - 4, 0, 63).view(np.uint8))
  d = (np.float32(std / lay.unit) * (1 + (jitter.astype(np.float32) - 128) / 512)).astype(np.float16)
  x[:, lay.d:lay.d + 2] = d.view(np.uint8).reshape(n, 2)
  if lay.dmin >= 0: x[:, lay.dmin:lay.dmin + 2] = (d * np.float16(lay.ratio)).view(np.uint8).reshape(n, 2)
  return x

def gaussian(rng: np.random.Generator, n: int, std: float) -> np.ndarray:
  """(n,) float32, mean 0, standard deviation `std`: sums of four uniform 16-bit integers, exact on every machine."""
  out = np.empty(n, np.float32)
  for i in range(0, n, 2**18):
    quads = rng.integers(0, 2**64, min(2**18, n - i), dtype=np.uint64).view(np.uint16).reshape(-1, 4)
    out[i:i + 2**18] = quads[:, 0].astype(np.int32) + quads[:, 1] + quads[:, 2] + quads[:, 3] - 2 * 65535
  return np.multiply(out, np.float32(std / (65536 / math.sqrt(3))), out=out)

def uniform(rng: np.random.Generator, n: int, std: float) -> np.ndarray:
  """(n,) float32 like `gaussian`, but uniform and four times as fast."""
  words = rng.integers(0, 2**64, -(-n // 4), dtype=np.uint64).view(np.int16)[:n]
  return words * np.float32(std / (32768 / math.sqrt(3)))

def draw(spec: Spec, type_name: str, seed: int, blocks: bool) -> np.ndarray:
  """The tensor's data as the file stores it: (rows, bytes) uint8, or floats for F32 and F16."""
  rng, qtype = np.random.default_rng([seed, binascii.crc32(spec.name.encode())]), GGMLQuantizationType[type_name]
  n = math.prod(spec.shape)
  if spec.values: return np.array(spec.values, np.float32)
  if not spec.matrix:
    x = gaussian(rng, n, spec.std) + np.float32(spec.mean)
    if spec.signs: x *= 1 - 2 * rng.integers(0, 2, n).astype(np.float32)
    return x
  rows, row = n // spec.shape[-1], spec.shape[-1]
  quantised = type_name not in ("F32", "F16", "BF16")
  if quantised and (blocks or type_name in ("Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "NVFP4")):
    per_block = GGML_QUANT_SIZES[qtype][0]
    if row % per_block: raise ValueError(f"{spec.name}: {row} weights a row do not fit {type_name}")
    return random_blocks(rng, type_name, n // per_block, spec.std).reshape(rows, -1)
  x = (uniform if blocks else gaussian)(rng, n, spec.std).reshape(rows, row)
  try: return quants.quantize(x, qtype)
  except NotImplementedError:
    from tinygrad_llm.quantize import quantize_array
    return np.asarray(quantize_array(x, type_name)).reshape(rows, -1)

MIXED = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
         "IQ4_XS", "MXFP4")

def spec_type(spec: Spec, types: str, s: Shape) -> str:
  """
  The type of a tensor. `types`: the matrices' type, or a mix: Q4_K_M, Q5_K_M (with fallbacks), MXFP4_MOE, MIXED.
  """
  if not spec.matrix: return "F32"
  if types == "MIXED":  # each tensor has a type of its own
    fit = [kind for kind in MIXED if spec.shape[-1] % GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0] == 0]
    return fit[binascii.crc32(f"{spec.name} {spec.shape}".encode()) % len(fit)]
  if types == "MXFP4_MOE": return "MXFP4" if "_exps." in spec.name else "Q8_0"
  if types not in ("Q4_K_M", "Q5_K_M"): return types
  name, i, n = spec.name.split(".")[-2], spec.layer, s.layers
  more = i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2
  if name == "per_layer_model_proj": return "BF16"  # never quantised
  high = name == "output" or name in ("token_embd", "per_layer_token_embd") and s.tied or \
    more and name in ("attn_v", "ffn_down", "ffn_down_exps")
  kind = "Q6_K" if high else types[:-2]
  return kind if spec.shape[-1] % 256 == 0 else {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}[kind]

# *** files ***

def llama3_factors(head_dim: int, base: float, factor=32.0, low=1.0, high=4.0, context=8192) -> np.ndarray:
  """Llama 3.x's divisors of the RoPE frequencies, (head_dim/2,) float32: 1 for short waves, `factor` for long ones."""
  wave = 2 * math.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
  smooth = np.clip((context / wave - low) / (high - low), 0, 1)
  return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)

def write_model(path: str | pathlib.Path, arch="llama", *, dim=128,
                ffn: int | tuple[int, ...] = 256, layers=2, heads=4, kv_heads: int | tuple[int, ...] | None = None,
                head_dim: int | None = None, vocab=512, context=4096, types="F32", seed=0,
                blocks=False, tied: bool | None = None, qkv_bias: bool | None = None, qk_norm: bool | None = None,
                rope_base: float | None = None, rope_freqs=False, eps=1e-5, logit_std=2.0, moe: MoE | None = None,
                mla: MLA | None = None, dense=False, window: int | None = None, pattern=0, split=1, scaled=False,
                mixers: tuple[str, ...] | None = None, parts: dict[str, Any] | None = None,
                kv: dict[str, Any] | None = None, header=False) -> pathlib.Path:
  """
  Writes a GGUF that this project and llama.cpp load, and returns its path (with split > 1, the first file's path).

  - `arch`: one of synthetic_families.FAMILIES, whose defaults replace None (`kv_heads`: 2, or `heads`)
  - `ffn`, `kv_heads`: a number, or one a layer; `mixers`, `parts`: kinds of mixers, repeated, and their sizes
  - `moe`, `mla`: sizes of experts and of latent attention; `dense`: no experts
  - `window`: the sliding window; `pattern`: each pattern-th layer has none (0: the architecture's default, not written)
  - `types`: a ggml type of the matrices (F32, F16, BF16, Q8_0, Q4_K, ..) or a mix (Q4_K_M, Q5_K_M, MXFP4_MOE;
    MIXED: each matrix has another type)
  - `split`: number of files; `scaled`: adds scale tensors beside the matrices, as NVFP4 files have them
  - `kv`: adds or overrides strings, bools, ints, floats and lists; `header`: leaves the data a hole of the right size

  ValueError if the shape does not fit.
  """
  path, family = pathlib.Path(path), FAMILIES[arch]
  arch = family.arch or arch
  shape = fill(family, Shape(
    family, arch, dim, ffn, layers, heads, kv_heads or (heads if family.mha else 2), head_dim or dim // heads, vocab,
    family.tied if tied is None else tied, family.qkv_bias if qkv_bias is None else qkv_bias,
    family.qk_norm if qk_norm is None else "head" if qk_norm else "", logit_std, rope_freqs,
    None if dense else moe or family.moe, mla or family.mla, mixers or family.mixers,
    {**family.parts, **(parts or {})}))
  base = rope_base or family.rope_base
  layers = [*tensors(shape)]
  specs = [(spec, spec_type(spec, types, shape)) for spec in (*layers, *(scales(layers) if scaled else ()))]

  w = GGUFWriter(path, arch, split_max_tensors=0 if split == 1 else -(-len(specs) // split))
  w.add_name("synthetic")
  w.add_quantization_version(2)
  ftype = {"F32": "ALL_F32"}.get(types, f"MOSTLY_{types}")
  if ftype in LlamaFileType.__members__: w.add_file_type(LlamaFileType[ftype])
  add_metadata(w, shape, context=context, base=base, eps=eps, window=family.window if window is None else window,
               pattern=pattern, key_length=head_dim is not None)
  add_vocab(w, family.vocab, vocab)
  for key, value in (kv or {}).items():
    if isinstance(value, str): w.add_string(key, value)
    elif isinstance(value, list): w.add_array(key, value)
    elif isinstance(value, bool): w.add_bool(key, value)
    elif isinstance(value, int): w.add_uint32(key, value)
    else: w.add_float32(key, value)

  for spec, kind in specs:
    qtype = GGMLQuantizationType[kind]
    per_block, nbytes = GGML_QUANT_SIZES[qtype]
    w.add_tensor_info(spec.name, spec.shape, np.dtype(np.float32), math.prod(spec.shape) // per_block * nbytes, qtype)
  files = w.format_shard_names(path)
  if len(files) != split: raise ValueError(f"split: {len(specs)} tensors make {len(files)} files, not {split}")
  w.write_header_to_file()
  w.write_kv_data_to_file()
  w.write_ti_data_to_file()
  if header:
    drawn = {spec.name: draw(spec, kind, seed, blocks) for spec, kind in specs if spec.values}
    for file, infos in zip(w.fout or (), w.tensors):
      end = file.tell()
      for name, ti in infos.items():
        end = w.ggml_pad(end, w.data_alignment)
        if name in drawn:
          file.seek(end)
          file.write(drawn[name].tobytes())
        end += ti.nbytes
      file.truncate(w.ggml_pad(end, w.data_alignment))
  for spec, kind in specs if not header else ():
    if spec.name == "rope_freqs.weight" and not spec.values: w.write_tensor_data(llama3_factors(shape.head_dim, base))
    else: w.write_tensor_data(draw(spec, kind, seed, blocks))
  w.close()
  return files[0]

def main() -> None:
  ap = argparse.ArgumentParser(description="Write a synthetic GGUF of random blocks.")
  ap.add_argument("out")
  ap.add_argument("--shape", choices=SHAPES, default="tiny")
  ap.add_argument("--types", default="Q4_K_M", help="a ggml type (F16, Q8_0, Q6_K, ..) or a mix (Q4_K_M, Q5_K_M)")
  ap.add_argument("--layers", type=int, help="instead of the shape's own number")
  ap.add_argument("--seed", type=int, default=0)
  ap.add_argument("--split", type=int, default=1, help="number of files")
  args = ap.parse_args()
  shape = SHAPES[args.shape] | ({"layers": args.layers} if args.layers else {})
  print(write_model(args.out, **shape, types=args.types, seed=args.seed, split=args.split, blocks=True))

if __name__ == "__main__": main()
