"""python -m tinygrad_llm.serve: OpenAI's API and a page over a model, for many at once."""
from __future__ import annotations
import argparse, pathlib, sys
from typing import TYPE_CHECKING, Any
from tinygrad_llm import __version__
from tinygrad_llm.command import Parser, add_prompt_cache, guarded, prompt_cache
from tinygrad_llm.device.threads import use_threads
from tinygrad_llm.errors import InputError, warn
from tinygrad_llm.files.hub import locate
from tinygrad_llm.web.choices import LOCAL, LOGS
if TYPE_CHECKING: import socket

def _parser() -> argparse.ArgumentParser:
  parser = Parser(prog="python -m tinygrad_llm.serve", description="Serve a GGUF model by OpenAI's API, and a page.",
                  epilog="The first SIGTERM or Ctrl-C lets running answers finish, the second one ends at once.")
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
  add("--api-key", action="append", default=[], metavar="KEY",
      help="a key that requests must have; may be given several times")
  add("--api-key-file", type=pathlib.Path, metavar="FILE", help="a file with a key in each line")
  add("--allow-host", action="append", default=[], metavar="NAME",
      help="a name of this machine that clients may use; may be given several times")
  add("--cors-origin", action="append", default=[], metavar="ORIGIN",
      help="a page's origin, as https://example.org, that may ask; * is any; may be given several times")
  add("--drain", type=float, default=30.0, metavar="SECONDS",
      help="time that running answers have after the first signal (default 30)")
  add("--log-format", choices=LOGS, default="text", help="of the access log on stderr (default text)")
  add_prompt_cache(parser)
  add("--dequantize", action="store_true", help="expand the weights to fp16 while they load: takes more memory")
  add("--version", action="version", version=f"tinygrad_llm {__version__}")
  return parser

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

def _check(args: argparse.Namespace) -> None:
  for name, value, least, most in (("--parallel", args.parallel, 1, 8), ("--queue", args.queue, 0, 1 << 20),
                                   ("--port", args.port, 0, 65535), ("--max-context", args.max_context, 1, 1 << 30)):
    if not least <= value <= most: raise InputError(f"{name} {value}: give a number from {least} to {most}")
  if not args.drain >= 0: raise InputError(f"--drain {args.drain}: give a number of seconds from 0")

def _check_extra() -> None:
  try: import llguidance, msgspec, prometheus_client, starlette, uvicorn  # noqa: F401
  except ImportError as e:
    raise InputError(f'serve: {e.name} is not installed; pip install "tinygrad_llm[serve]"') from e

def _address(sock: socket.socket, host: str) -> str:
  return f"http://{f'[{host}]' if ':' in host else host}:{sock.getsockname()[1]}"

def _main() -> int:
  args = _parser().parse_args()
  _check(args)
  _check_extra()
  from tinygrad_llm.web.api.app import app
  from tinygrad_llm.web.lifecycle import Server, listen, serve
  from tinygrad_llm.web.service import Service
  keys, path = _keys(args), locate(args.model)
  use_threads(args.threads)
  sock = listen(args.host, args.port)
  if not keys and args.host not in LOCAL:
    warn(f"--host {args.host}: anybody who reaches it may ask; --api-key asks for a key")
  service = Service(args.alias or pathlib.Path(str(path)).stem, args.parallel, args.queue,
                    __version__)
  hosts = [*args.allow_host, *([] if args.host in ("0.0.0.0", "::") else [args.host])]
  application = app(service, keys, hosts, args.cors_origin, args.log_format)

  def load() -> Any:
    import tinygrad_llm
    llm = tinygrad_llm.load(args.model, max_context=args.max_context, dequantize=args.dequantize, progress=True,
                            **prompt_cache(args))
    llm.prepare(args.parallel)
    return llm
  def ready(llm: Any) -> None:
    print(f"{service.name} at {_address(sock, args.host)} ({llm.device}, {llm.max_context} positions, "
          f"{args.parallel} at a time)", file=sys.stderr, flush=True)
  print(f"loading {service.name}; {_address(sock, args.host)} says so until it is ready", file=sys.stderr, flush=True)
  return serve(Server(service, application, args.drain), sock, load, ready)

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
