"""python -m tinygrad_llm.run: answer a prompt, or chat."""
from __future__ import annotations
import argparse, json, sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from tinygrad_llm import __version__
from tinygrad_llm.command import Parser, add_prompt_cache, guarded, prompt_cache
from tinygrad_llm.device.device import renderer_of
from tinygrad_llm.device.memory import device_memory_bytes, peak_memory_bytes
from tinygrad_llm.device.threads import use_threads
from tinygrad_llm.errors import InputError, warn
from tinygrad_llm.files.hub import cached_path, in_bytes, listing, locate, resolve
from tinygrad_llm.terminal.repl import Chat, say, template_of
from tinygrad_llm.terminal.screen import Screen, summary
from tinygrad_llm.terminal.session import RANDOM, THINK, Session, Settings
from tinygrad_llm.terminal.stdin import read_prompt, unix_lines
from tinygrad_llm.text.thinking import ANSWER
if TYPE_CHECKING: from tinygrad_llm.engine.llm import LLM

def _parser() -> argparse.ArgumentParser:
  parser = Parser(prog="python -m tinygrad_llm.run", description="Answer with a GGUF model, or chat.", epilog=(
    "Piped text is the prompt; with --prompt it follows the prompt after an empty line. With neither, in a terminal, "
    "it is a chat, and /help lists its commands. On a pipe, thinking is printed between <think> and </think>."))
  add = parser.add_argument
  add("-m", "--model", help="path of a .gguf file, a name of --list, or hf:owner/repo[:file or quant type] "
                      "(default: the bundled model)")
  add("--server", metavar="URL", help="ask a running server instead, as http://127.0.0.1:8080; its model stays loaded")
  add("--api-key", metavar="KEY", help="the server's key")
  add("--list", action="store_true",
      help="print the aliases, which of their files are in the cache, and the largest context that fits in memory")
  add("--memory", action="store_true", help="print what the model takes in memory and the contexts that fit, and stop")
  ask = parser.add_mutually_exclusive_group()
  ask.add_argument("-p", "--prompt", help="a message to answer; - reads it from standard input")
  ask.add_argument("--tokens", help="token ids to continue, as 1,2,3 (no chat template)")
  add("--system", help="the system message")
  add("-n", "--count", type=int, help="most tokens to generate (default, and -1: until the answer ends)")
  add("-c", "--max-context", type=int, default=4096,
      help="positions of the KV cache (default 4096, at most the model's own)")
  add("-t", "--threads", type=int, help="threads of the CPU device (default: all cores)")
  add("--temperature", type=float, help="0 is greedy (default: the file's suggestion, else 0)")
  add("--top-k", type=int, help="0 is off (default: the file's suggestion, else off)")
  add("--top-p", type=float, help="1 is off (default: the file's suggestion, else off)")
  add("--min-p", type=float, help="0 is off (default: the file's suggestion, else off)")
  add("--repeat-penalty", type=float, help="1 is off (default: the file's suggestion, else off)")
  for name in ("presence", "frequency"): add(f"--{name}-penalty", type=float, help="0 is off (default)")
  add("--min-tokens", type=int, help="no end-of-turn token comes before so many tokens (default 0)")
  add("-s", "--seed", type=int, default=RANDOM, help="of the random numbers; -1: a new one for each answer (default)")
  add("--stop", action="append", default=[], metavar="TEXT",
      help="end the answer before this text; may be given several times")
  add("--think", choices=THINK, help="on, off: tell the template whether the model thinks first, if it can be told; "
                                     "hide: do not show the thinking")
  add("--hide-thinking", dest="think", action="store_const", const="hide", help="the same as --think hide")
  add("--template", action="append", default=[], metavar="NAME=VALUE",
      help="a variable for the chat template, as JSON or as text; may be given several times")
  add("--benchmark", type=int, metavar="N", help="time a decode of N tokens, also past the end of the turn")
  add_prompt_cache(parser)
  add("--dequantize", action="store_true", help="expand the weights to fp16 while they load: takes more memory")
  add("--json", action="store_true", help="print one JSON object instead of text")
  add("--version", action="version", version=f"tinygrad_llm {__version__}")
  return parser

def _settings(llm: LLM, args: argparse.Namespace) -> Settings:
  """Sampling settings: the flags, else the file's suggestions, else the defaults. InputError if out of range."""
  names = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty",
           "min_tokens", "seed")
  given = {name: value for name in names if (value := getattr(args, name)) is not None}
  settings = Settings(**llm.suggested, count=args.count, think=args.think or "")
  for name, value in given.items(): settings = settings.changed(name, value)
  return settings

def _variables(llm: LLM, texts: Iterable[str]) -> dict[str, Any]:
  """The variables of --template, with a warning for each that the template never reads."""
  found: dict[str, Any] = {}
  for text in texts:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier(): raise InputError(f"--template {text!r:.60}: write NAME=VALUE")
    try: found[name] = json.loads(value)
    except ValueError: found[name] = value
    if name not in llm.template.variables():
      warn(f"--template {name}: the model's template does not read it; it reads "
           f"{', '.join(sorted(llm.template.variables())) or 'none'}")
  return found

def _system(args: argparse.Namespace) -> list[dict[str, str]]:
  return [{"role": "system", "content": unix_lines(args.system)}] if args.system else []

def _ids(text: str) -> list[int]:
  try: return [int(piece) for piece in text.split(",")]
  except ValueError: raise InputError(f"--tokens {text!r:.60}: not a list of token ids; write them as 1,2,3") from None

def _recorded(tokens: Iterable[int], ids: list[int]) -> Iterator[int]:
  for token in tokens:
    ids.append(token)
    yield token

def _report(llm: LLM, text: str, ids: list[int], seed: int) -> dict[str, Any]:
  t, (kernels, moved) = llm.timing, llm.decode_cost() or (None, None)
  return {"model": str(llm.path), "device": llm.device, "prompt_tokens": t.prompt_tokens, "tokens": t.tokens,
          "text": text, "load_s": llm.load_s, "ttft_s": t.first_token, "prefill_tok_s": t.prefill_tok_s,
          "decode_tok_s": t.decode_tok_s, "kernels_per_token": kernels, "bytes_per_token": moved, "token_ids": ids,
          "peak_memory_bytes": peak_memory_bytes(), "device_memory_bytes": device_memory_bytes(llm.device),
          "compile_s": t.compile, "renderer": renderer_of(llm.device), "finish": t.finish, "seed": seed,
          "memory": llm.memory()}

def _answer(llm: LLM, args: argparse.Namespace) -> None:
  settings = _settings(llm, args)
  if args.tokens is not None:
    ids = _ids(args.tokens)
    for name, given in (("--system", args.system), ("--template", args.template), ("--think", args.think)):
      if given: warn(f"{name}: --tokens go through no chat template; it is left out")
  else:
    variables = template_of(llm, settings, _variables(llm, args.template))
    ids = llm.prompt([*_system(args), {"role": "user", "content": args.prompt}], variables)
  count, out, sampling = args.benchmark or args.count, list[int](), settings.sampling()
  tokens = llm.generate(ids, count, **sampling, ignore_eos=args.benchmark is not None, min_tokens=settings.min_tokens)
  recorded, stop = _recorded(tokens, out), [*args.stop, *(llm.template.stop if args.prompt else ())]
  if args.benchmark is not None: stop, before = args.stop, list[int]()  # a benchmark goes on where another turn begins
  else: before = ids
  raw = args.json or args.prompt is None
  parts = ((ANSWER, piece) for piece in llm.text(recorded, stop, before)) if raw else llm.parts(recorded, stop, before)
  pieces, screen = list[str](), Screen(None if args.json else sys.stdout, settings.think in ("hide", "off"))
  try:
    for kind, piece in parts:
      pieces.append(piece)
      screen.write(kind, piece)
  except KeyboardInterrupt:
    if not out: raise
  if args.json: return print(json.dumps(_report(llm, "".join(pieces), out, sampling["seed"])))
  screen.end()
  drawn = settings.seed == RANDOM and settings.samples
  print(summary(llm.timing, sampling["seed"] if drawn else None), file=sys.stderr)
  if args.benchmark and (speed := llm.timing.decode_tok_s) and (cost := llm.decode_cost()):
    print(f"[{cost[0]} kernels and {cost[1] / 1e6:.1f} MB a token, {speed * cost[1] / 1e9:.2f} GB/s]", file=sys.stderr)

def _chat(llm: LLM, args: argparse.Namespace) -> None:
  session = Session(unix_lines(args.system or ""), settings=_settings(llm, args))
  if found := ", ".join(f"{name} {value:g}" for name, value in llm.suggested.items()):
    say(f"The file suggests {found}; /set shows what is used.")
  Chat(llm, session, args.stop, _variables(llm, args.template)).run()

def _list() -> None:
  rows = [(name, repo, file, in_bytes(size) if size else "-", _fits(name) if size else "-")
          for name, repo, file, size in listing()]
  rows = [("name", "repository", "file", "cached", "fits"), *rows]
  widths = [max(len(cell) for cell in column) for column in zip(*rows)]
  for row in rows: print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())

def _fits(model: str) -> str:
  """The largest context of a cached model that fits in the free memory; "no" or "?" where none does or is known."""
  from tinygrad_llm.device.device import check_device
  from tinygrad_llm.engine.batch.memory_check import largest_context
  try:
    check_device()
    context = largest_context(cached_path(model))
  except InputError: return "?"
  return "?" if context is None else f"{context} tokens" if context else "no"

def _memory(args: argparse.Namespace) -> None:
  from tinygrad_llm.device.device import check_device
  from tinygrad_llm.engine.batch.memory_check import report
  check_device()
  print(report(resolve(args.model), args.max_context, args.dequantize))

def _remote(args: argparse.Namespace) -> None:
  """A prompt or a chat that a server answers."""
  for name, given in (("--model", args.model), ("--tokens", args.tokens), ("--benchmark", args.benchmark),
                      ("--json", args.json), ("--memory", args.memory), ("--dequantize", args.dequantize)):
    if given: raise InputError(f"{name}: it does not go with --server")
  from tinygrad_llm.terminal.remote import Remote
  args.prompt = read_prompt(args.prompt)
  model: Any = Remote(args.server, args.api_key)
  if args.prompt is None: return _chat(model, args)
  session = Session(unix_lines(args.system or ""), settings=_settings(model, args))
  Chat(model, session, args.stop, _variables(model, args.template)).handle(args.prompt, quoted=True)

def _main() -> None:
  args = _parser().parse_args()
  if args.list: return _list()
  if args.count == -1: args.count = None
  for name, value, least in (("--benchmark", args.benchmark, 2), ("--count", args.count, 1)):
    if value is not None and value < least: raise InputError(f"{name} {value}: give {least} or more tokens")
  if args.seed < -1: raise InputError(f"--seed {args.seed}: give a whole number from 0, or -1 for a random one")
  if args.server is not None: return _remote(args)
  use_threads(args.threads)
  locate(args.model)  # a wrong name fails before anything slow
  if args.max_context < 1: raise InputError(f"--max-context {args.max_context}: give a number of tokens from 1")
  if args.memory: return _memory(args)
  if args.tokens is None and (args.prompt is not None or args.benchmark is None): args.prompt = read_prompt(args.prompt)
  from tinygrad_llm import load
  llm = load(args.model, max_context=args.max_context, dequantize=args.dequantize, progress=True, ahead=True,
             **prompt_cache(args))
  if (purpose := llm.config.purpose) != "answers": warn(
    f"{llm.path}: the model is for {purpose} ({llm.config.pooling} pooling); what it answers is not meaningful")
  if args.prompt is None and args.tokens is None and args.benchmark is None and not args.json: return _chat(llm, args)
  if args.prompt is None and args.tokens is None:
    if args.benchmark is None: raise InputError("--json: it needs --prompt or --tokens")
    args.tokens = str(min(llm.tokenizer.stop_ids, default=0))
  _answer(llm, args)

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
