"""python -m tinygrad_llm.run: answer a prompt, or chat."""
from __future__ import annotations
import argparse, contextlib, json, sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError
from tinygrad_llm.hub import in_bytes, listing, locate
if TYPE_CHECKING: from tinygrad_llm.engine import LLM

def _parser() -> argparse.ArgumentParser:
  parser = Parser(prog="python -m tinygrad_llm.run", description="Answer with a GGUF model, or chat.")
  add = parser.add_argument
  add("--model", help="path of a .gguf file, a name of --list, or hf:owner/repo[:file or quant type] "
                      "(default: the bundled model)")
  add("--list", action="store_true", help="print the models that have a name, and what of them is in the cache")
  ask = parser.add_mutually_exclusive_group()
  ask.add_argument("--prompt", help="a message to answer")
  ask.add_argument("--tokens", help="token ids to continue, as 1,2,3 (no chat template)")
  add("--system", help="the system message")
  add("--count", type=int, help="tokens to generate at most (default: to the end of the answer)")
  add("--max-context", type=int, default=4096, help="positions of the KV cache (default 4096, at most the model's own)")
  add("--temperature", type=float, default=0.0, help="0 is greedy (default)")
  add("--top-k", type=int, default=0, help="0 is off (default)")
  add("--top-p", type=float, default=1.0)
  add("--min-p", type=float, default=0.0)
  add("--repeat-penalty", type=float, default=1.0)
  add("--seed", type=int, default=0)
  add("--stop", action="append", default=[], metavar="TEXT", help="stop before this text; may be given several times")
  add("--benchmark", type=int, metavar="N", help="time a decode of N tokens, end-of-turn tokens or not")
  add("--dequantize", action="store_true", help="expand the weights to fp16: more memory, other speed")
  add("--json", action="store_true", help="print one JSON object instead of text")
  return parser

def _sampling(args: argparse.Namespace) -> dict[str, Any]:
  return {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed")}

def _system(args: argparse.Namespace) -> list[dict[str, str]]:
  return [{"role": "system", "content": args.system}] if args.system else []

def _ids(text: str) -> list[int]:
  try: return [int(piece) for piece in text.split(",")]
  except ValueError: raise InputError(f"--tokens {text!r:.60}: not a list of token ids; write them as 1,2,3") from None

def _recorded(tokens: Iterable[int], ids: list[int]) -> Iterator[int]:
  for token in tokens:
    ids.append(token)
    yield token

def _summary(llm: LLM) -> str:
  t = llm.timing
  speed = f", {t.decode_tok_s:.1f} tok/s" if t.decode_tok_s else ""
  return f"[{t.tokens} token{'' if t.tokens == 1 else 's'}{speed}, first token after {t.first_token:.2f} s]"

def _report(llm: LLM, text: str, ids: list[int]) -> dict[str, Any]:
  t, (kernels, moved) = llm.timing, llm.decode_cost() or (None, None)
  return {"model": str(llm.path), "device": llm.device, "prompt_tokens": t.prompt_tokens, "tokens": t.tokens,
          "text": text, "load_s": llm.load_s, "ttft_s": t.first_token, "prefill_tok_s": t.prefill_tok_s,
          "decode_tok_s": t.decode_tok_s, "kernels_per_token": kernels, "bytes_per_token": moved, "token_ids": ids}

def _answer(llm: LLM, args: argparse.Namespace) -> None:
  if args.tokens is not None: ids = _ids(args.tokens)
  else: ids = llm.prompt([*_system(args), {"role": "user", "content": args.prompt}])
  count, out = args.benchmark or args.count, list[int]()
  tokens = llm.generate(ids, count, **_sampling(args), ignore_eos=args.benchmark is not None)
  pieces = []
  try:
    for piece in llm.text(_recorded(tokens, out), [*args.stop, *(llm.template.stop if args.prompt else ())]):
      pieces.append(piece)
      if not args.json: print(piece, end="", flush=True)
  except KeyboardInterrupt:
    if not out: raise
  if args.json: return print(json.dumps(_report(llm, "".join(pieces), out)))
  print(flush=True)
  print(_summary(llm), file=sys.stderr)
  if args.benchmark and (speed := llm.timing.decode_tok_s) and (cost := llm.decode_cost()):
    print(f"[{cost[0]} kernels and {cost[1] / 1e6:.1f} MB a token, {speed * cost[1] / 1e9:.2f} GB/s]", file=sys.stderr)

def _chat(llm: LLM, args: argparse.Namespace) -> None:
  with contextlib.suppress(ImportError): import readline  # noqa: F401  # line editing in input()
  messages = _system(args)
  print(f"{llm.path.stem} on {llm.device}. Ctrl-C stops an answer, Ctrl-D leaves.", file=sys.stderr)
  while True:
    try: text = input("> ")
    except EOFError: return print(file=sys.stderr)
    except KeyboardInterrupt:
      print(file=sys.stderr)
      continue
    if not text.strip(): continue
    messages = llm.fit([*messages, {"role": "user", "content": text}])
    pieces: list[str] = []
    try:
      for piece in llm.chat(messages, args.count, **_sampling(args), stop=args.stop):
        pieces.append(piece)
        print(piece, end="", flush=True)
    except KeyboardInterrupt: pass
    except InputError as e:
      messages.pop()
      print(f"error: {e}", file=sys.stderr)
      continue
    print(flush=True)
    print(_summary(llm), file=sys.stderr)
    messages.append({"role": "assistant", "content": "".join(pieces)})

def _list() -> None:
  rows = [(name, repo, file, in_bytes(size) if size else "-") for name, repo, file, size in listing()]
  rows = [("name", "repository", "file", "cached"), *rows]
  widths = [max(len(cell) for cell in column) for column in zip(*rows)]
  for row in rows: print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())

def _main() -> None:
  args = _parser().parse_args()
  if args.list: return _list()
  for name, value, least in (("--benchmark", args.benchmark, 2), ("--count", args.count, 1)):
    if value is not None and value < least: raise InputError(f"{name} {value}: give {least} or more tokens")
  if args.prompt is not None and not args.prompt.strip():
    raise InputError("--prompt: it is empty; write a message, or leave it out to chat")
  locate(args.model)  # a wrong name is known at once
  from tinygrad_llm import load
  llm = load(args.model, max_context=args.max_context, dequantize=args.dequantize, progress=True)
  if args.prompt is None and args.tokens is None and args.benchmark is None and not args.json: return _chat(llm, args)
  if args.prompt is None and args.tokens is None:
    if args.benchmark is None: raise InputError("--json: it needs --prompt or --tokens")
    args.tokens = str(min(llm.tokenizer.stop_ids, default=0))
  _answer(llm, args)

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
