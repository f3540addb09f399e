"""
Compares this project with its peers in one run: the same GGUF, the same threads, the same random tokens.

  python bench/peers.py -m model.gguf [other.gguf ..] [--peers stock,llama.cpp,mlx] [--ablate] [--json]

The peers:
- `stock`: tinygrad without our patches (NO_PATCHES=1)
- NAME=VALUE: this project with that in its environment; + joins several, as in BEAM=2+NO_THREADS=1
- `llama.cpp`: llama-cpp-python, for each test with the setting that was fastest in a short trial before
- `mlx`: mlx-lm, on the file's weights in its own format (mlx_model.py), which the row names

With --ablate, each patch is switched off alone, too. A patch that does not apply to the device, or that changes no
kernel, is not timed: "-".
After a warm-up, all processes stay loaded and take turns, repetition by repetition (A B C A B C ..), so that a drift of
the machine meets all of them. The read bandwidth is measured before each repetition, too. The table has medians of the
repetitions and of the rounds' ratios. A repetition lasts about a second. A slow peer gets fewer tokens (at least one),
and a fast one goes through the test several times; the column `tokens` says so.
All peers' logits after 16 tokens are compared. The exit code is 1 if a peer fails or computes something else.
"""
from __future__ import annotations
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import argparse, json, os, statistics, subprocess, tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
import numpy as np
from bench.machine import cores, machine, now, result_file, versions
from bench.peer import Peer, PeerFailed
from tinygrad_llm import InputError
from tinygrad_llm.bench import ModelInfo, Test, add_tests, asked_tests, check_context, in_size, random_tokens
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.device.bandwidth import ReadBandwidth, free_memory
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.files.hub import resolve
from tinygrad_llm.nn.keys import check_architecture
from tinygrad_llm.patches import PATCHES
from tinygrad_llm.patches.pipeline import BY_NAME, Phase

HERE, OURS, LLAMA, MLX = pathlib.Path(__file__).resolve().parent, "tinygrad_llm", "llama.cpp", "mlx"
CHECKED = 16  # tokens before the logits that are compared
# nats above which a peer computes another model. Quantising 4 bits to 4 bits again: 0.1 on 2 layers of random weights
MAX_KL, MAX_KL_QUANTISED_AGAIN = 0.1, 1.0
SETTINGS = [{"extra_bufts": extra, "flash": flash} for extra in (True, False) for flash in (True, False)]

@dataclass
class Samples:
  """
  One test of one contestant.

  - tokens: tokens per pass
  - passes: passes per repetition
  - ns: wall time of each repetition
  - gbs: the machine's read bandwidth before each repetition, in GB/s
  - rounds: the round of each repetition
  """
  tokens: int
  passes: int
  ns: list[int] = field(default_factory=list)
  gbs: list[float] = field(default_factory=list)
  rounds: list[int] = field(default_factory=list)

  @property
  def speeds(self) -> list[float]: return [self.tokens * self.passes * 1e9 / ns for ns in self.ns]
  @property
  def median(self) -> float: return statistics.median(self.speeds)

class Contestant:
  """
  A peer by its name, with its measurements, and the reason if it failed.

  weights: the peer's name and the weights' format, if they are not the file's. bytes_per_token: bytes of those weights.
  """
  max_kl = MAX_KL
  weights: str | None = None
  bytes_per_token: int | None = None

  def __init__(self, name: str):
    self.name, self.failed, self.about, self.load_s = name, "", "", 0.0
    self.samples: dict[Test, Samples] = {}
    self.settings: dict[Test, dict[str, Any]] = {}
    self.logits: np.ndarray | None = None
    self.kl: float | None = None
    self.idle = ""              # why there is nothing to time
    self.same = list[Test]()    # tests with the same kernels as this project with all patches

  def start(self, run: Run) -> None:
    """Loads the model, in one process or several, and computes the logits to compare."""
    self.peer = run.start(self, [sys.executable, str(HERE / "peer_tinygrad.py")], environment(self.name),
                          {"prompts": any(test.n_prompt or test.n_depth for test in run.tests)})
    self.logits = self.peer.logits(CHECKED)

  def peer_for(self, test: Test) -> Peer: return self.peer
  def close(self) -> None:
    if hasattr(self, "peer"): self.peer.close()

  def time(self, test: Test, tokens: int, passes: int = 1) -> int:
    prompt, gen = (tokens, 0) if test.n_prompt else (0, tokens)
    return self.peer_for(test).time(prompt, gen, test.n_depth, passes)

class LlamaCpp(Contestant):
  """llama.cpp at its best: one process for each setting that won a test."""
  def __init__(self, pythons: Sequence[str]):
    super().__init__(LLAMA)
    self.trials = [(python, settings) for python in pythons for settings in SETTINGS]
    self.peers: dict[int, Peer] = {}
    self.best: dict[Test, int] = {}
    self.tried: list[dict[str, Any]] = []

  def _load(self, run: Run, i: int) -> Peer:
    python, settings = self.trials[i]
    return run.start(self, [python, str(HERE / "peer_llama_cpp.py")], {}, settings)

  def start(self, run: Run) -> None:
    times: dict[Test, dict[int, float]] = {test: {} for test in run.tests}
    reason = ""
    for i, (python, settings) in enumerate(self.trials):
      which = python.removeprefix(f"{HERE.parent}{os.sep}")  # no absolute path: results are read elsewhere, too
      run.say(f"{self.name}: trying {settings}" + (f" of {python}" if python != sys.executable else ""))
      peer: Peer | None = None
      for test in run.tests:
        try:
          if peer is None: peer = self._load(run, i)
          self.peers = {i: peer}
          self.best = {test: i}
          tokens, _ = plan(self, test, run.seconds / 4)
          times[test][i] = min(self.time(test, tokens) / tokens for _ in range(3))
        except PeerFailed as e:  # a setting may crash in one test and be the best in another
          reason = str(e)
          self.tried.append({"python": which, **settings, "test": test.name, "failed": reason})
          if peer is not None: peer.close()
          peer = None
        else: self.tried.append({"python": which, **settings, "test": test.name, "ts": 1e9 / times[test][i]})
      if peer is not None: peer.close()
    self.peers = {}
    if not all(times.values()): raise PeerFailed(reason)
    self.best = {test: min(found, key=lambda i: found[i]) for test, found in times.items()}
    self.settings = {test: self.trials[i][1] for test, i in self.best.items()}
    self.peers = {i: self._load(run, i) for i in set(self.best.values())}
    self.logits = self.peer_for(run.tests[0]).logits(CHECKED)

  def peer_for(self, test: Test) -> Peer: return self.peers[self.best[test]]
  def close(self) -> None:
    for peer in self.peers.values(): peer.close()
    self.peers = {}

class MLXLM(Contestant):
  """mlx-lm, on a model directory that is written once and lasts as long as the contestant."""
  max_kl = MAX_KL_QUANTISED_AGAIN
  folder: tempfile.TemporaryDirectory[str] | None = None

  def start(self, run: Run) -> None:
    if self.folder is None: self._convert(run)
    assert self.folder is not None
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), str(run.threads))
    self.peer = run.start(self, [sys.executable, str(HERE / "peer_mlx.py")], threads, {}, self.folder.name)
    self.logits = self.peer.logits(CHECKED)

  def _convert(self, run: Run) -> None:
    """Converts the model in its own process, which returns its memory."""
    run.say(f"{self.name}: converting")
    folder = tempfile.TemporaryDirectory(prefix="mlx-")
    done = subprocess.run([sys.executable, str(HERE / "mlx_model.py"), run.path, folder.name], capture_output=True,
                          text=True)
    if done.returncode:
      last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
      raise PeerFailed(last.removeprefix("error: "))
    for name, value in json.loads(done.stdout).items(): setattr(self, name, value)
    self.folder = folder

def environment(name: str) -> dict[str, str]:
  """Returns the environment that a contestant's name sets. Other switches of patches do not reach it."""
  base = dict.fromkeys(("NO_PATCHES", *(f"NO_{patch.upper()}" for patch in PATCHES)), "0")
  if name == OURS: return base
  pairs = ["NO_PATCHES=1"] if name == "stock" else name.split("+")
  return base | dict(pair.split("=", 1) for pair in pairs)  # type: ignore[arg-type]

def patch_of(name: str) -> str | None:
  """Returns the patch that a contestant switches off, if it is a single one."""
  return next((patch for patch in PATCHES if name == f"NO_{patch.upper()}=1"), None)

def nothing_to_time(patch: str, device: str) -> str:
  """Says why a patch cannot change a step's speed on a device, from its row of the pipeline; "" if it may."""
  row, on_cpu = BY_NAME[patch], device.split(":")[0] == "CPU"
  if row.phase is Phase.CACHE: return "it affects start-up only"
  return "" if row.suits(on_cpu) else "for GPUs" if on_cpu else "for CPUs"

def plan(contestant: Contestant, test: Test, seconds: float) -> tuple[int, int]:
  """
  Warms a test up. Returns the tokens and passes of a repetition that lasts at least `seconds`.

  Tokens are all, half, a quarter, .. of the test's, so that peers of about the same speed have the same number. Prompts
  stay whole up to ten times as long, because their parts run at another speed.
  """
  sizes = [test.tokens >> i for i in range(test.tokens.bit_length())][::-1]  # 1, .., all
  few = next((n for n in sizes if n >= 8), test.tokens) if test.n_prompt else 1
  def pick(each: float) -> int:
    if test.n_prompt: return max((n for n in sizes if n * each <= 10 * seconds), default=few)
    return next((n for n in sizes if n * each >= seconds), test.tokens)
  took = contestant.time(test, tokens := few) / 1e9  # compiles
  for _ in range(3):
    took = min(contestant.time(test, tokens) for _ in range(3 if took < seconds else 1)) / 1e9
    if (better := max(few, pick(took / tokens))) == tokens: break
    tokens = better
  return tokens, max(1, round(seconds / took * (tokens == test.tokens)))

class Run:
  """All contestants on one model."""
  def __init__(self, path: str, info: ModelInfo, tests: Sequence[Test], threads: int, repetitions: int, seconds: float,
               bandwidth: ReadBandwidth | None, say: Callable[[str], None]):
    self.path, self.info, self.tests, self.threads, self.repetitions = path, info, list(tests), threads, repetitions
    self.seconds, self.bandwidth, self.say, self.round = seconds, bandwidth, say, 0
    self.ids = random_tokens(info.vocab_size, max(CHECKED, *(test.positions for test in tests)) + 1)

  def start(self, contestant: Contestant, command: Sequence[str], env: dict[str, str],
            settings: dict[str, Any], path: str | None = None) -> Peer:
    """Starts a process and loads the model, from `path` instead of the file if given. PeerFailed if it cannot."""
    peer = Peer(command, {"NUM_CPU_THREADS": str(self.threads), **env})
    try: reply = peer.load(path or self.path, self.ids, self.threads, settings)
    except PeerFailed:
      peer.close()
      raise
    contestant.about, contestant.load_s = reply["version"], reply["load_s"]
    return peer

  def measure(self, contestants: Sequence[Contestant]) -> None:
    """Measures as many contestants at a time as fit the memory, always with this project and llama.cpp."""
    anchors = [c for c in contestants if c.name in (OURS, LLAMA)]
    others = [c for c in contestants if c not in anchors and not c.idle]
    room = int(free_memory() * 0.8 / (self.info.size * 1.3 + (1 << 30))) - 1 - len(anchors)  # llama.cpp may be two
    size = max(1, room)
    for i in range(0, max(1, len(others)), size): self._group([*anchors, *others[i:i + size]])

  def _group(self, group: Sequence[Contestant]) -> None:
    try:
      for c in group: self._guard(c, lambda c=c: self._start(c))  # type: ignore[misc]
      for test in self.tests: self._test(test, [c for c in group if not c.failed])
    finally:
      for c in group: c.close()

  def _start(self, c: Contestant) -> None:
    self.say(f"{c.name}: loading")
    c.start(self)

  def _guard(self, c: Contestant, job: Callable[[], None]) -> None:
    try: job()
    except PeerFailed as e:
      c.failed = str(e)
      c.close()
      self.say(f"{c.name}: {e}")

  def _test(self, test: Test, group: Sequence[Contestant]) -> None:
    def prepare(c: Contestant) -> None:
      self.say(f"{c.name}: warming {test.name} up")
      if test not in c.samples: c.samples[test] = Samples(*plan(c, test, self.seconds))
      else: c.time(test, c.samples[test].tokens)
      if c is not ours and ours is not None and self._same(c, ours): c.same.append(test)
    def repeat(c: Contestant) -> None:
      s = c.samples[test]
      gbs = max(self.bandwidth.measure() for _ in range(2)) if self.bandwidth else None
      s.ns.append(c.time(test, s.tokens, s.passes))
      s.rounds.append(self.round)
      if gbs is not None: s.gbs.append(gbs)
    ours = next((c for c in group if c.name == OURS), None)
    for c in group: self._guard(c, lambda c=c: prepare(c))  # type: ignore[misc]
    group = [c for c in group if test not in c.same]
    for i in range(self.repetitions):
      self.round += 1
      self.say(f"{test.name}: round {i + 1} of {self.repetitions}")
      for c in group:
        if not c.failed: self._guard(c, lambda c=c: repeat(c))  # type: ignore[misc]

  @staticmethod
  def _same(c: Contestant, ours: Contestant) -> bool:
    """Whether c lacks one patch, which changes neither kernels nor how they run."""
    patch = patch_of(c.name)
    return patch is not None and BY_NAME[patch].phase is not Phase.RUNTIME and c.peer.kernels() == ours.peer.kernels()

def compare(contestants: Sequence[Contestant]) -> None:
  """Sets each contestant's KL divergence from the first. It fails if logits are not finite or another model's."""
  def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64) - x.max()
    found: np.ndarray = x - np.log(np.exp(x).sum())
    return found
  reference = next((c.logits for c in contestants if c.logits is not None), None)
  for c in contestants:
    if c.logits is None or reference is None: continue
    if not np.isfinite(c.logits).all(): c.failed = c.failed or "its logits are not finite"
    elif c.logits.shape != reference.shape: c.failed = c.failed or f"{c.logits.size} logits, not {reference.size}"
    else:
      p, q = log_softmax(reference), log_softmax(c.logits)
      c.kl = float((np.exp(p) * (p - q)).sum())
      if not c.kl <= c.max_kl: c.failed = c.failed or f"its logits are others': KL {c.kl:.2g}"

def ratio(a: Samples, b: Samples) -> float:
  """Returns how many times faster a is than b: the median over common rounds, or of all if there are none."""
  of_b = dict(zip(b.rounds, b.speeds))
  both = [x / of_b[i] for i, x in zip(a.rounds, a.speeds) if i in of_b]
  return statistics.median(both) if both else a.median / b.median

# *** the report

def model_report(run: Run, contestants: Sequence[Contestant]) -> dict[str, Any]:
  """Returns all results of one model, for the JSON file and for table()."""
  info, by_name = run.info, {c.name: c for c in contestants}
  bandwidths = [gbs for c in contestants for s in c.samples.values() for gbs in s.gbs]
  rows = []
  for test in run.tests:
    for c in contestants:
      if (s := c.samples.get(test)) is None or not s.ns: continue
      gbs = [speed * (c.bytes_per_token or info.bytes_per_token) / 1e9 for speed in s.speeds] if test.n_gen else []
      rows.append({
        "test": test.name, "peer": c.name, "weights": c.weights, "tokens": s.tokens, "passes": s.passes,
        "settings": c.settings.get(test),
        "median_ts": s.median, "min_ts": min(s.speeds), "max_ts": max(s.speeds),
        "gbs": statistics.median(gbs) if gbs else None,
        "share": statistics.median(x / limit for x, limit in zip(gbs, s.gbs)) if gbs and s.gbs else None,
        "vs": {name: ratio(s, other) for name in (OURS, LLAMA)
               if (peer := by_name.get(name)) and (other := peer.samples.get(test)) and other.ns},
        "samples_ns": s.ns, "rounds": s.rounds, "bandwidth_gbs": s.gbs})
  peers = [{"name": c.name, "about": c.about, "load_s": c.load_s, "failed": c.failed or None, "kl": c.kl,
            "idle": c.idle or None, "same": [test.name for test in c.same],
            "top": int(c.logits.argmax()) if c.logits is not None else None,
            **({"tried": c.tried} if isinstance(c, LlamaCpp) else {})} for c in contestants]
  return {"file": pathlib.Path(run.path).name, "model": info.name, "size": info.size, "n_params": info.n_params,
          "bytes_per_token": info.bytes_per_token, "peers": peers, "rows": rows,
          "bandwidth_gbs": [min(bandwidths), statistics.median(bandwidths), max(bandwidths)] if bandwidths else None}

def table(report: dict[str, Any], threads: int) -> str:
  """Returns the Markdown of one model's results."""
  limit, lines = "", []
  if b := report["bandwidth_gbs"]: limit = f"; the machine reads {b[1]:.1f} GB/s ({b[0]:.1f} - {b[2]:.1f})"
  lines.append(f"{report['file']}: {report['model']}, {in_size(report['size'])}, "
               f"{report['bytes_per_token'] / 1e6:.1f} MB a token; {threads} threads{limit}\n")
  lines.append("| test | peer | tokens | t/s | min - max | GB/s | of bandwidth | x llama.cpp | x tinygrad_llm |")
  lines.append("|---|---|---:|---:|---:|---:|---:|---:|---:|")
  def times(x: float | None) -> str: return f"{x:.2f}" if x is not None else ""
  for r in report["rows"]:
    tokens = f"{r['tokens']}" + (f" x {r['passes']}" if r["passes"] > 1 else "")
    lines.append(f"| {r['test']} | {r['weights'] or r['peer']} | {tokens} | {r['median_ts']:.2f} | {r['min_ts']:.2f} - "
                 f"{r['max_ts']:.2f} | {times(r['gbs'])} | {'' if r['share'] is None else format(r['share'], '.0%')} | "
                 f"{times(r['vs'].get(LLAMA))} | {times(r['vs'].get(OURS))} |")
  lines.append("")
  for p in report["peers"]:
    if p["idle"]: lines.append(f"{p['name']}: -, {p['idle']}")
    if p["same"]: lines.append(f"{p['name']}: -, the same kernels in {', '.join(p['same'])}")
    if p["idle"] or p["kl"] is None and not p["failed"]: continue
    says = f"failed: {p['failed']}" if p["failed"] else f"KL {p['kl']:.1e}, best token {p['top']}"
    about = "" if "=" in p["name"] else f"; {p['about']}"  # a variant's name says how it differs from ours
    lines.append(f"{p['name']}: {says}; loaded in {p['load_s']:.1f} s{about}")
  lines += [f"{r['peer']}, {r['test']}: best of its settings: {r['settings']}" for r in report["rows"] if r["settings"]]
  return "\n".join(lines) + "\n"

# *** the command

def _parser() -> argparse.ArgumentParser:
  parser = Parser(prog="python bench/peers.py", description="Time a GGUF model here and in its peers, taking turns.")
  add = parser.add_argument
  add("-m", "--model", action="extend", nargs="+", required=True, metavar="M", help="a .gguf file or alias, or several")
  add("--peers", default="stock,llama.cpp", help="stock, llama.cpp, mlx, NAME=VALUE; none (default stock,llama.cpp)")
  add("--ablate", action="store_true", help="also each patch switched off alone")
  add_tests(add, 128, 128)
  add("-t", "--threads", type=int, default=cores(), metavar="N", help="of every peer (default: all cores)")
  add("--seconds", type=float, default=1.0, metavar="S", help="that a repetition should last (default 1)")
  add("--llama-python", action="append", metavar="PYTHON",
      help="an interpreter that has llama_cpp; with several, the fastest counts (default: this one)")
  add("--json", action="store_true", help="print the JSON that is written, not the tables")
  add("--out", type=pathlib.Path, metavar="FILE", help="where the JSON goes (default: bench/results/peers-DATE.json)")
  return parser

def _contestants(args: argparse.Namespace) -> list[Contestant]:
  names = [OURS] + [name for name in args.peers.split(",") if name and name != "none"]
  if args.ablate: names += [f"NO_{patch.upper()}=1" for patch in PATCHES]
  for name in names:
    if name not in (OURS, "stock", LLAMA, MLX) and not all("=" in pair for pair in name.split("+")):
      raise InputError(f"--peers {name!r:.60}: no such peer; use stock, llama.cpp, mlx or NAME=VALUE")
  pythons = args.llama_python or [sys.executable]
  made = [LlamaCpp(pythons) if name == LLAMA else MLXLM(name) if name == MLX else Contestant(name)
          for name in dict.fromkeys(names)]
  for c in made:
    if (patch := patch_of(c.name)) is not None: c.idle = nothing_to_time(patch, os.environ.get("DEV", "CPU"))
  return made

def _check_llama(pythons: Sequence[str]) -> None:
  for python in pythons:
    try: done = subprocess.run([python, "-c", "import llama_cpp"], capture_output=True, text=True)
    except OSError as e: raise InputError(f"--llama-python {python}: {e.strerror}; give the path of a python") from e
    if done.returncode:
      reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
      raise InputError(f"{python}: llama.cpp is not there ({reason:.100}); pip install llama-cpp-python==0.3.36, or "
                       "name one that has it with --llama-python, or use --peers stock")

def _main() -> None:
  args = _parser().parse_args()
  tests, models = asked_tests(args, 128, 128), []
  for name, value in (("-t", args.threads), ("--seconds", args.seconds)):
    if not 0 < value < 1e4: raise InputError(f"{name} {value}: give a number above 0")
  _contestants(args)
  for model in args.model:
    info = ModelInfo.from_gguf(open_gguf(path := resolve(model, check_architecture)))
    check_context(str(path), info, tests)
    models.append((str(path), info))
  if LLAMA in args.peers.split(","): _check_llama(args.llama_python or [sys.executable])
  on_cpu = os.environ.setdefault("DEV", "CPU").split(":")[0] == "CPU"
  if (load := os.getloadavg()[0]) > 0.3 * cores():
    print(f"note: the machine is busy (load average {load:.1f}): figures will be low and noisy", file=sys.stderr)
  bandwidth, date = ReadBandwidth(args.threads) if on_cpu else None, now()
  report: dict[str, Any] = {
    "date": date, "machine": machine(), "versions": versions(), "device": os.environ["DEV"], "threads": args.threads,
    "repetitions": args.repetitions, "seconds": args.seconds, "load_average": load, "models": []}
  out, wrong = args.out or result_file("peers", date), 0
  for file, info in models:
    def say(text: str, name: str = pathlib.Path(file).name) -> None:
      print(f"{name}: {text}", file=sys.stderr, flush=True)
    contestants = _contestants(args)
    run = Run(file, info, tests, args.threads, args.repetitions, args.seconds, bandwidth, say)
    run.measure(contestants)
    compare(contestants)
    wrong += sum(bool(c.failed) for c in contestants)
    report["models"].append(model_report(run, contestants))
    if not args.json: print(table(report["models"][-1], args.threads), flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")  # after each model: the rest may take hours
  if args.json: print(json.dumps(report))
  else: print(f"written: {out}")
  sys.exit(1 if wrong else 0)

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
