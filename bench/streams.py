"""
Many answers at once: streams of one model beside generate(), and beside llama-server.

  python bench/streams.py [-m MODEL ..] [--streams 1,2,4,8] [-d DEPTH] [-n TOKENS] [-r ROUNDS] [--parts P,P]
                          [--llama-server PYTHON] [--out FILE]                                 make streams

The parts:
- decode: 1, 2, 4 and 8 greedy streams after DEPTH prompt tokens each. All numbers and generate() take turns in one
  process. The rate counts the time in which all answers were under way, their threads included. `host` is the time
  between two steps: the median from the end of a step's last kernel to the next one's first.
- turn: the first token of a second turn, 16 new tokens after 2,000 that an earlier prompt had, too.
- prompt: four streams while a prompt of 4,096 tokens is read: their speed as a share of the speed
  without it, and their longest gap.

--llama-server names an interpreter with xllamacpp, see peer_llama_server.py. The server then takes its turns in the
same rounds. The table has medians and quartiles of each round's ratio to generate(), and the memory's read bandwidth;
all samples go to bench/results/streams-DATE.json.
"""
from __future__ import annotations
import pathlib
import sys
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import contextlib, json, statistics, time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from bench.machine import machine, now, result_file, versions
from bench.models import model
from bench.peer_llama_server import LlamaServer
from bench.traffic import Answer, Begin, Prompts, beside_prompt, decode, first_token
from tinygrad_llm.bench import numbers
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError

PARTS = ("decode", "turn", "prompt")
GENERATE, HERE, THERE = "generate", "streams", "llama-server"
SHARED, NEW, LONG, BESIDE = 2000, 16, 4096, 4  # tokens of a first turn, of a second one, of a long prompt; streams

class Here:
  """This project, in this process. gaps: seconds between runs of captured kernels, in order, where the CPU ran them."""
  def __init__(self, path: str, context: int, streams: int):
    from tinygrad_llm import load
    from tinygrad_llm.patches.host import thread_pool
    self.llm, self.gaps, self._ended = load(path, max_context=context), list[float](), time.perf_counter()
    self._stock, self._pool = thread_pool.Pool.run, thread_pool.Pool
    stock, gaps = self._stock, self.gaps
    def run(pool: Any, table: Any) -> float:
      gaps.append(time.perf_counter() - self._ended)
      seconds = stock(pool, table)
      self._ended = time.perf_counter()
      return seconds
    thread_pool.Pool.run = run  # type: ignore[method-assign,assignment]
    self.llm.prepare(streams)

  def generate(self, ids: Sequence[int], tokens: int) -> Answer: return _Generated(self.llm, ids, tokens)
  def stream(self, ids: Sequence[int], tokens: int) -> Answer:
    return _Streamed(self.llm.stream(ids, max_tokens=tokens, ignore_eos=True))

  def close(self) -> None:
    self._pool.run = self._stock  # type: ignore[method-assign]
    self.llm.close()

class _Generated:
  def __init__(self, llm: Any, ids: Sequence[int], tokens: int):
    self._tokens = llm.generate(ids, tokens, ignore_eos=True)
  def __iter__(self) -> Iterator[int]: return (1 for _ in self._tokens)
  def cancel(self) -> None: self._tokens.close()

class _Streamed:
  def __init__(self, stream: Any): self._stream = stream
  def __iter__(self) -> Iterator[int]: return (1 for _ in self._stream)
  def cancel(self) -> None: self._stream.cancel()

def quartiles(values: Sequence[float]) -> list[float]:
  """The median between the quartiles."""
  if len(values) < 2: return [values[0]] * 3
  return statistics.quantiles(values, n=4, method="inclusive")

class Measured:
  """The rounds of one model. servers: where an answer begins, by name."""
  def __init__(self, here: Here, servers: dict[str, Begin], prompts: Prompts, threads: int):
    from tinygrad_llm.device.bandwidth import ReadBandwidth
    self.here, self.servers, self.prompts, self.bandwidth = here, servers, prompts, ReadBandwidth(threads)

  def decode(self, streams: list[int], depth: int, tokens: int, rounds: int) -> dict[str, Any]:
    """{"rates": {server: {streams: tok/s of each round}}, "host_ms": {.. of ours}, "bandwidth": GB/s of each}"""
    ids = [self.prompts.next(depth) for _ in range(max(streams))]
    jobs = [(GENERATE, 1)] + [(name, n) for name in self.servers if name != GENERATE for n in streams]
    rates = {job: list[float]() for job in jobs}
    host, bandwidth = {job: list[float]() for job in jobs if job[0] != THERE}, list[float]()
    for turn in range(-1, rounds):
      bandwidth.append(self.bandwidth.measure())
      for job in jobs[::-1 if turn % 2 else 1]:  # A B B A: neither always comes after the other
        self.here.gaps.clear()
        found = decode(self.servers[job[0]], ids[:job[1]], tokens)
        if turn < 0: continue  # reads the prompts, and compiles
        rates[job].append(round(found.rate, 2))
        if job in host: host[job].append(round(statistics.median(self.here.gaps[-tokens // 2:]) * 1e3, 4))
    def by_name(of: dict[tuple[str, int], list[float]]) -> dict[str, Any]:
      return {name: {n: v for (other, n), v in of.items() if other == name} for name, _ in of}
    return {"depth": depth, "tokens": tokens, "rates": by_name(rates), "host_ms": by_name(host),
            "bandwidth": [round(b, 1) for b in bandwidth[1:]]}

  def turn(self, rounds: int) -> dict[str, list[float]]:
    """{server: seconds until the first token of each second turn}"""
    shared, found = self.prompts.next(SHARED), {name: list[float]() for name in self.servers}
    for turn in range(-1, rounds):
      for name, begin in self._order(turn):
        new = self.prompts.next(NEW)  # of its own: generate() and streams share a pool
        seconds = first_token(begin, shared if turn < 0 else shared + new)
        if turn >= 0: found[name].append(round(seconds, 4))
    return found

  def prompt(self, depth: int, tokens: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """{server: what traffic.beside_prompt returns, of each round}"""
    ids = [self.prompts.next(depth) for _ in range(BESIDE)]
    found = {name: list[dict[str, Any]]() for name in self.servers if name != GENERATE}
    for turn in range(rounds):
      long = self.prompts.next(LONG)
      for name, begin in self._order(turn):
        if name != GENERATE: found[name].append(beside_prompt(begin, ids, long, tokens))
    return found

  def _order(self, turn: int) -> list[tuple[str, Begin]]: return [*self.servers.items()][::-1 if turn % 2 else 1]

def ratios(found: dict[str, Any]) -> dict[str, dict[int, list[float]]]:
  """{server: {streams: quartiles of its rate relative to generate() in the same round}}"""
  alone = found["rates"][GENERATE][1]
  return {name: {n: [round(q, 3) for q in quartiles([a / b for a, b in zip(rates, alone)])] for n, rates in of.items()}
          for name, of in found["rates"].items()}

def _tell(found: dict[str, Any], out: Callable[[str], None]) -> None:
  if told := found.get("decode"):
    for name, of in told["rates"].items():
      for n, rates in of.items():
        low, middle, high = told["ratios"][name][n]
        host = told["host_ms"].get(name, {}).get(n)
        out(f"  {name:<13}{n:>3}{statistics.median(rates):>9.1f} tok/s {middle:>6.2f}x ({low:.2f} to {high:.2f})"
            + (f"   host {statistics.median(host):.3f} ms" if host else ""))
    out(f"  bandwidth {' '.join(f'{b:.1f}' for b in quartiles(told['bandwidth']))} GB/s")
  for name, seconds in found.get("turn", {}).items():
    out(f"  {name:<13} second turn, first token {statistics.median(seconds) * 1e3:.0f} ms")
  for name, rounds in found.get("prompt", {}).items():
    share, gap, first = (statistics.median(r[key] for r in rounds) for key in ("share", "gap_ms", "first_token_s"))
    out(f"  {name:<13} beside a prompt of {LONG}: {share:.0%} of its speed, longest gap {gap:.0f} ms, the prompt's "
        f"first token {first:.1f} s")

def _main() -> None:
  parser = Parser(prog="python bench/streams.py", description="Time many answers at once.")
  parser.add_argument("-m", "--model", nargs="+", metavar="M", help="files, default: a 1B shape in Q4_K_M")
  parser.add_argument("--layers", type=int, default=0, metavar="N", help="of the default model (default: all 16)")
  parser.add_argument("--streams", default="1,2,4,8", metavar="N,N", help="at once (default 1,2,4,8)")
  parser.add_argument("-d", "--n-depth", type=int, default=256, metavar="N", help="tokens of a prompt (default 256)")
  parser.add_argument("-n", "--n-gen", type=int, default=64, metavar="N", help="tokens of an answer (default 64)")
  parser.add_argument("-r", "--repetitions", type=int, default=9, metavar="N", help="rounds (default 9)")
  parser.add_argument("--parts", default=",".join(PARTS), metavar="P,P", help=f"default {','.join(PARTS)}")
  parser.add_argument("--llama-server", metavar="PYTHON", help="an interpreter with xllamacpp")
  parser.add_argument("--out", type=pathlib.Path, help="default: bench/results/streams-DATE.json")
  args = parser.parse_args()
  streams, parts = sorted({*numbers("--streams", [args.streams])}), args.parts.split(",")
  if streams[0] < 1: parser.error("--streams are from 1")
  if min(args.n_depth, args.n_gen - 1, args.repetitions) < 1: parser.error("-d and -r are at least 1, -n at least 2")
  for part in parts:
    if part not in PARTS: parser.error(f"--parts {part}: no such part; use some of {','.join(PARTS)}")
  most = max(streams + ([BESIDE + 1] if "prompt" in parts else []))
  # streams beside a long prompt go on until it is read
  context = max(args.n_depth + args.n_gen, SHARED + NEW + 1, 2 * LONG if "prompt" in parts else 0)
  from tinygrad.helpers import NUM_CPU_THREADS
  date, models, version, threads = now(), list[dict[str, Any]](), "", NUM_CPU_THREADS.value
  out = args.out or result_file("streams", date)
  for path in args.model or [str(model("llama-1b", "Q4_K_M", args.layers))]:
    with contextlib.ExitStack() as stack:
      here = Here(path, context, min(8, most))
      stack.callback(here.close)
      if here.llm.max_context < context: raise InputError(
        f"{path}: its context is {here.llm.max_context}, {context} are needed; choose other --parts or -d")
      servers: dict[str, Begin] = {GENERATE: here.generate, HERE: here.stream}
      if args.llama_server:
        try: server = LlamaServer(args.llama_server, str(here.llm.path), threads, most, context)
        except (OSError, RuntimeError) as e: raise InputError(f"--llama-server {e}") from e
        stack.callback(server.close)
        servers[THERE], version = server.begin, server.version
      measured = Measured(here, servers, Prompts(here.llm.config.vocab_size), threads)
      found: dict[str, Any] = {"file": pathlib.Path(here.llm.path).name}
      print(found["file"], flush=True)
      if "decode" in parts:
        found["decode"] = measured.decode(streams, args.n_depth, args.n_gen, args.repetitions)
        found["decode"]["ratios"] = ratios(found["decode"])
      if "turn" in parts: found["turn"] = measured.turn(args.repetitions)
      if "prompt" in parts: found["prompt"] = measured.prompt(args.n_depth, args.n_gen, -(-args.repetitions // 3))
    _tell(found, lambda line: print(line, flush=True))
    models.append(found)
    out.write_text(json.dumps({"date": date, "machine": machine(), "versions": versions() | (
      {THERE: version} if version else {}), "threads": threads, "models": models}, indent=1) + "\n")
  print(f"written: {out}")

if __name__ == "__main__": guarded(_main)
