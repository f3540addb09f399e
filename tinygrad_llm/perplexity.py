"""python -m tinygrad_llm.perplexity: how well a model predicts a text, and how far it is from another one."""
from __future__ import annotations
import argparse, json, math, pathlib, sys
from contextlib import nullcontext
from typing import Any
from tqdm import tqdm
from tinygrad_llm.command import Parser, check_writable, guarded
from tinygrad_llm.device.threads import use_threads
from tinygrad_llm.engine.arguments import whole
from tinygrad_llm.errors import InputError, warn
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.files.hub import locate

def _parser() -> argparse.ArgumentParser:
  parser = Parser(prog="python -m tinygrad_llm.perplexity", description=(
    "Measure the perplexity of a text by llama.cpp's method, or its KL divergence from another model."), epilog=(
    "--kl-base FILE writes the model's log-probabilities, as llama-perplexity does: 2 bytes for each token of the "
    "vocabulary at each counted position. With --kl-divergence it reads such a file, ours or llama.cpp's. The text "
    "comes from that file then, and -f is not read."))
  add = parser.add_argument
  add("-m", "--model", help="as for run (default: the bundled model)")
  add("-f", "--file", metavar="TEXT", help="a text, UTF-8")
  add("-c", "--ctx-size", type=int, metavar="N", help="tokens of a chunk (default: 512, or the base file's)")
  add("--chunks", type=int, metavar="N", help="most chunks to measure (default: all)")
  add("--kl-base", "--kl-divergence-base", "--save-all-logits", metavar="FILE",
      help="the file to write; with --kl-divergence, to compare with")
  add("--kl-divergence", action="store_true", help="compare with the file of --kl-base")
  add("-t", "--threads", type=int, metavar="N", help="threads of the CPU device (default: all cores)")
  add("--json", action="store_true", help="print one JSON object")
  return parser

def _text(name: str) -> str:
  """A file's text without one newline at its end. InputError if it cannot be read or is not UTF-8."""
  try: data = pathlib.Path(name).read_bytes()
  except (OSError, ValueError) as e:
    why = (isinstance(e, OSError) and e.strerror) or e
    raise InputError(f"-f {name}: it cannot be read ({why}); give a file of text") from e
  try: return data.decode("utf-8").removesuffix("\n")
  except UnicodeDecodeError as e:
    raise InputError(f"-f {name}: byte {e.start} is not UTF-8; convert it, for example with iconv") from None

def _lines(row: dict[str, Any]) -> str:
  lines = [f"perplexity: {row['perplexity']:.4f} +/- {row['error']:.5f} "
           f"({row['chunks']} chunks of {row['context']}, {row['tokens']} tokens counted)"]
  if "kl" in row: lines += [
    f"of the base: {row['base_perplexity']:.4f}; ln of the ratio {row['ln_ratio']:.6f} +/- "
    f"{row['ln_ratio_error']:.6f}, correlation {row['correlation']:.2%}",
    f"mean KL divergence: {row['kl']:.6f} +/- {row['kl_error']:.6f}; median {row['kl_median']:.6f}, "
    f"maximum {row['kl_max']:.6f}",
    f"RMS change of p: {row['rms_dp']:.3%} +/- {row['rms_dp_error']:.3%}",
    f"same best token: {row['same_top']:.3%} +/- {row['same_top_error']:.3%}"]
  return "\n".join(lines)

def _main() -> None:
  args = _parser().parse_args()
  for name, value, least in (("-c", args.ctx_size, 4), ("--chunks", args.chunks, 1)):
    if value is not None: whole(name, value, least)
  use_threads(args.threads)
  path = pathlib.Path(args.kl_base) if args.kl_base else None
  if args.kl_divergence and path is None: raise InputError("--kl-divergence: it needs --kl-base FILE")
  if args.kl_divergence and args.file:
    warn(f"-f {args.file}: it is not read; the text is that in {path}")
    args.file = None
  if not args.kl_divergence and not args.file: raise InputError("-f: it is missing; give a file of text")
  if path is not None and not args.kl_divergence: check_writable("--kl-base", path)
  locate(args.model)
  from tinygrad_llm.files.kl_base import Reader, Writer
  base = Reader(path) if args.kl_divergence and path is not None else None
  text = _text(args.file) if args.file else ""
  context = args.ctx_size or (base.context if base else 512)
  if base is not None and context != base.context: raise InputError(
    f"-c {context}: {base.path} has chunks of {base.context} tokens; leave -c out")
  from tinygrad_llm import load
  from tinygrad_llm.engine import perplexity
  llm = load(args.model, max_context=context, progress=True)
  if llm.max_context < context: raise InputError(
    f"-c {context}: the model's context is {llm.max_context}; give -c {llm.max_context} or less")
  if open_gguf(llm.path).kv.get("tokenizer.ggml.add_eos_token") is True: raise InputError(
    f"{llm.path}: tokenizer.ggml.add_eos_token: the model ends each text with a token of its own, for which the method "
    "has no place; give a model without it")
  if base is not None:
    perplexity.check_base(base, llm)
    chunks = base.tokens[:args.chunks]
  else: chunks = perplexity.chunks_of(llm, text, context, args.chunks)
  writer = Writer(path, chunks, llm.tokenizer.vocab_size) if path is not None and base is None else None
  with writer or nullcontext(), tqdm(total=len(chunks), unit="chunk", disable=None, file=sys.stderr) as bar:
    def told(found: perplexity.Perplexity) -> None:
      bar.set_postfix_str(f"perplexity {found.value:.4f}", refresh=False)
      bar.update()
    found, against = perplexity.measure(llm, chunks, told, writer, base)
  row = {"model": str(llm.path), "device": llm.device, "perplexity": found.value, "error": found.error,
         "tokens": len(found.nll), "chunks": len(chunks), "context": context, **(against.report() if against else {})}
  if args.json:  # JSON has no infinity
    row = {name: None if isinstance(x, float) and not math.isfinite(x) else x for name, x in row.items()}
  print(json.dumps(row) if args.json else _lines(row))

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
