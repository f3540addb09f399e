"""
The server beside streams in this process, and beside llama-server: tokens a second, and the time to the first token.

  python bench/serve.py [-m MODEL] [--streams 1,4,8] [-d DEPTH] [-n TOKENS] [-r ROUNDS] [--llama-server PYTHON]
                        [--out FILE]                                                          make serve-bench

All take turns on one file: streams of this process, our server by HTTP in a process of its own, and llama-server where
--llama-server names an interpreter with xllamacpp. Answers are greedy and go on to TOKENS tokens. Each has a new prompt
of DEPTH tokens, so the first tokens tell how prompts share the time. `rate` counts the tokens of all answers from the
first one to the last.
"""
from __future__ import annotations
import pathlib
import sys
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import contextlib, json, os, re, statistics, subprocess, time
from collections.abc import Sequence
from typing import Any
from bench.machine import machine, now, result_file, versions
from bench.models import model
from bench.peer_llama_server import HttpAnswer, LlamaServer
from bench.streams import Here, quartiles
from bench.traffic import Begin, Prompts, Reader
from tinygrad_llm.bench import numbers
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError

HERE, SERVE, THERE = "streams", "serve", "llama-server"

class OurServer:
  """`python -m tinygrad_llm.serve` in a child process, ready to answer."""
  def __init__(self, path: str, slots: int, context: int):
    command = [sys.executable, "-m", "tinygrad_llm.serve", "-m", path, "--port", "0", "--parallel", str(slots),
               "-c", str(context), "--log-format", "none"]
    self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                     env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert self._process.stderr is not None
    for line in self._process.stderr:
      if (found := re.search(r" at http://(\S+) \(", line)) is not None: break
    else: raise RuntimeError("the server did not start; python -m tinygrad_llm.serve says why")
    self._host = found[1]

  def begin(self, ids: Sequence[int], tokens: int) -> HttpAnswer: return HttpAnswer(self._host, ids, tokens)

  def close(self) -> None:
    self._process.terminate()
    self._process.communicate()

def together(begin: Begin, prompts: Sequence[Sequence[int]], tokens: int) -> tuple[float, list[float]]:
  """Tokens a second of answers to all prompts at once, and the seconds until each one's first token."""
  starts, readers = list[float](), list[Reader]()
  for prompt in prompts:
    starts.append(time.perf_counter())
    readers.append(Reader(begin(prompt, tokens)))
  for reader in readers: reader.join()
  times = [r.times for r in readers]
  seconds = max(t[-1] for t in times) - min(t[0] for t in times)
  return (sum(map(len, times)) - 1) / seconds, [t[0] - start for t, start in zip(times, starts)]

def measured(servers: dict[str, Begin], prompts: Prompts, streams: Sequence[int], depth: int, tokens: int,
             rounds: int) -> dict[str, dict[int, dict[str, list[float]]]]:
  """{server: {streams: {"rates": tok/s of each round, "first": seconds until each answer's first token}}}"""
  found = {name: {n: {"rates": list[float](), "first": list[float]()} for n in streams} for name in servers}
  for turn in range(-1, rounds):
    jobs = [(name, n) for n in streams for name in servers]
    for name, n in jobs[::-1 if turn % 2 else 1]:
      rate, first = together(servers[name], [prompts.next(depth) for _ in range(n)], tokens)
      if turn < 0: continue  # warms up
      found[name][n]["rates"].append(round(rate, 2))
      found[name][n]["first"] += [round(s, 4) for s in first]
  return found

def summary(found: dict[str, dict[int, dict[str, list[float]]]]) -> dict[str, dict[int, dict[str, Any]]]:
  """Quartiles of each round's ratio to streams in process, and the median and the 99th percentile of first tokens."""
  def of(name: str, n: int) -> dict[str, Any]:
    rates, first = found[name][n]["rates"], sorted(found[name][n]["first"])
    return {"ratio": [round(q, 3) for q in quartiles([a / b for a, b in zip(rates, found[HERE][n]["rates"])])],
            "rate": statistics.median(rates), "first_p50": first[len(first) // 2],
            "first_p99": first[min(len(first) - 1, len(first) * 99 // 100)]}
  return {name: {n: of(name, n) for n in by} for name, by in found.items()}

def _main() -> None:
  parser = Parser(prog="python bench/serve.py", description="Time the server.")
  parser.add_argument("-m", "--model", metavar="M", help="a file (default: a 1B shape in Q4_K_M)")
  parser.add_argument("--layers", type=int, default=0, metavar="N", help="of the default model (default: all 16)")
  parser.add_argument("--streams", default="1,4,8", metavar="N,N", help="at once (default 1,4,8)")
  parser.add_argument("-d", "--n-depth", type=int, default=256, metavar="N", help="tokens of a prompt (default 256)")
  parser.add_argument("-n", "--n-gen", type=int, default=64, metavar="N", help="tokens of an answer (default 64)")
  parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="rounds (default 5)")
  parser.add_argument("--llama-server", metavar="PYTHON", help="an interpreter with xllamacpp")
  parser.add_argument("--out", type=pathlib.Path, help="default: bench/results/serve-DATE.json")
  args = parser.parse_args()
  streams = sorted({*numbers("--streams", [args.streams])})
  if not 1 <= streams[0] <= streams[-1] <= 8: parser.error("--streams are from 1 to 8")
  if min(args.n_depth, args.n_gen - 1, args.repetitions) < 1: parser.error("-d and -r are at least 1, -n at least 2")
  from tinygrad.helpers import NUM_CPU_THREADS
  date, context, version = now(), args.n_depth + args.n_gen, ""
  path = args.model or str(model("llama-1b", "Q4_K_M", args.layers))
  with contextlib.ExitStack() as stack:
    here = Here(path, context, streams[-1])
    stack.callback(here.close)
    if here.llm.max_context < context: raise InputError(f"{path}: its context is {here.llm.max_context}; choose -d, -n")
    try:
      ours = OurServer(str(here.llm.path), streams[-1], context)
      stack.callback(ours.close)
      servers: dict[str, Begin] = {HERE: here.stream, SERVE: ours.begin}
      if args.llama_server:
        server = LlamaServer(args.llama_server, str(here.llm.path), NUM_CPU_THREADS.value, streams[-1], context)
        stack.callback(server.close)
        servers[THERE], version = server.begin, server.version
    except (OSError, RuntimeError) as e: raise InputError(f"server: {e}") from e
    found = measured(servers, Prompts(here.llm.config.vocab_size), streams, args.n_depth, args.n_gen, args.repetitions)
  told = summary(found)
  for name, by in told.items():
    for n, x in by.items():
      low, middle, high = x["ratio"]
      print(f"{name:<13}{n:>3}{x['rate']:>9.1f} tok/s {middle:>6.2f}x ({low:.2f} to {high:.2f})   first token "
            f"{x['first_p50'] * 1e3:.0f} ms, p99 {x['first_p99'] * 1e3:.0f} ms", flush=True)
  out = args.out or result_file("serve", date)
  out.write_text(json.dumps({"date": date, "machine": machine(), "versions": versions() | (
    {THERE: version} if version else {}), "threads": NUM_CPU_THREADS.value, "file": pathlib.Path(path).name,
    "depth": args.n_depth, "tokens": args.n_gen, "rounds": found, "summary": told}, indent=1) + "\n")
  print(f"written: {out}")

if __name__ == "__main__": guarded(_main)
