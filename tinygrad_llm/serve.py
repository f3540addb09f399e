"""python -m tinygrad_llm.serve: OpenAI's API and a page over a model, for many at once."""
from __future__ import annotations
import argparse, pathlib, sys
from typing import TYPE_CHECKING, Any
from tinygrad_llm import __version__
from tinygrad_llm.command import Parser, add_prompt_cache, guarded, prompt_cache
from tinygrad_llm.device.threads import use_threads
from tinygrad_llm.errors import InputError, warn
from tinygrad_llm.files.hub import locate
from tinygrad_llm.text.builtin_templates import BUILTIN
from tinygrad_llm.web.choices import DEFAULTS, LOCAL, LOGS
if TYPE_CHECKING:
  from starlette.applications import Starlette
  from tinygrad_llm.engine.llm import LLM
  from tinygrad_llm.web.service import Service

END = "The first SIGTERM or Ctrl-C lets running answers finish, the second one ends at once."

SAMPLING = {"temperature": float, "top_k": int, "top_p": float, "min_p": float, "repeat_penalty": float,
            "presence_penalty": float, "frequency_penalty": float}

def _parser() -> argparse.ArgumentParser:
  parser = Parser(prog="python -m tinygrad_llm.serve", description="Serve a GGUF model by OpenAI's API, and a page.",
                  epilog=END)
  add_options(parser)
  return parser

def add_options(parser: argparse.ArgumentParser) -> None:
  """Adds the options of a server, by itself or one of several."""
  add = parser.add_argument
  add("-m", "--model", help="path of a .gguf file, a name of run --list, or hf:owner/repo[:file or quant type] "
                            "(default: the bundled model)")
  add("-a", "--alias", help="the model's name in answers (default: its file's)")
  add("--host", default="127.0.0.1", help="address to listen at (default 127.0.0.1: this machine alone)")
  add("--port", type=int, default=8080, help="port to listen at; 0 takes a free one (default 8080)")
  add("-np", "--parallel", type=int, default=4, metavar="N", help="answers that run at a time, 1 to 8 (default 4)")
  add("--queue", type=int, default=256, metavar="N",
      help="requests that may wait for these; more are refused with 503 (default 256)")
  add("-c", "--max-context", type=int, default=4096,
      help="positions of a conversation (default 4096, at most the model's own)")
  add("-t", "--threads", type=int, help="threads of the CPU device (default: all cores)")
  add("-n", "--count", type=int, help="most tokens of an answer if a request gives no number (default: until it ends)")
  for name, kind in SAMPLING.items():
    add(f"--{name.replace('_', '-')}", type=kind, help=f"{name} of requests that give none (default: the file's "
        f"suggestion, else {DEFAULTS.get(name, 'off')})")
  add("--think", choices=("on", "off"), help="tell the template whether the model thinks first, if it can be told; "
                                             "requests may say otherwise")
  add("--chat-template", metavar="NAME|FILE", help="a chat template instead of the model's: chatml, llama3 or another "
                                                   "name that llama.cpp knows, or a file with jinja2 source")
  add("-s", "--seed", type=int, help="of requests that give none (default: a new one for each answer)")
  add("--api-key", action="append", default=[], metavar="KEY",
      help="a key that requests must have; may be given several times")
  add("--api-key-file", type=pathlib.Path, metavar="FILE", help="a file with a key in each line")
  add("--allow-host", action="append", default=[], metavar="NAME",
      help="a name of this machine that clients may use; may be given several times")
  add("--cors-origin", action="append", default=[], metavar="ORIGIN",
      help="a page's origin, as https://example.org, that may ask; localhost is any of this machine's, * is any; "
           "may be given several times")
  add("--no-page", action="store_true", help="the API alone: / is not found")
  add("--drain", type=float, default=30.0, metavar="SECONDS",
      help="time that running answers have after the first signal (default 30)")
  add("--log-format", choices=LOGS, default="text", help="of the access log on stderr (default text)")
  add_prompt_cache(parser)
  add("--dequantize", action="store_true", help="expand the weights to fp16 while they load: takes more memory")
  add("--version", action="version", version=f"tinygrad_llm {__version__}")

def _keys(args: argparse.Namespace) -> list[str]:
  keys = [*args.api_key]
  if args.api_key_file is not None:
    try: lines = args.api_key_file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
      raise InputError(f"--api-key-file {args.api_key_file}: {getattr(e, 'strerror', None) or e}") from e
    if not (found := [line.strip() for line in lines if line.strip() and not line.startswith("#")]):
      raise InputError(f"--api-key-file {args.api_key_file}: it has no key; write one in each line")
    keys += found
  if any(not key.strip() for key in keys): raise InputError("--api-key: it is empty")
  return keys

def _template(args: argparse.Namespace) -> str | None:
  """A chat template's source, or the name of a built-in one."""
  given: str | None = args.chat_template
  if given is None or given in BUILTIN: return given
  try: return pathlib.Path(given).read_text(encoding="utf-8")
  except (OSError, UnicodeDecodeError) as e:
    raise InputError(f"--chat-template {given!r:.60}: {getattr(e, 'strerror', None) or e}; give a file, or one of "
                     f"{', '.join(BUILTIN)}") from e

def check(args: argparse.Namespace) -> None:
  """InputError for a value out of its range, or if a library is missing."""
  for name, value, least, most in (("--parallel", args.parallel, 1, 8), ("--queue", args.queue, 0, 1 << 20),
                                   ("--port", args.port, 0, 65535), ("--max-context", args.max_context, 1, 1 << 30)):
    if not least <= value <= most: raise InputError(f"{name} {value}: give a number from {least} to {most}")
  if args.count is not None and args.count < 1: raise InputError(f"--count {args.count}: give a number from 1")
  if not args.drain >= 0: raise InputError(f"--drain {args.drain}: give a number of seconds from 0")
  _template(args)
  _check_extra()

def _defaults(args: argparse.Namespace) -> dict[str, Any]:
  """The sampling settings of requests that give none. InputError for one out of range."""
  found = {name: value for name in (*SAMPLING, "seed") if (value := getattr(args, name)) is not None}
  from tinygrad_llm.engine.sampling import Sampler
  Sampler(**found)
  return found

def _check_extra() -> None:
  try: import llguidance, msgspec, prometheus_client, starlette, uvicorn  # noqa: F401
  except ImportError as e:
    raise InputError(f'serve: {e.name} is not installed; pip install "tinygrad_llm[serve]"') from e

def made(args: argparse.Namespace) -> tuple[Service, Starlette]:
  """The service, which has no model yet, and the application that asks it."""
  from tinygrad_llm.web.api.app import app
  from tinygrad_llm.web.service import Service
  keys, hosts = _keys(args), [*args.allow_host, *([] if args.host in ("0.0.0.0", "::") else [args.host])]
  name = args.alias or pathlib.Path(str(locate(args.model))).stem
  service = Service(name, args.parallel, args.queue, __version__, _defaults(args), args.count)
  return service, app(service, keys, hosts, args.cors_origin, args.log_format, page=not args.no_page)

def loaded(args: argparse.Namespace, service: Service, progress: bool = True) -> LLM:
  """A service's model, with the steps for as many answers as may run. progress: bars on stderr."""
  import tinygrad_llm
  template = _template(args)
  llm = tinygrad_llm.load(args.model, max_context=args.max_context, dequantize=args.dequantize, progress=progress,
                          **prompt_cache(args))
  if template: llm.template = llm.template.replaced(template)
  if args.think: service.variables = llm.template.thinking(args.think == "on")
  llm.prepare(args.parallel)
  return llm

def warn_of_strangers(args: argparse.Namespace) -> None:
  """A warning, if anybody may ask."""
  if not _keys(args) and args.host not in LOCAL:
    warn(f"--host {args.host}: anybody who reaches it may ask; --api-key asks for a key")

def address(host: str, port: int) -> str: return f"http://{f'[{host}]' if ':' in host else host}:{port}"

def _main() -> int:
  args = _parser().parse_args()
  check(args)
  from tinygrad_llm.web.lifecycle import Server, listen, serve
  service, application = made(args)
  use_threads(args.threads)
  sock = listen(args.host, args.port)
  warn_of_strangers(args)
  url = address(args.host, sock.getsockname()[1])

  def ready(llm: Any) -> None:
    print(f"{service.name} at {url} ({llm.device}, {llm.max_context} positions, {args.parallel} at a time)",
          file=sys.stderr, flush=True)
  print(f"loading {service.name}; {url} says so until it is ready", file=sys.stderr, flush=True)
  return serve(Server(service, application, args.drain), sock, lambda: loaded(args, service), ready)

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
