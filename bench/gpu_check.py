"""
Checks that a device computes the right numbers, and how fast: one table, in minutes, from a bare checkout.

  make gpu-check              or: DEV=CUDA python3 bench/gpu_check.py [--model M.gguf] [--parts P,Q] [--out FILE]

The check needs python3, numpy, tinygrad 0.14.0 (in PYTHONPATH or installed), and the device's driver and compiler. The
compiler is nvrtc for CUDA, and clang or the ziglang wheel for CPU; for METAL, macOS has all. No network is needed. DEV
chooses any device of tinygrad's, CUDA by default. Types with a grid are checked if gguf-py is installed.
Each part runs in its own process with a time limit, so that a fault or a hang does not end the other parts.
The exit code is 0 if all numbers are right, whatever the speed. All results go to bench/results/gpu-NAME-DATE.json.
docs/gpu-check.md says how to read it.
"""
from __future__ import annotations
import pathlib
import sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import argparse, contextlib, importlib.util, json, math, os, re, signal, statistics, subprocess, tempfile, threading
import time, traceback, types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock
import numpy as np

HERE = pathlib.Path(__file__).resolve()
EXPECTED = HERE.with_name("gpu_check.npz")  # {type: (ROWS,) float64 products; "logits": (STEPS, vocab)}; see record()
ROWS, N = 48, 768
PROMPT, STEPS = 24, 8
USED = 8  # experts per token
KERNELS = 24
TOTAL_S = 600  # time limit of all parts together; the last ones are then left out
SLOW = {"CPU": 4, "CL": 4}  # factors on the time limits where a few cores compile and run everything
Row = tuple[str, bool | None, str]  # the check, whether it is right (None: it cannot be wrong), and the figure

def stub_missing() -> None:
  """Stubs tqdm and tokenizers if they are not installed, so that the model can be imported. The check uses neither."""
  for name, attributes in (("tqdm", ["tqdm"]), ("tokenizers", ["Regex", "Tokenizer", "models", "pre_tokenizers"])):
    if importlib.util.find_spec(name) is None:
      sys.modules[name] = module = types.ModuleType(name)
      for attribute in attributes: setattr(module, attribute, _Nothing)

class _Nothing:
  def __init__(self, *args: Any, **options: Any): pass
  def update(self, n: int = 1) -> None: pass
  def close(self) -> None: pass

# *** the parts. Each yields rows and writes its measurements to `figures`

def part_device(args: argparse.Namespace, figures: dict[str, Any]) -> Iterator[Row]:
  from tinygrad import Device, Tensor
  from tinygrad_llm import patches
  from tinygrad_llm.device.device import check_device
  device = Device[check_device()]
  figures["arch"] = str(getattr(device, "arch", "")) or type(device.renderer).__name__
  yield "device opens", True, f"{Device.DEFAULT} {figures['arch'].split(',')[0]}"
  total = int(Tensor(np.arange(1000, dtype=np.int32)).sum().item())
  yield "it adds up", total == 499500, f"{total}"
  figures["patches"] = list(patches.apply())
  yield "patches", True, ", ".join(figures["patches"]) or "none (NO_PATCHES=1)"

def part_nv(args: argparse.Namespace, figures: dict[str, Any]) -> Iterator[Row]:
  """Runs with DEV=NV. NV may fail to open: it needs rights on the driver that containers rarely have."""
  from tinygrad import Device, Tensor
  try: Device[Device.DEFAULT]
  except Exception as e:
    at = traceback.extract_tb(e.__traceback__)[-1]
    yield "NV opens", None, f"no: {' '.join(str(e).split())[:80] or f'{type(e).__name__} in {at.name}'}"
  else: yield "NV opens", int(Tensor(np.arange(1000, dtype=np.int32)).sum().item()) == 499500, "yes, and adds up"

def part_weights(args: argparse.Namespace, figures: dict[str, Any]) -> Iterator[Row]:
  """Compares the fused dequantising matvec of every type with products of gguf-py's weights."""
  from tinygrad import Device, Tensor
  from tinygrad_llm.quants.table import QUANT_TYPES
  with np.load(EXPECTED) as file: expected = {name: file[name] for name in file.files}
  has_gguf = importlib.util.find_spec("gguf") is not None
  checked = [qt for qt in QUANT_TYPES.values() if has_gguf or not qt.grid]
  x = Tensor(check_input()).realize()
  with mock.patch.dict(os.environ, NO_Q8_ACTIVATIONS="" if with_bytes() else "1"):
    ys = [linear(qt, ROWS, N, 1)[0](x.reshape(1, 1, -1))[0] for qt in checked]
  Tensor.realize(*ys)
  limit = 0.02 if with_bytes() and Device.DEFAULT == "CPU" else 1e-3  # on GPUs, x is two int8 numbers
  wrong = []
  for qt, y in zip(checked, ys):
    want = expected[qt.name]
    error = np.abs(y.numpy().ravel() - want).max() / np.abs(want).max()
    if not error < limit: wrong.append(f"{qt.name} {error:.1g}")
    figures[qt.name] = float(error)
  left = [qt.name for qt in QUANT_TYPES.values() if qt not in checked]
  worst = max((error for error in figures.values() if np.isfinite(error)), default=math.nan)
  yield (f"matvec of {len(checked)} types{with_bytes()}", not wrong, ("wrong: " + ", ".join(wrong) if wrong else
         f"largest error {worst:.1e}") + (f"; not checked without gguf-py: {' '.join(left)}" if left else ""))

def part_model(args: argparse.Namespace, figures: dict[str, Any]) -> Iterator[Row]:
  """Compares a tiny model's logits, in prefill and fused decode, with stock tinygrad's on the CPU."""
  logits = tiny_logits()
  with np.load(EXPECTED) as file: want = file["logits"]
  error = float(np.abs(logits - want).max() / want.std())
  same = float((logits.argmax(-1) == want.argmax(-1)).mean())
  figures.update(error=error, same=same)
  yield ("tiny model's logits", error < 0.02 and same == 1,
         f"error {error:.1e} of their deviation, best token {same:.0%} the same")

def part_copy(args: argparse.Namespace, figures: dict[str, Any]) -> Iterator[Row]:
  from bench.machine import machine
  from tinygrad_llm.device.bandwidth import copy_bandwidth
  # a GPU may share the host's memory: source and copy take at most a quarter of it
  figures["gbs"] = copy_bandwidth((256 << 20) if args.small else min(2 << 30, machine()["memory"] // 8))
  yield "device copy", None, f"{figures['gbs']:.0f} GB/s, read and written"

def part_matvec(args: argparse.Namespace, figures: dict[str, Any]) -> Iterator[Row]:
  """Measures the GB/s of quantised weights that exceed the caches, and of the experts' weights that tokens choose."""
  def row(what: str, gbs: float, us: float) -> Row:
    figures[what] = {"gbs": gbs, "us": us}
    share = f", {gbs / args.copy_gbs:.0%} of the copy" if args.copy_gbs else ""
    return f"{what}{with_bytes()}", None, f"{gbs:.1f} GB/s{share}, {us:.0f} us"
  rows, columns = (1024, (1024, 3584)) if args.small else (8192, (8192, 28672))
  for name in ("Q4_K", "Q6_K", "Q8_0", *(() if with_bytes() else ("F16",))):
    for n in columns:
      yield row(f"matvec {name} {rows}x{n}", *matvec_speed(name, rows, n, (8 << 20) if args.small else (256 << 20)))
  experts, rows, n = (16, 256, 1024) if args.small else (128, 768, 2048)
  for name in () if with_bytes() else ("Q4_K", "Q6_K", "MXFP4"):
    yield row(f"experts {name} {USED} of {experts} {rows}x{n}", *expert_speed(name, experts, rows, n))

@contextlib.contextmanager
def model_path(args: argparse.Namespace) -> Iterator[pathlib.Path]:
  """Yields the given model, or one with random weights of the 1B shape (--small: of a tiny shape)."""
  from bench.random_model import LLAMA_1B, TINY, write_random
  with tempfile.TemporaryDirectory() as folder:
    yield args.model or write_random(pathlib.Path(folder, "random.gguf"), TINY if args.small else LLAMA_1B)

def part_speed(args: argparse.Namespace, figures: dict[str, Any]) -> Iterator[Row]:
  """Measures a model's tg and pp in tok/s, and whole answers."""
  from tinygrad_llm import load
  from tinygrad_llm.bench import ModelInfo, Runner, Test, random_tokens
  from tinygrad_llm.files.gguf import open_gguf
  with model_path(args) as path:
    info, tests = ModelInfo.from_gguf(open_gguf(path)), [Test(0, 128), Test(128 if args.small else 512, 0)]
    start = time.perf_counter()
    llm = load(str(path), max_context=512)
  figures.update(model=info.name, load_s=time.perf_counter() - start, bytes_per_token=info.bytes_per_token,
                 n_params=info.n_params)
  runner = Runner(llm, random_tokens(info.vocab_size, 512))
  for test in tests:
    start = time.perf_counter()
    samples = runner.run(test, 3)
    speed, first = test.tokens * 1e9 / statistics.median(samples), time.perf_counter() - start - sum(samples) / 1e9
    figures[test.name] = {"ts": speed, "warm_up_s": first, "samples_ns": samples}
    gbs = f", {speed * info.bytes_per_token / 1e9:.1f} GB/s" if test.n_gen else ""
    yield f"{test.name} {info.name}{with_bytes()}", None, f"{speed:.1f} tok/s{gbs}; warm-up {first:.1f} s"
  asking: dict[str, dict[str, Any]] = {"greedy": {}, "sampled": {"temperature": 0.8, "seed": 1}}
  for what, asked in asking.items():
    for _ in range(2):  # the second answer has all kernels compiled
      start, ids = time.perf_counter(), list(map(int, random_tokens(info.vocab_size, 16)))
      at = [time.perf_counter() for _ in llm.generate(ids, 128, ignore_eos=True, **asked)]
    speed = (len(at) - 1) / (at[-1] - at[0])
    figures[f"answer, {what}"] = {"ts": speed, "first_s": at[0] - start}
    yield (f"answer, {what}{with_bytes()}", None,
           f"{speed:.1f} tok/s, {speed * info.bytes_per_token / 1e9:.1f} GB/s; first {1e3 * (at[0] - start):.1f} ms")

def part_estimates(args: argparse.Namespace, figures: dict[str, Any]) -> Iterator[Row]:
  """Estimates the steps that `speed` times, by the cost model, for this card or the first of its architecture."""
  from bench.published import named_in
  from tinygrad_llm.kernels import card_of, decode_programs, report
  from tinygrad_llm.patches.search.cost.hardware import GPUS
  if (card := card_of(named_in(args.gpu, (known.name for known in GPUS)))) is None:
    yield "estimates", None, "the cost model does not know this card"
    return
  figures["card"] = card.name
  with model_path(args) as path:
    for name, depth, prompt in (("tg128", 64, 0), ("pp128" if args.small else "pp512", 0, 128 if args.small else 256)):
      step = report(card.arch, decode_programs(str(path), max_context=512, depth=depth, prompt=prompt), card)
      tokens = prompt or 1
      figures[name] = {"us": step["estimate_us"] / tokens, "kernels": step["kernels"], "bytes": step["bytes"]}
      yield (f"{name}, estimated for {card.name}", None,
             f"{tokens * 1e6 / step['estimate_us']:.1f} tok/s, {step['kernels']} kernels a step")

def part_beam(args: argparse.Namespace, figures: dict[str, Any]) -> Iterator[Row]:
  """Runs with BEAM=2: times the schedule that our search or tinygrad's finds, to compare with the default one."""
  from tinygrad_llm.patches import is_on
  rows = n = 1024 if args.small else 8192
  start = time.perf_counter()
  gbs, us = matvec_speed("Q4_K", rows, n, (8 << 20) if args.small else (256 << 20))
  figures.update(gbs=gbs, us=us, seconds=time.perf_counter() - start)
  whose = "" if is_on("beam_search") else " of tinygrad"
  yield f"BEAM=2{whose} Q4_K {rows}x{n}", None, f"{gbs:.1f} GB/s, {us:.0f} us, after {figures['seconds']:.0f} s"

def part_tuned(args: argparse.Namespace, figures: dict[str, Any]) -> Iterator[Row]:
  """Searches schedules of a decode step's kernels and times the kernels. This user's cache keeps what it finds."""
  from tinygrad_llm.analysis.tuning import Tuning, step_us
  from tinygrad_llm.kernels import decode_step
  with model_path(args) as path:
    tuning = Tuning(*decode_step(str(path), max_context=512, depth=128), 20 if args.small else 150)
    tuning.run()
  before, after = step_us(tuning.rows)
  figures.update(before_us=before, after_us=after, bandwidth=tuning.bandwidth, kernels=[
    {"name": row.kernel.name, "types": row.types, "count": row.count, "bytes": row.nbytes, "before_us": row.before,
     "after_us": row.after, "state": row.state} for row in tuning.rows])
  yield "tune", None, f"{before / 1e3:.2f} -> {after / 1e3:.2f} ms of kernels a token"

# {name: (function, most seconds, additions to the environment)}
PARTS: dict[str, tuple[Callable[[argparse.Namespace, dict[str, Any]], Iterator[Row]], int, dict[str, str]]] = {
  "device": (part_device, 60, {}), "nv": (part_nv, 45, {"DEV": "NV"}), "weights": (part_weights, 150, {}),
  "model": (part_model, 90, {}), "copy": (part_copy, 60, {}), "matvec": (part_matvec, 150, {}),
  "speed": (part_speed, 240, {}), "estimates": (part_estimates, 90, {}),
  "weights8": (part_weights, 150, {"Q8_ACTIVATIONS": "1"}),
  "matvec8": (part_matvec, 150, {"Q8_ACTIVATIONS": "1"}), "speed8": (part_speed, 240, {"Q8_ACTIVATIONS": "1"}),
  "tuned": (part_tuned, 200, {}), "speed_tuned": (part_speed, 240, {}),
  "beam": (part_beam, 120, {"BEAM": "2"}), "stockbeam": (part_beam, 120, {"BEAM": "2", "NO_BEAM_SEARCH": "1"})}

SEARCHES = ("estimates", "tuned", "speed_tuned", "beam", "stockbeam")  # their failure makes no numbers wrong

# *** helpers of the parts

def with_bytes() -> str:
  """Returns ", x in bytes" if this part runs with int8 activations, else ""."""
  return ", x in bytes" if os.environ.get("Q8_ACTIVATIONS", "0") not in ("", "0") else ""

def check_input() -> np.ndarray: return np.random.default_rng(0).standard_normal(N, np.float32)

def linear(kind: Any, rows: int, n: int, copies: int) -> list[Any]:
  """Makes linear layers on random weights of a QuantType, as the loader does. All copies have equal weights."""
  from bench.random_model import random_rows
  from tinygrad import Device, dtypes
  from tinygrad_llm.device.buffers import empty, fill
  from tinygrad_llm.quants.table import pack
  from tinygrad_llm.weights.decode import layout
  from tinygrad_llm.weights.layout import store
  from tinygrad_llm.weights.linear import Linear
  from tinygrad_llm.weights.weight import Weight
  raw, layers, blocks = random_rows(kind, rows, n, 0), [], n // kind.block
  lay = layout(kind, Device[Device.DEFAULT].renderer, rows, n)
  def write(memory: np.ndarray) -> None:
    if memory.nbytes == raw.nbytes: memory.reshape(-1).view(np.uint8)[:] = raw.reshape(-1)
    else: pack(kind, raw, n, memory.reshape(rows, -1))
  for _ in range(copies):
    if lay is None: packed = units = empty((rows, kind.row_items(n)), kind.dtype)
    else:
      packed = empty((rows // lay.tile, lay.row_words(blocks), lay.tile), dtypes.uint32)
      units = empty((rows, blocks, lay.blocks.units), lay.blocks.dtype)
    fill(units, write)
    if lay is not None: store(lay, packed, units, 0)
    layers.append(Linear([Weight(kind, packed, (rows, n), lay)], [[rows]], [None], [None]))
  return layers

def matvec_speed(name: str, rows: int, n: int, nbytes: int) -> tuple[float, float]:
  """
  Returns (GB/s of quantised weights, us per kernel).

  A step runs layers of equal weights, `nbytes` together, one after another. It does so for several x, so that it has at
  least KERNELS kernels and its time in Python does not count.
  """
  from bench.random_model import quant_named
  from tinygrad import Tensor, TinyJit
  from tinygrad_llm.device.bandwidth import timed
  kind = quant_named(name)
  size = rows * kind.row_nbytes(n)
  layers, rng = linear(kind, rows, n, max(2, -(-nbytes // size))), np.random.default_rng(0)
  xs = [Tensor(rng.standard_normal((1, 1, n), np.float32)).realize() for _ in range(-(-KERNELS // len(layers)))]
  step = TinyJit(lambda *xs: Tensor.realize(*[layer(x)[0] for x in xs for layer in layers]))
  seconds = timed(lambda: step(*xs), 10) / len(layers) / len(xs)
  return size / seconds / 1e9, seconds * 1e6

def expert_speed(name: str, experts: int, rows: int, n: int) -> tuple[float, float]:
  """Returns the same for matrices that tokens choose: USED of `experts` at a time, until all were chosen once."""
  from bench.random_model import quant_named
  from tinygrad import Tensor, TinyJit, dtypes
  from tinygrad_llm.device.bandwidth import timed
  from tinygrad_llm.weights.weight import Weight
  kind, rng = quant_named(name), np.random.default_rng(0)
  (layer,) = linear(kind, experts * rows, n, 1)
  (held,) = layer.weights
  weight = Weight(kind, held.stored, (1, experts, rows, n), held.layout)
  x = Tensor(rng.standard_normal((1, n), np.float32)).realize()
  chosen = [Tensor(rng.permutation(experts)[:USED].astype(np.int32), dtype=dtypes.int32).realize()
            for _ in range(experts // USED)]
  step = TinyJit(lambda x: Tensor.realize(*[(x * weight.experts(ids)).sum(-1) for ids in chosen]))
  seconds = timed(lambda: step(x), 10) / len(chosen)
  return USED * rows * kind.row_nbytes(n) / seconds / 1e9, seconds * 1e6

def tiny_logits() -> np.ndarray:
  """
  Returns the tiny model's logits, (STEPS, vocab) float32: after a prompt, and after each token that follows.

  Activations are float32.
  """
  from bench.random_model import TINY, write_random
  from tinygrad_llm import load
  from tinygrad_llm.bench import Runner, random_tokens
  with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, NO_Q8_ACTIVATIONS="1"):
    llm = load(str(write_random(pathlib.Path(folder, "tiny.gguf"), TINY)), max_context=64)
  runner = Runner(llm, random_tokens(TINY.vocab, PROMPT + STEPS))
  rows = [runner.prompt(PROMPT).copy()]
  rows += [runner.step(i).copy() for i in range(PROMPT, PROMPT + STEPS - 1)]
  return np.stack(rows)

def record() -> None:
  """Writes EXPECTED. Needs gguf-py; run it with DEV=CPU NO_PATCHES=1."""
  from bench.random_model import random_rows
  from tinygrad_llm.quants.table import QUANT_TYPES, reference
  x = check_input().astype(np.float64)
  weights = {qt.name: reference(qt, random_rows(qt, ROWS, N, 0), N) for qt in QUANT_TYPES.values()}
  products = {name: w.astype(np.float64) @ x for name, w in weights.items()}
  np.savez_compressed(EXPECTED, **products, logits=tiny_logits())  # type: ignore[arg-type]

# *** the parent

def run_part(name: str, args: argparse.Namespace, limit: float, copy_gbs: float) -> tuple[list[Row], dict[str, Any]]:
  """Runs a part, prints its rows as they come, and returns rows and figures. A failed part's last row says how."""
  command = [sys.executable, str(HERE), "--part", name, "--copy-gbs", str(copy_gbs)]
  command += ["--small" if args.small else "--no-small", "--gpu", args.gpu]
  if args.model: command += ["--model", str(args.model)]
  rows, figures, done, start = list[Row](), dict[str, Any](), False, time.perf_counter()
  with tempfile.TemporaryFile("w+", errors="replace") as errors, subprocess.Popen(
      command, env=os.environ | PARTS[name][2], stdout=subprocess.PIPE, stderr=errors, text=True,
      start_new_session=True) as child:
    def end() -> None:  # ends the compile workers, too: they hold the pipe open
      with contextlib.suppress(ProcessLookupError): os.killpg(child.pid, signal.SIGKILL)
    timer = threading.Timer(limit, end)
    timer.start()
    try:
      assert child.stdout is not None
      for line in child.stdout:
        if not line.startswith("@"): continue
        kind, value = json.loads(line[1:])
        if kind == "row":
          rows.append(tuple(value))
          show(rows[-1])
        else: figures, done = value, True
      code = child.wait()
    finally:
      timer.cancel()
      end()
    if not done:
      errors.seek(0)
      last = next((x.strip() for x in reversed(errors.read().splitlines()) if x.strip()), f"exit code {code}")
      late = time.perf_counter() - start > limit - 1
      optional = name in ("nv", *SEARCHES) or late and name.strip("8") in ("copy", "matvec", "speed")
      problem = f"stopped after {limit:.0f} s" if late else f"failed: {last.removeprefix('error: '):.200}"
      rows.append((name, None if optional else False, problem))
      show(rows[-1])
  figures["seconds"] = time.perf_counter() - start
  return rows, figures

def show(row: Row) -> None:
  print(f"| {row[0]:34s} | {'' if row[1] is None else 'ok' if row[1] else 'WRONG':5s} | {row[2]}", flush=True)

def gpu_name(arch: str) -> tuple[str, str]:
  """Returns (name, driver version) from nvidia-smi. Elsewhere, the name is the device and its architecture."""
  device = os.environ["DEV"].split(":")[0]
  if device in ("CUDA", "NV"):
    try:
      done = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                            capture_output=True, text=True, timeout=30)
      if done.returncode == 0 and "," in done.stdout:
        name, driver = done.stdout.splitlines()[0].rsplit(",", 1)
        return name.strip(), driver.strip()
    except (OSError, subprocess.TimeoutExpired): pass
  return f"{device} {arch.split(',')[0]}".strip(), ""

def beside(parts: dict[str, dict[str, Any]], card: str) -> list[Row]:
  """Compares the measured speed with its estimate, and with published figures of llama.cpp on this card."""
  from bench.published import MODEL, published
  speed, expected = (parts.get(name, {}).get("figures", {}) for name in ("speed", "estimates"))
  rows = list[Row]()
  for test in ("tg128", "pp128", "pp512"):
    if test in speed and test in expected: rows.append((
      f"{test}, of its estimate", None, f"{speed[test]['ts'] * expected[test]['us'] / 1e6:.0%} of the tokens a second"))
  if (known := published(card)) is None: return rows
  rows.append((f"llama.cpp, {MODEL}", None, f"published: tg128 {known.tg128:,.0f} tok/s, {known.gbs:,.0f} GB/s; pp512 "
               f"{known.pp512:,.0f} tok/s, {known.tflops:,.0f} TFLOPS"))
  if "tg128" in speed: rows.append(("tg128, of llama.cpp's GB/s", None,
    f"{speed['tg128']['ts'] * speed['bytes_per_token'] / 1e9 / known.gbs:.0%}"))
  if "pp512" in speed: rows.append(("pp512, of llama.cpp's TFLOPS", None,
    f"{speed['pp512']['ts'] * 2 * speed['n_params'] / 1e12 / known.tflops:.0%}"))
  return rows

def parent(args: argparse.Namespace) -> int:
  from bench.machine import machine, now, result_file, versions
  date, start, parts, right, driver = now(), time.perf_counter(), dict[str, Any](), True, ""
  device = os.environ["DEV"].split(":")[0]
  names = [name for name in PARTS if device == "CUDA" or name != "nv" and (device == "NV" or not name.endswith("8"))]
  names = [name for name in names if args.parts is None or name in ("device", *args.parts)]
  print(f"| {'check':34s} |       | {os.environ['DEV']}, {date}\n|{'-' * 36}|-------|{'-' * 60}")
  for name in names:
    limit = min(PARTS[name][1] * SLOW.get(device, 1), TOTAL_S * SLOW.get(device, 1) - (time.perf_counter() - start))
    if limit < 5:
      show((name, None, "left out: the time is up"))
      continue
    rows, figures = run_part(name, args, limit, parts.get("copy", {}).get("figures", {}).get("gbs", 0))
    parts[name] = {"rows": rows, "figures": figures}
    right &= all(row[1] is not False for row in rows)
    if name == "device":
      args.gpu, driver = gpu_name(str(figures.get("arch", "")))
      if not right: break
  for row in (compared := beside(parts, args.gpu)): show(row)
  report = {"date": date, "right": right, "gpu": args.gpu, "driver": driver, "device": os.environ["DEV"],
            "seconds": time.perf_counter() - start, "machine": machine(), "versions": versions(), "parts": parts,
            "beside": compared}
  out = args.out or result_file("gpu-" + re.sub(r"[^A-Za-z0-9]+", "-", args.gpu).strip("-").lower(), date)
  out.parent.mkdir(parents=True, exist_ok=True)
  out.write_text(json.dumps(report, indent=1) + "\n")
  print(f"\n{'all numbers are right' if right else 'SOMETHING IS WRONG'}; {report['seconds']:.0f} s; written: {out}")
  return 0 if right else 1

def asked_parts(text: str) -> list[str]:
  from tinygrad_llm.errors import InputError
  for name in (names := text.split(",")):
    if name not in PARTS: raise InputError(f"--parts {name!r:.40}: no such part; use some of {','.join(PARTS)}")
  return names

def _main() -> None:
  os.environ.setdefault("DEV", "CUDA")
  device = os.environ["DEV"].split(":")[0]
  from tinygrad_llm.command import Parser
  from tinygrad_llm.device.compiler import use_c_compiler
  from tinygrad_llm.device.cuda import find_cuda
  parser = Parser(prog="bench/gpu_check.py", description=(__doc__ or "").strip().split("\n")[0])
  parser.add_argument("--model", type=pathlib.Path, metavar="M", help="a GGUF to time (default: random, of 1B shape)")
  parser.add_argument("--small", action=argparse.BooleanOptionalAction, default=device in ("CPU", "CL"),
                      help="small shapes (default on CPU and CL)")
  parser.add_argument("--parts", type=asked_parts, metavar="P,Q", help=f"besides device: of {','.join(PARTS)}")
  parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="default: bench/results/gpu-NAME-DATE.json")
  parser.add_argument("--record", action="store_true", help="write the numbers to expect (DEV=CPU NO_PATCHES=1)")
  parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
  parser.add_argument("--copy-gbs", type=float, default=0.0, help=argparse.SUPPRESS)
  parser.add_argument("--gpu", default="", help=argparse.SUPPRESS)
  args = parser.parse_args()
  if device == "CPU": use_c_compiler()  # CC, for this process and the parts
  else: find_cuda()  # the same for NVRTC
  if args.record: return record()
  if args.part is None: sys.exit(parent(args))
  def send(*message: Any) -> None: print("@" + json.dumps(message), flush=True)
  figures: dict[str, Any] = {}
  for row in PARTS[args.part][0](args, figures): send("row", row)
  send("figures", figures)

def main() -> None:
  stub_missing()
  from tinygrad_llm.command import guarded
  guarded(_main)

if __name__ == "__main__": main()
