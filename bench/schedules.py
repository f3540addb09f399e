"""
The cost model against this CPU: times random schedules of three kernels and compares them with the estimates.

  python bench/schedules.py [--count N] [--seed S] [--out FILE]     make cost-model

A kernel's schedules are drawn as in a search: from the heuristic's or from nothing, with up to four more of tinygrad's
actions. They are timed in turns, cold: each run takes the next of several copies that together exceed the caches. The
table has a line per kernel. All results go to bench/results/schedules-DATE.json, which tests/search reads.
"""
from __future__ import annotations
import os
import pathlib
import sys
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
# tinygrad reads these variables once, at import. With flash_decoding, softmax V would not be a kernel of its own
if __name__ == "__main__": os.environ |= {"DEV": "CPU", "NO_FLASH_DECODING": "1"}
import json, random, statistics
from typing import Any, NamedTuple
import numpy as np
from bench.machine import machine, now, result_file, versions
from bench.models import model
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError

ROUNDS, SLOW = 7, 0.2  # SLOW: seconds; a slower schedule is left out
ACTIONS, NODES = 4, 5000

class Kernel(NamedTuple):
  """A kernel of the 1B shape: the type of the model's weights, the kernel's role, and the depth of the KV cache."""
  types: str
  role: str
  depth: int

KERNELS = {"Q4_K x": Kernel("Q4_K", "blk.*.attn_output", 0), "F16 x": Kernel("F16", "blk.*.attn_output", 0),
           "softmax V": Kernel("F16", "kv", 2047)}

def call_of(kernel: Kernel) -> tuple[Any, dict[str, int]]:
  """Returns the scheduled call of a kernel, and the values of its variables."""
  from tinygrad.uop.ops import Ops
  from tinygrad_llm.analysis.programs import Reads
  from tinygrad_llm.kernels import decode_step
  step = decode_step(str(model("llama-1b", kernel.types, 1)), depth=kernel.depth)
  kv = {c.uop.base for c in step.caches}
  found = [call for call in step.linear.src if call.src[0].op is Ops.SINK
           and Reads.of(call, step.weights, kv).role == kernel.role
           and any(u.op is Ops.REDUCE for u in call.src[0].toposort())]
  return found[-1], step.variables

def lowered(call: Any, opts: tuple) -> Any:
  """Compiles the call's kernel with these opts."""
  from tinygrad import Device, codegen
  from tinygrad_llm.analysis.programs import from_scratch
  from tinygrad_llm.patches.search.space import with_opts
  with from_scratch(): return codegen.to_program(with_opts(call.src[0], opts), Device["CPU"].renderer)

def estimate(program: Any, variables: dict[str, int], card: Any) -> Any:
  """Returns the cost model's estimate for a compiled kernel."""
  from tinygrad.uop.ops import sym_infer
  from tinygrad_llm.patches.search.cost import cost_model
  sink, linear = program.src[:2]
  return cost_model.estimate(cost_model.work(linear.src, int(sym_infer(sink.arg.estimates.mem, variables)), variables),
                             card)

def draw(ast: Any, rng: random.Random) -> tuple:
  """Draws the opts of a random schedule. All kinds of actions are equally likely."""
  from tinygrad import Device
  from tinygrad.codegen.opt import heuristic, search
  from tinygrad.codegen.opt.postrange import Scheduler
  k = Scheduler(ast, Device["CPU"].renderer)
  k.convert_loop_to_global()
  if rng.random() < 0.5:
    chosen = heuristic.hand_coded_optimizations(k.copy()).applied_opts
    for opt in chosen[:rng.randint(0, len(chosen))]: k.apply_opt(opt)
  for _ in range(rng.randint(0, ACTIONS)):
    kinds: dict[Any, list[Scheduler]] = {}
    for acted in search.get_kernel_actions(k, include_0=False).values():
      kinds.setdefault(acted.applied_opts[-1].op, []).append(acted)
    if not kinds: break
    k = rng.choice(kinds[rng.choice(sorted(kinds, key=lambda op: op.name))])
  return tuple(k.applied_opts)

def arguments(call: Any) -> list[list[Any]]:
  """Allocates copies of a kernel's arguments with random bits that are finite as floats and as pairs of halves."""
  from tinygrad.device import Buffer
  from tinygrad.engine.realize import get_call_arg_uops
  from tinygrad_llm.patches.search.candidates import COLD
  args = get_call_arg_uops(call)
  copies = max(2, COLD // sum(a.max_numel() * a.dtype.itemsize for a in args))
  found = [[Buffer("CPU", a.max_numel(), a.dtype).allocate() for a in args] for _ in range(copies)]
  for buffer in (b for buffers in found for b in buffers):
    memory = np.frombuffer(buffer.as_memoryview(force_zero_copy=True), np.uint8)
    words = np.random.default_rng(0).integers(0, 2**32, -(-len(memory) // 4), np.uint32) & 0x3bff3bff | 0x04000400
    memory[:] = words.view(np.uint8)[:len(memory)]
  return found

def measure(name: str, count: int, seed: int) -> list[dict[str, Any]]:
  """Returns {kernel, opts, us, estimate_us, bound} of `count` schedules with different code."""
  from tinygrad import Device
  from tinygrad.codegen.opt import search
  from tinygrad_llm.patches.search import space
  from tinygrad_llm.patches.search.cost.hardware import cards
  call, variables = call_of(KERNELS[name])
  ast = space.before_opts(call.src[0], Device["CPU"].renderer)
  rng, copies = random.Random(seed), arguments(call)
  card = cards(Device["CPU"].renderer.target)[0]
  codes, drawn = set[str](), list[tuple[tuple, Any, list[float]]]()
  def run(program: Any, i: int) -> float:
    return search._time_program(program, variables, copies[i % len(copies)], cnt=1)[0]
  while len(drawn) < count:
    program = lowered(call, opts := draw(ast, rng))
    if (code := program.src[2].arg) in codes or len(program.src[1].src) > NODES: continue
    codes.add(code)
    if run(program, 0) <= SLOW: drawn.append((opts, program, []))
    print(f"\r{name}: {len(drawn)} of {count}", end="", file=sys.stderr, flush=True)
  for turn in range(ROUNDS):
    for i, (_, program, seconds) in enumerate(drawn):
      seconds.append(statistics.median(run(program, turn + i + j) for j in range(3)))
  print("\r\x1b[K", end="", file=sys.stderr)
  return [{"kernel": name, "opts": [[opt.op.name, opt.axis, opt.arg] for opt in opts],
           "us": round(statistics.median(seconds) * 1e6, 1), "estimate_us": round(e.us, 1), "bound": e.bound}
          for opts, program, seconds in drawn for e in [estimate(program, variables, card)]]

def rank_correlation(a: list[float], b: list[float]) -> float:
  """Returns Spearman's rank correlation of two lists of times."""
  return float(np.corrcoef([np.argsort(np.argsort(x)) for x in (a, b)])[0, 1])

def table(rows: list[dict[str, Any]]) -> str:
  lines = ["kernel      schedules  us, best to worst  rank correlation  estimate / time, median"]
  for name in dict.fromkeys(row["kernel"] for row in rows):
    of = [row for row in rows if row["kernel"] == name]
    us, guesses = [row["us"] for row in of], [row["estimate_us"] for row in of]
    ratio = statistics.median(g / t for g, t in zip(guesses, us))
    lines.append(f"{name:10s}  {len(of):9d}  {min(us):6.0f} to {max(us):7.0f}  {rank_correlation(us, guesses):16.2f}  "
                 f"{ratio:23.2f}")
  return "\n".join(lines)

def _main() -> None:
  parser = Parser(prog="python bench/schedules.py", description="Estimates of random schedules beside their times.")
  parser.add_argument("--count", type=int, default=30, help="of each kernel (default 30)")
  parser.add_argument("--seed", type=int, default=1)
  parser.add_argument("--out", help="JSON (default: bench/results/schedules-DATE.json)")
  args = parser.parse_args()
  if args.count < 3: raise InputError(f"--count {args.count}: give at least 3 schedules")
  os.environ.setdefault("PARALLEL", "0")
  from tinygrad_llm.device.device import open_target
  open_target(None)
  date, rows = now(), [row for name in KERNELS for row in measure(name, args.count, args.seed)]
  found = {"date": date, "machine": machine(), "versions": versions(), "seed": args.seed, "schedules": rows}
  path = pathlib.Path(args.out) if args.out else result_file("schedules", date)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(found, indent=1) + "\n")
  print(table(rows))
  print(path)

if __name__ == "__main__": guarded(_main)
