"""
One page on a model: kernels and estimates for each target, a profile on this machine, and the speed of its peers.

  python bench/report.py -m model.gguf [--targets T ..] [-d 4096] [-p 512] [--peers NAMES] [--out FILE]   make report

The page joins the results of `kernels`, `bench --profile` and bench/peers.py, each run in its own process. It goes to
FILE.md and all figures go to FILE.json (default: bench/results/report-DATE). The README's performance section is made
from such a file.
"""
from __future__ import annotations
import pathlib
import sys
ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import json, os, subprocess, tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from bench.machine import cores, machine, now, result_file, versions
from bench.peers import LLAMA, OURS
from tinygrad_llm.bench import ModelInfo, in_size
from tinygrad_llm.command import Parser, guarded
from tinygrad_llm.errors import InputError
from tinygrad_llm.files.gguf import open_gguf
from tinygrad_llm.files.hub import resolve
from tinygrad_llm.nn.keys import check_architecture

TARGETS = ("CPU:x86-64-v3", "CPU:x86-64-v4", "CPU:arm64", "CUDA:sm_80", "CUDA:sm_86", "CUDA:sm_89", "CUDA:sm_90",
           "NV:PTX:sm_90", "METAL:Apple7", "METAL:Apple9")
WORST = 10
KEPT = ("role", "part", "count", "bytes", "ops", "name", "types", "global_size", "local_size", "serial", "registers",
        "stack", "load_bytes", "lines", "estimate_us", "bound")  # columns of a kernel's row
Row = dict[str, Any]

def _run(*args: str, **env: str) -> Any:
  """Returns the JSON that a command prints. InputError with its last line if it fails."""
  done = subprocess.run([sys.executable, *args], capture_output=True, text=True, cwd=ROOT, env=os.environ | env)
  if done.returncode:
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    raise InputError(last.removeprefix("error: "))
  return json.loads(done.stdout)

def steps_of(depth: int, prompt: int) -> dict[str, tuple[int, int]]:
  """Returns {name of a step: (depth, tokens of a prompt's chunk)}."""
  return {"decode": (0, 0), f"decode @ d{depth}": (depth, 0), f"prompt of {prompt}": (0, prompt)}

def compiled(path: str, target: str, depth: int, prompt: int) -> Row:
  """Returns the output of `kernels` for a target's steps; {"failed": why} if the target does not open here."""
  context = str(max(depth + 1, prompt))
  found: Row = {}
  for name, (d, p) in steps_of(depth, prompt).items():
    try: step = _run("-m", "tinygrad_llm.kernels", "-m", path, "--target", target, "-d", str(d), "-p", str(p),
                     "--max-context", context, "--json")
    except InputError as e: return {"failed": str(e)}
    found[name] = step | {"roles": [{key: row[key] for key in KEPT} for row in step["roles"]]}
  return found

def least_us(row: Row, card: Row) -> float:
  """Returns the us that a kernel's or a step's bytes take at the card's bandwidth."""
  return float(row["bytes"] / card["gbs"] * 1e-3)

def worst(step: Row) -> list[Row]:
  """Returns the rows of a step whose kernels together lose most time against their bytes, as estimated."""
  return sorted(step["roles"], key=lambda r: r["estimate_us"] - least_us(r, step["card"]), reverse=True)[:WORST]

def measured(path: str, depth: int, prompt: int, peers: str, repetitions: int) -> Row:
  """Returns profiles of decode steps and of a prompt, and the peers' speed on the same file."""
  asked = ["-m", path, "-r", str(repetitions)]
  profiles = [_run("-m", "tinygrad_llm.bench", *asked, "--profile", "-o", "json", "-p", p, "-n", n, "-d", d)["profiles"]
              for p, n, d in (("0", "16", f"0,{depth}"), (str(prompt), "0", "0"))]
  found: Row = {"profiles": [p for part in profiles for p in part]}
  if peers != "none":
    with tempfile.TemporaryDirectory() as folder:
      found["peers"] = _run("bench/peers.py", *asked, "-p", "128", "-n", "32", "--peers", peers, "--json", "--out",
                            f"{folder}/peers.json")
  return found

# *** the page ***

def table(head: list[str], rows: list[list[str]], words: int = 1) -> str:
  """Returns a Markdown table. The first `words` columns are words, the rest numbers."""
  lines = [head, ["---" if i < words else "---:" for i in range(len(head))], *rows]
  return "".join("| " + " | ".join(line) + " |\n" for line in lines)

def targets_table(report: Row) -> str:
  rows = []
  for target, steps in report["targets"].items():
    if "failed" in steps: continue
    for name, step in steps.items():
      least = least_us(step, step["card"])
      rows.append([target, name, f"{step['kernels']}", f"{step['bytes'] / 1e6:.0f}", step["card"]["name"],
                   f"{step['estimate_us']:,.0f}", f"{least / step['estimate_us']:.0%}"])
  return table(["target", "step", "kernels", "MB", "card", "us, estimated", "bytes at bandwidth, of that"], rows, 2)

def worst_table(step: Row) -> str:
  def sizes(r: Row) -> str:
    return " of ".join("x".join(map(str, dims)) for dims in (r["global_size"], r["local_size"]) if dims)
  rows = [[r["part"] if r["role"] in ("kv", "act") else r["role"], r["bound"], sizes(r), f"{r['count']}",
           f"{r['estimate_us']:,.1f}", f"{least_us(r, step['card']):,.1f}", f"{r['serial']:,}",
           "/".join("-" if n is None else f"{n:g}" for n in r["lines"] or [None]),
           "-" if r["registers"] is None else f"{r['registers']}"] for r in worst(step)]
  return table(["kernel", "bound by", "grid", "n", "us, estimated", "us for its bytes", "serial steps", "lines a load",
                "registers"], rows, 3)

def profile_table(profile: Row) -> str:
  rows = [[r["name"], f"{r['kernels']}", f"{r['us']:,.1f}", f"{r['share']:.1%}", f"{r['bytes'] / 1e6:.2f}",
           "" if r["gbs"] is None else f"{r['gbs']:.1f}", "" if r["peak_share"] is None else f"{r['peak_share']:.0%}"]
          for r in profile["rows"]]
  rows += [["sum", "", f"{profile['sum_us']:,.1f}", "", "", "", ""],
           ["step as measured", "", f"{profile['measured_us']:,.1f}", "", "", "", ""]]
  return table(["part", "kernels", "us", "share", "MB", "GB/s", "of peak"], rows)

def peers_table(peers: Row) -> str:
  rows = [[r["test"], r["peer"], f"{r['median_ts']:.1f}", f"{r['vs'].get(LLAMA, 0):.2f}" if r["peer"] == OURS else ""]
          for model in peers["models"] for r in model["rows"]]
  return table(["test", "", "tokens a second", "of llama.cpp's"], rows, 2)

def page(report: Row) -> str:
  m, test = report["machine"], report["tests"]
  parts = [f"# {report['file']}: {report['model']}, {in_size(report['size'])}\n",
           f"{report['date']}, commit {report['versions']['commit']}, {m['cores']} cores ({m['cpu']}).\n",
           "## What its steps compile to\n", "Times are estimates of the cost model (patches/search), not measured.\n",
           targets_table(report)]
  parts += [f"{target}: left out, {steps['failed']}\n" for target, steps in report["targets"].items()
            if "failed" in steps]
  parts.append(f"## The {WORST} worst kernels of a step\n\nBy the time above what their bytes take, as estimated; all "
               "kernels of a row together.\n")
  for target, steps in report["targets"].items():
    if "failed" in steps: continue
    for name in [name for name in steps if name != "decode"]:
      parts += [f"### {target}, {name}, {steps[name]['card']['name']}\n", worst_table(steps[name])]
  if "measured" in report:
    parts.append(f"## Where the time goes on {report['device']}\n")
    for profile, name in zip(report["measured"]["profiles"], steps_of(test["depth"], test["prompt"])):
      parts += [f"{name}, kernels timed {profile['timed']}; read bandwidth {profile['peak_gbs']:.1f} GB/s\n",
                profile_table(profile)]
    if "peers" in report["measured"]: parts += ["## Peers\n", peers_table(report["measured"]["peers"])]
  return "\n".join(parts)

def _main() -> None:
  parser = Parser(prog="python bench/report.py", description="One page of a model: kernels, estimates, profile, peers.")
  parser.add_argument("-m", "--model", required=True, help="a .gguf file, an alias or hf:owner/repo")
  parser.add_argument("--targets", nargs="*", default=TARGETS, metavar="T", help=f"(default {' '.join(TARGETS)})")
  parser.add_argument("-d", "--depth", type=int, default=4096, help="of the deeper step (default 4096)")
  parser.add_argument("-p", "--prompt", type=int, default=512, help="tokens of the prompt (default 512)")
  parser.add_argument("--peers", default=LLAMA, help="as bench/peers.py takes them, or none (default llama.cpp)")
  parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="N")
  parser.add_argument("--estimates-only", action="store_true", help="nothing is run or timed")
  parser.add_argument("--out", type=pathlib.Path, help="without .md and .json (default bench/results/report-DATE)")
  args = parser.parse_args()
  for name, value in (("--depth", args.depth), ("--prompt", args.prompt), ("-r", args.repetitions)):
    if value < 1: raise InputError(f"{name} {value}: give a number from 1")
  info = ModelInfo.from_gguf(open_gguf(path := resolve(args.model, check_architecture)))
  if (most := max(args.depth + 17, args.prompt)) > info.context_length:
    raise InputError(f"{path}: {most} positions are needed, its context is {info.context_length}; use smaller -d or -p")
  date = now()
  def say(target: str) -> Row:
    print(f"{target}: compiling", file=sys.stderr, flush=True)
    return compiled(str(path), target, args.depth, args.prompt)
  with ThreadPoolExecutor(cores()) as pool: targets = dict(zip(args.targets, pool.map(say, args.targets)))
  report: Row = {
    "date": date, "machine": machine(), "versions": versions(), "device": os.environ.get("DEV", "CPU"),
    "file": path.name, "model": info.name, "size": info.size, "bytes_per_token": info.bytes_per_token,
    "tests": {"depth": args.depth, "prompt": args.prompt}, "targets": targets}
  if not args.estimates_only:
    print("measuring", file=sys.stderr, flush=True)
    report["measured"] = measured(str(path), args.depth, args.prompt, args.peers, args.repetitions)
  out = args.out or result_file("report", date).with_suffix("")
  out.parent.mkdir(parents=True, exist_ok=True)
  for suffix, text in (".json", json.dumps(report, separators=(",", ":")) + "\n"), (".md", page(report)):
    out.with_name(out.name + suffix).write_text(text)
  print(f"written: {out}.md, {out}.json")
  if all("failed" in steps for steps in targets.values()): sys.exit(1)

def main() -> None:
  os.environ.setdefault("DEV", "CPU")
  guarded(_main)

if __name__ == "__main__": main()
