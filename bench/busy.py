"""
Decode on a busy machine: more threads than free cores, beside as many threads as free cores.

  python bench/busy.py [-m MODEL ..] [--threads 1,2,4,8] [--cases quiet,pinned,..] [-r N] [-n TOKENS] [--against DIR]

The cases load the cores that this process may use:
- quiet: nothing else runs
- affinity: one core is allowed (as by taskset), from before the start on
- moved: one core is allowed, from after the start on
- pinned: a busy loop is pinned to one core
- each: a busy loop is pinned to each core
- load: 12 busy loops
- pair: a second process answers, too, with as many threads

Each number of threads has its own process. The processes take turns, answer by answer (SIGSTOP, as in peers.py). The
table has the median decode tok/s. Its ratio is to min(threads, free cores) threads in the same case. With --against, it
has another checkout's speed, too, and the median ratio of neighbouring answers with its 95% interval. All results go to
bench/results/busy-DATE.json.
"""
from __future__ import annotations
import pathlib
import sys
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import contextlib, json, os, statistics, subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from bench.machine import machine, now, result_file, versions
from bench.peer import Peer, PeerFailed
from tinygrad_llm.bench import ModelInfo, numbers, random_tokens
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.files.hub import resolve

CASES = ("quiet", "affinity", "moved", "pinned", "each", "load", "pair")
LOAD = 12  # busy loops of the case `load`
CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []

def free_cores(case: str) -> int:
  """Returns how many cores a case leaves free for the process."""
  busy = {"affinity": len(CORES) - 1, "moved": len(CORES) - 1, "pinned": 1, "each": len(CORES) - 1, "pair":
          len(CORES) // 2, "load": len(CORES) - 1}
  return max(1, len(CORES) - busy.get(case, 0))

@contextlib.contextmanager
def busy_loops(case: str) -> Iterator[None]:
  """Runs a case's busy loops inside this context."""
  places = {"pinned": [CORES[-1:]], "each": [[core] for core in CORES], "load": [CORES] * LOAD}.get(case, [])
  loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in places]
  try:
    for loop, cores in zip(loops, places): os.sched_setaffinity(loop.pid, cores)
    yield
  finally:
    for loop in loops: loop.kill()
    for loop in loops: loop.wait()

def allow(peer: Peer, cores: Sequence[int]) -> None:
  """Restricts all threads of a running process to these cores."""
  for thread in os.listdir(f"/proc/{peer.process.pid}/task"): os.sched_setaffinity(int(thread), cores)

def start(checkout: pathlib.Path, path: str, ids: list[int], threads: int, case: str) -> Peer:
  command = [sys.executable, str(checkout / "bench" / "peer_tinygrad.py")]
  if case == "affinity": command = ["taskset", "-c", str(CORES[0]), *command]
  peer = Peer(command, {"NUM_CPU_THREADS": str(threads)})
  peer.load(path, ids, threads, {"prompts": False})
  peer.time(0, len(ids) - 1, 0)  # compiles and starts the threads
  if case == "moved": allow(peer, CORES[:1])
  return peer

def measure(path: str, case: str, threads: list[int], checkouts: list[pathlib.Path], tokens: int,
            answers: int) -> dict[tuple[int, int], list[float]]:
  """Returns {(threads, number of the checkout): decode tok/s of each answer}."""
  ids = random_tokens(ModelInfo.from_gguf(open_gguf(path)).vocab_size, tokens + 1)
  found: dict[tuple[int, int], list[float]] = {(t, i): [] for t in threads for i in range(len(checkouts))}
  # of equal processes, the one that started first is some percent slower: the order alternates
  for keys in ([list(found), list(found)[::-1]] if len(checkouts) > 1 else [list(found)]):
    _sitting(path, ids, case, keys, checkouts, -(-answers // len(checkouts)), found)
  return found

def _sitting(path: str, ids: list[int], case: str, keys: list[tuple[int, int]], checkouts: list[pathlib.Path],
             answers: int, found: dict[tuple[int, int], list[float]]) -> None:
  copies, tokens = 2 if case == "pair" else 1, len(ids) - 1
  with contextlib.ExitStack() as stack:
    peers = {}
    for t, i in keys:
      peers[t, i] = [start(checkouts[i], path, ids, t, case) for _ in range(copies)]
      for peer in peers[t, i]: stack.callback(peer.close)
    pool = stack.enter_context(ThreadPoolExecutor(copies))
    stack.enter_context(busy_loops(case))
    for turn in range(answers):
      for key in keys[::-1 if turn % 2 else 1]:  # A B B A: neither always comes after the other
        times = list(pool.map(lambda peer: peer.time(0, tokens, 0), peers[key]))
        found[key].append(tokens * 1e9 / statistics.mean(times))

def interval(ratios: Sequence[float]) -> tuple[float, float]:
  """Returns the 95% confidence interval of the median, by order statistics."""
  n, ordered = len(ratios), sorted(ratios)
  reach = 0.98 * n ** 0.5
  return ordered[max(0, int(n / 2 - reach))], ordered[min(n - 1, int(n / 2 + reach))]

def _row(case: str, found: dict[tuple[int, int], list[float]], threads: int) -> dict[str, Any]:
  median = {key: statistics.median(speeds) for key, speeds in found.items()}
  row: dict[str, Any] = {"case": case, "threads": threads, "tok_s": round(median[threads, 0], 1)}
  few = min(threads, free_cores(case))
  if (few, 0) in median: row["ratio"] = round(median[threads, 0] / median[few, 0], 3)
  if (threads, 1) in found:
    ratios = [a / b for a, b in zip(found[threads, 0], found[threads, 1])]
    row |= {"other_tok_s": round(median[threads, 1], 1), "to_other": round(statistics.median(ratios), 3),
            "interval": [round(r, 3) for r in interval(ratios)]}
  return row | {"samples": [round(s, 1) for s in found[threads, 0]]}

def _main() -> None:
  parser = Parser(prog="python bench/busy.py", description="Time decoding with fewer free cores than threads.")
  parser.add_argument("-m", "--model", nargs="+", metavar="M", help="files, default: the bundled model")
  parser.add_argument("--threads", default="1,2,4,8", metavar="N,N", help="of a process (default 1,2,4,8)")
  parser.add_argument("--cases", default=",".join(CASES), metavar="C,C", help=f"default {','.join(CASES)}")
  parser.add_argument("-n", "--n-gen", type=int, default=64, metavar="N", help="tokens of an answer (default 64)")
  parser.add_argument("-r", "--repetitions", type=int, default=20, metavar="N", help="answers of each (default 20)")
  parser.add_argument("--against", type=pathlib.Path, metavar="DIR", help="another checkout of this project")
  parser.add_argument("--out", type=pathlib.Path, help="default: bench/results/busy-DATE.json")
  args = parser.parse_args()
  if len(CORES) < 2: raise InputError("bench/busy.py: it needs Linux and 2 cores; run it on such a machine")
  cases, threads = args.cases.split(","), numbers("--threads", [args.threads])
  for case in cases:
    if case not in CASES: parser.error(f"--cases {case}: no such case; use some of {','.join(CASES)}")
  if min(args.n_gen, args.repetitions, *threads) < 1: parser.error("-n, -r and --threads are at least 1")
  if args.against and not (args.against / "bench" / "peer_tinygrad.py").is_file():
    parser.error(f"--against {args.against}: no checkout of this project")
  date, models = now(), list[dict[str, Any]]()
  for name in args.model or [None]:
    path, rows = str(resolve(name)), list[dict[str, Any]]()
    print(f"{pathlib.Path(path).name}\n{'case':<10}{'threads':>8}{'tok/s':>10}{'ratio':>8}{'to other':>10}", flush=True)
    for case in cases:
      try: found = measure(path, case, threads, [ROOT, *([args.against] if args.against else [])], args.n_gen,
                           args.repetitions)
      except PeerFailed as e: raise InputError(f"{path}: {e}") from e
      for t in threads:
        rows.append(row := _row(case, found, t))
        print(f"{case:<10}{t:>8}{row['tok_s']:>10.1f}{row.get('ratio', float('nan')):>8.2f}"
              + (f"{row['to_other']:>10.3f} {row['interval']}" if "to_other" in row else ""), flush=True)
    models.append({"file": pathlib.Path(path).name, "rows": rows})
  out = args.out or result_file("busy", date)
  out.write_text(json.dumps({"date": date, "machine": machine(), "versions": versions(), "tokens": args.n_gen,
                             "models": models}, indent=1) + "\n")
  print(f"written: {out}")

if __name__ == "__main__": guarded(_main)
