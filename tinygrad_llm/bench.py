"""
python -m tinygrad_llm.bench: tokens a second, in the terms and by the method of llama-bench
(https://github.com/ggml-org/llama.cpp/blob/master/tools/llama-bench/README.md).

Tests are named as there: pp512 is a prompt of 512 tokens, tg128 the generation of 128, `@ d512` after 512 that are in
the KV cache already. After one warm-up, every repetition is timed alone, from an empty context or from the depth. The
t/s are the mean and the sample standard deviation of the repetitions. Tokens are random. Tokenising, sampling and
detokenising are not timed, and all compiling happens in the warm-up.

GB/s is the generated tokens a second times the packed bytes of the weights that a token needs, the least that must be
read.

With --profile, a table for each test shows where the time of its steps goes (analysis/profile.py). The json format is
then one object, {"profiles": [..]}, where each test has its usual fields and the fields of analysis/profile_table.py.
The jsonl format has a line for each test, csv a line for each row of a table. The option --html writes one step of each
test as a page.

Peak mem (peak_memory_bytes) is the most host memory that this process had resident up to the end of a test. It can only
grow from test to test and from model to model. device_memory_bytes are tinygrad's buffers on the device, see
device/memory.py.
"""
from __future__ import annotations
import argparse, csv, functools, gc, io, json, pathlib, platform, re, statistics, subprocess, time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TYPE_CHECKING, TypeVar
import numpy as np
from tinygrad_llm import __version__, patches
from tinygrad_llm.command import Parser, check_writable, guarded
from tinygrad_llm.device.memory import device_memory_bytes, peak_memory_bytes
from tinygrad_llm.device.threads import use_threads
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import GGML_TYPES, GGUF, TensorInfo, open_gguf
from tinygrad_llm.files.hub import resolve
from tinygrad_llm.nn.config import ModelConfig
from tinygrad_llm.nn.reader import read_config
if TYPE_CHECKING:
  from tinygrad_llm.analysis.profile import Profile
  from tinygrad_llm.engine.llm import LLM

T = TypeVar("T")
FORMATS = ("md", "json", "jsonl", "csv")
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?:([+*])(\d+))?)?", re.ASCII)
MAX_VALUES, MAX_TOKENS = 1000, 1 << 24

# *** what is measured

@dataclass(frozen=True)
class Test:
  """One test: tokens of a prompt, or to generate, after `n_depth` tokens of context."""
  n_prompt: int
  n_gen: int
  n_depth: int = 0

  @property
  def name(self) -> str:
    kind = f"pp{self.n_prompt}" if self.n_prompt else f"tg{self.n_gen}"
    return f"{kind} @ d{self.n_depth}" if self.n_depth else kind
  @property
  def unit(self) -> str:
    """The unit of a profile's steps: a whole prompt, or one token."""
    return "prompt" if self.n_prompt else "token"
  @property
  def tokens(self) -> int: return self.n_prompt + self.n_gen
  @property
  def positions(self) -> int: return self.tokens + self.n_depth

def numbers(option: str, texts: Sequence[str]) -> list[int]:
  """The values of a repeatable option: `a`, `a,b`, and ranges `a-b`, `a-b+step`, `a-b*factor`."""
  out: list[int] = []
  for part in ",".join(texts).split(","):
    if (m := _RANGE.fullmatch(part)) is None or len(part) > 30:
      raise InputError(f"{option} {part!r:.40}: not a number; write 128, 128,256, 1-4, 64-512+64 or 64-512*2")
    value, last, step = int(m[1]), int(m[2] or m[1]), int(m[4] or 1)
    if last > value and ((m[3] == "*" and (step < 2 or value == 0)) or step == 0):
      raise InputError(f"{option} {part}: the step leads nowhere; use +1 or more, or *2 or more from 1")
    if last > MAX_TOKENS or last < value: raise InputError(f"{option} {part}: give numbers up to {MAX_TOKENS}, rising")
    while value <= last:
      out.append(value)
      value = value * step if m[3] == "*" else value + step
      if len(out) > MAX_VALUES: raise InputError(f"{option}: more than {MAX_VALUES} values; give fewer")
      if last == out[-1]: break
  return out

def random_tokens(vocab_size: int, n: int) -> list[int]:
  """n random tokens, always the same. Text would favour some experts and rows."""
  ids: list[int] = np.random.default_rng(0).integers(0, vocab_size, n).tolist()
  return ids

def make_tests(n_prompt: Sequence[int], n_gen: Sequence[int], n_depth: Sequence[int]) -> list[Test]:
  """All combinations; a zero asks for no test of that kind."""
  return [test for depth in n_depth for test in
          (*(Test(n, 0, depth) for n in n_prompt if n), *(Test(0, n, depth) for n in n_gen if n))]

@dataclass(frozen=True)
class ModelInfo:
  """
  Facts from a model's header: size in bytes and number of parameters, for the tensors that are used.

  bytes_per_token: packed bytes of the weights that generating a token needs. Experts that are not chosen do not count.
  The embedding counts one row, unless it is the output head, too.
  """
  name: str
  size: int
  n_params: int
  bytes_per_token: int
  vocab_size: int
  context_length: int

  @staticmethod
  def from_gguf(file: GGUF) -> ModelInfo:
    config = read_config(file)
    used = [t for t in file.tensors.values()
            if not (m := re.match(r"blk\.(\d+)\.", t.name)) or int(m[1]) < config.n_layers]
    touched = sum(t.nbytes * share(t, config) for t in used)
    size, n_params = sum(t.nbytes for t in used), sum(prod(t.shape) for t in used)
    count = f"{n_params / 1e9:.2f}B" if n_params >= 1e9 else f"{n_params / 1e6:.0f}M"
    return ModelInfo(f"{config.arch} {count} {_file_type(file)}", size, n_params, round(touched), config.vocab_size,
                     config.context_length)

def share(tensor: TensorInfo, config: ModelConfig) -> float:
  """The fraction of a tensor that generating a token reads."""
  tables = ["per_layer_token_embd.weight"] + ["token_embd.weight"] * (not config.tied)
  if tensor.name in tables: return 1 / tensor.shape[0]
  if (m := re.match(r"blk\.(\d+)\.ffn_\w+(_exps|\.\d+)\.", tensor.name)) is None: return 1.0
  experts = config.layers[int(m[1])].experts
  return experts.n_used / experts.n_experts if experts else 1.0

def _file_type(file: GGUF) -> str:
  """The name of general.file_type, or else the type with the most bytes."""
  try:
    from gguf import LlamaFileType
    return LlamaFileType(file.kv.get("general.file_type", -1)).name.split("_", 1)[1]
  except (ImportError, ValueError, IndexError): pass  # bench/gpu_check.py runs without gguf-py
  types: Counter[int] = Counter()
  for t in file.tensors.values(): types[t.type] += t.nbytes
  return GGML_TYPES[types.most_common(1)[0][0]][0]

class Runner:
  """Runs tests on a loaded model. ids: the token at each position, the same every time."""
  def __init__(self, llm: LLM, ids: list[int]): self.llm, self.ids = llm, ids

  def fill(self, depth: int) -> None:
    """Feeds the first `depth` tokens, so that a step goes on behind them. All that is still there is not read again."""
    if depth: self.llm.prefill(self.ids[:depth], depth - 1)

  def prompt(self, n: int, depth: int = 0) -> np.ndarray:
    """Feeds n tokens at once after `depth` others; the logits after the last, (vocab_size,)."""
    return self.llm.prefill(self.ids[:depth + n], depth)

  def step(self, position: int) -> np.ndarray:
    """Feeds the token of a position, after all before it were fed; the logits after it, (vocab_size,)."""
    return self.llm.step(self.ids[position], position)

  def generate(self, n: int, depth: int = 0) -> None:
    """Feeds n tokens one by one after `depth` others; the host reads each one's logits before it feeds the next."""
    for i in range(depth, depth + n): self.step(i)

  def time(self, test: Test, passes: int = 1) -> int:
    """Wall time in ns of `passes` runs of a test, without the tokens before."""
    total = 0
    for _ in range(passes):
      self.fill(test.n_depth)
      start = time.perf_counter_ns()
      if test.n_prompt: self.prompt(test.n_prompt, test.n_depth)
      else: self.generate(test.n_gen, test.n_depth)
      total += time.perf_counter_ns() - start
    return total

  def warm_up(self, test: Test) -> None:
    """Runs the prompt, or as many tokens as it takes to compile everything."""
    self.time(test if test.n_prompt else Test(0, min(test.n_gen, 3), test.n_depth))

  def run(self, test: Test, repetitions: int) -> list[int]:
    """Wall time in ns of each repetition, after a warm-up."""
    self.warm_up(test)
    return [self.time(test) for _ in range(repetitions)]

  def profile(self, test: Test, repetitions: int) -> Profile:
    """The same with a time for each kernel. A step is the prompt, or one of the generated tokens."""
    from tqdm import tqdm
    from tinygrad_llm.analysis.profile import profile
    self.warm_up(test)
    steps = [lambda: self.prompt(test.n_prompt, test.n_depth)] if test.n_prompt else \
      [functools.partial(self.step, test.n_depth + i) for i in range(test.n_gen)]
    def before(i: int) -> None:
      if test.n_prompt: self.fill(test.n_depth)
      elif test.n_depth + i: self.step(test.n_depth + i - 1)
    with tqdm(total=repetitions, desc=test.name, unit="repetition", leave=False, disable=None) as bar:
      return profile(self.llm, steps, repetitions, bar.update, before)

# *** where it is measured

ROOT = pathlib.Path(__file__).resolve().parent.parent

@functools.cache
def build(root: pathlib.Path = ROOT) -> tuple[str, int]:
  """
  The commit of a checkout at `root` (with "+" if tracked files differ) and its number; elsewhere our version and 0.
  """
  if not (root / ".git").exists(): return __version__, 0
  def git(*args: str) -> str:
    return subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=True).stdout.strip()
  try:
    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else ""), int(git("rev-list", "--count", "HEAD"))
  except (OSError, subprocess.CalledProcessError): return __version__, 0

@functools.cache
def cpu_info() -> str:
  """The processor's name."""
  try:
    text = pathlib.Path("/proc/cpuinfo").read_text()
    if m := re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.M): return m[1].strip()
  except OSError: pass
  try:
    done = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, timeout=10)
    if done.returncode == 0 and done.stdout.strip(): return done.stdout.strip()
  except (OSError, subprocess.TimeoutExpired): pass
  return platform.processor() or platform.machine()

def gpu_info(device: str) -> str:
  """The device's name and architecture in tinygrad; "" for the CPU."""
  from tinygrad import Device
  return "" if device.split(":")[0] == "CPU" else f"{device} {getattr(Device[device], 'arch', '')}".strip()

def _threads(device: str) -> int:
  """How many threads a kernel may use: NUM_CPU_THREADS on the CPU, else 1."""
  from tinygrad.helpers import NUM_CPU_THREADS
  return NUM_CPU_THREADS.value if device.split(":")[0] == "CPU" else 1

# *** what is reported

@dataclass(frozen=True)
class Result:
  """
  One test of one model.

  path: the model as it was asked for. samples: wall time in ns of each repetition. peak_memory, device_memory: bytes
  after the last repetition, see device/memory.py.
  """
  path: str
  model: ModelInfo
  test: Test
  device: str
  batch: int
  when: str
  samples: list[int]
  peak_memory: int | None = None
  device_memory: int | None = None

  @property
  def speeds(self) -> list[float]: return [self.test.tokens * 1e9 / ns for ns in self.samples]
  @property
  def gbs(self) -> float | None:
    """GB/s of packed weights; None for a prompt, whose tokens share the weights that are read."""
    return statistics.mean(self.speeds) * self.model.bytes_per_token / 1e9 if self.test.n_gen else None

  def fields(self) -> dict[str, Any]:
    """The fields of llama-bench that apply here, then ours."""
    (commit, number), m, test = build(), self.model, self.test
    return {
      "build_commit": commit, "build_number": number, "cpu_info": cpu_info(), "gpu_info": gpu_info(self.device),
      "backends": self.device, "model_filename": self.path, "model_type": m.name, "model_size": m.size,
      "model_n_params": m.n_params, "n_batch": self.batch, "n_ubatch": self.batch, "n_threads": _threads(self.device),
      "type_k": "f16", "type_v": "f16", "n_prompt": test.n_prompt, "n_gen": test.n_gen, "n_depth": test.n_depth,
      "test_time": self.when, "avg_ns": round(statistics.mean(self.samples)),
      "stddev_ns": round(deviation(self.samples)), "avg_ts": statistics.mean(self.speeds),
      "stddev_ts": deviation(self.speeds), "bytes_per_token": m.bytes_per_token, "avg_gbs": self.gbs,
      "patches": ",".join(patches.enabled()), "peak_memory_bytes": self.peak_memory,
      "device_memory_bytes": self.device_memory}

  def samples_fields(self) -> dict[str, Any]: return {"samples_ns": self.samples, "samples_ts": self.speeds}

def deviation(samples: Sequence[float]) -> float:
  """The sample standard deviation; 0 for one sample."""
  return statistics.stdev(samples) if len(samples) > 1 else 0.0

def in_size(n: int) -> str: return f"{n / 2**30:.2f} GiB" if n >= 2**30 else f"{n / 2**20:.2f} MiB"
def in_params(n: int) -> str: return f"{n / 1e9:.2f} B" if n >= 1e9 else f"{n / 1e6:.2f} M"

class Markdown:
  """The table of llama-bench, with GB/s and peak memory. Threads are shown where the device is the CPU."""
  WIDTHS = {"model": -30, "size": 10, "params": 10, "backend": -10, "threads": 7, "test": 15, "t/s": 20, "GB/s": 7,
            "peak mem": 10}
  def __init__(self, device: str):
    on_cpu = device.split(":")[0] == "CPU"
    self.columns = {name: width for name, width in self.WIDTHS.items() if name != "threads" or on_cpu}

  def header(self) -> str:
    return self._row({name: name for name in self.columns}) + "\n|" + "|".join(
      f" {'-' * (abs(width) - 1)}{'-' if width < 0 else ':'} " for width in self.columns.values()) + "|"

  def row(self, result: Result) -> str:
    speeds = result.speeds
    return self._row({
      "model": result.model.name, "size": in_size(result.model.size), "params": in_params(result.model.n_params),
      "backend": result.device, "threads": str(_threads(result.device)), "test": result.test.name,
      "t/s": f"{statistics.mean(speeds):.2f} ± {deviation(speeds):.2f}",
      "GB/s": f"{result.gbs:.2f}" if result.gbs is not None else "",
      "peak mem": in_size(result.peak_memory) if result.peak_memory is not None else ""})

  def _row(self, cells: dict[str, str]) -> str:
    return "|" + "|".join(f" {cells[name]:{'<' if width < 0 else '>'}{abs(width)}} "
                          for name, width in self.columns.items()) + "|"

def _csv(values: Sequence[Any]) -> str:
  csv.writer(out := io.StringIO(), quoting=csv.QUOTE_ALL, lineterminator="").writerow(values)
  return out.getvalue()

def report(results: Iterator[Result], device: str, kind: str) -> None:
  """Prints each result as it comes, in one of FORMATS; json is one array at the end."""
  table, done = Markdown(device), []
  if kind == "md": print(table.header(), flush=True)
  for i, result in enumerate(results):
    if kind == "md": print(table.row(result), flush=True)
    elif kind == "csv":
      fields = result.fields()
      if i == 0: print(",".join(fields), flush=True)
      print(_csv([str(value) if value is not None else "" for value in fields.values()]), flush=True)
    elif kind == "jsonl": print(json.dumps(result.fields() | result.samples_fields()), flush=True)
    else: done.append(result.fields() | result.samples_fields())
  if kind == "json": print(json.dumps(done, indent=2))
  if kind == "md": print("\nbuild: {} ({})".format(*build()))

# *** the command

def _runner(path: str | None, info: ModelInfo, tests: Sequence[Test]) -> Runner:
  from tinygrad_llm import load
  positions = max(test.positions for test in tests)
  return Runner(load(path, max_context=positions, progress=True), random_tokens(info.vocab_size, positions))

def _result(path: str | None, info: ModelInfo, test: Test, llm: LLM, when: str, samples: list[int]) -> Result:
  return Result(str(path or llm.path), info, test, llm.device, llm.chunk, when, samples, peak_memory_bytes(),
                device_memory_bytes(llm.device))

def _now() -> str: return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

def measure(path: str | None, info: ModelInfo, tests: Sequence[Test], repetitions: int) -> Iterator[Result]:
  """Loads a model once and runs the tests on it, one after another."""
  runner = _runner(path, info, tests)
  for test in tests:
    when = _now()
    yield _result(path, info, test, runner.llm, when, runner.run(test, repetitions))

def profiles(path: str | None, info: ModelInfo, tests: Sequence[Test], repetitions: int
             ) -> Iterator[tuple[LLM, Result, Profile]]:
  """The same, with a profile of each test; the model stays in memory until the next item is asked for."""
  runner = _runner(path, info, tests)
  for test in tests:
    when, profile = _now(), runner.profile(test, repetitions)
    result = _result(path, info, test, runner.llm, when, profile.samples)
    yield runner.llm, replace(result, peak_memory=None), profile  # the peak would include the bandwidth measurement

def check_context(path: str, info: ModelInfo, tests: Sequence[Test]) -> None:
  """InputError if a test does not fit the context that the model was trained for."""
  if (longest := max(tests, key=lambda test: test.positions)).positions > info.context_length:
    raise InputError(f"{path}: {longest.name} needs {longest.positions} positions, the context is "
                     f"{info.context_length}; use smaller -p, -n or -d")

def add_tests(add: Any, n_prompt: int, n_gen: int) -> None:
  """Adds the options that choose tests, with these defaults."""
  add("-p", "--n-prompt", action="append", metavar="N", help=f"prompt tokens; 0 skips the test (default {n_prompt})")
  add("-n", "--n-gen", action="append", metavar="N", help=f"tokens to generate; 0 skips the test (default {n_gen})")
  add("-d", "--n-depth", action="append", metavar="N", help="tokens in the KV cache before a test (default 0)")
  add("-r", "--repetitions", type=int, default=5, metavar="N", help="repetitions of each test (default 5)")

def asked_tests(args: argparse.Namespace, n_prompt: int, n_gen: int) -> list[Test]:
  """The tests that the options ask for. InputError if there are none."""
  if args.repetitions < 1: raise InputError(f"-r {args.repetitions}: give 1 or more repetitions")
  prompts, gens = numbers("-p", args.n_prompt or [str(n_prompt)]), numbers("-n", args.n_gen or [str(n_gen)])
  if not (tests := make_tests(prompts, gens, numbers("-d", args.n_depth or ["0"]))):
    raise InputError("-p 0 -n 0: nothing is left to test; give tokens to one of them")
  return tests

def _parser() -> argparse.ArgumentParser:
  parser = Parser(prog="python -m tinygrad_llm.bench", description="Time a GGUF model as llama-bench does.",
                  epilog="-m, -p, -n and -d may be given several times. -p, -n and -d also take lists (16,32) and "
                         "ranges (64-512*2, 1-9+2). All combinations run.")
  parser.add_argument("-m", "--model", action="append", metavar="M",
                      help="a .gguf file, an alias, or hf:owner/repo[:file or quant type] (default: the bundled model)")
  add_tests(parser.add_argument, 512, 128)
  parser.add_argument("-o", "--output", choices=FORMATS, default="md", help="format on stdout (default md)")
  parser.add_argument("-t", "--threads", type=int, metavar="N", help="threads of the CPU device (default: all cores)")
  parser.add_argument("--profile", action="store_true", help="show where the time of the tests' steps goes")
  parser.add_argument("--html", type=pathlib.Path, metavar="FILE",
                      help="with --profile: write a timeline of a step of each test, with each kernel's code; this "
                           "lowers the kernels again, about a second each")
  return parser

def _of_each(models: Sequence[tuple[str | None, ModelInfo]], run: Callable[[str | None, ModelInfo], Iterator[T]]
             ) -> Iterator[T]:
  for path, info in models:
    yield from run(path, info)
    gc.collect()  # before the next model is loaded

def report_profiles(found: Iterator[tuple[LLM, Result, Profile]], kind: str, html: pathlib.Path | None) -> None:
  """Prints each profile as it comes, in one of FORMATS; json is one object at the end. html: a page to write, too."""
  from tinygrad_llm.analysis import profile_table
  from tinygrad_llm.analysis.pages.profiled import Page
  page, printed = Page(), profile_table.Printer(kind)
  for llm, result, profile in found:
    test, threads = result.test, f", {_threads(result.device)} threads" if profile.in_step else ""
    where = f"{result.model.name}, {result.device}{threads}"
    printed.add(f"{where}: {test.name}", test.unit, result.fields() | result.samples_fields(), profile)
    if html is not None: page.add(llm, profile, where, test.name, test.unit, test.n_depth)
  printed.end("build: {} ({})".format(*build()))
  if html is not None: html.write_text(page.text(), encoding="utf-8")

def _main() -> None:
  args = _parser().parse_args()
  tests, reps = asked_tests(args, 512, 128), args.repetitions
  use_threads(args.threads)
  if args.html is not None and not args.profile:
    raise InputError(f"--html {args.html}: a page is made of a profile; give --profile, too")
  if args.html is not None: check_writable("--html", args.html)
  from tinygrad_llm.device.device import check_computes
  device, models = check_computes(), []
  if args.profile:
    from tinygrad_llm.analysis import profile
    profile.check_device(device)
  from tinygrad_llm.engine.llm import check_metadata
  for model in args.model or [None]:
    info = ModelInfo.from_gguf(open_gguf(path := resolve(model, check_metadata)))
    check_context(str(path), info, tests)
    models.append((model, info))
  if not args.profile: return report(_of_each(models, lambda p, m: measure(p, m, tests, reps)), device, args.output)
  report_profiles(_of_each(models, lambda p, m: profiles(p, m, tests, reps)), args.output, args.html)

def main() -> None: guarded(_main)

if __name__ == "__main__": main()
