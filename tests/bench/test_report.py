"""bench/report.py: one page with all measurements and estimates."""
import json
import re
import subprocess
import sys

import pytest
from tests.support.extended import extended
from bench import report
from tests.support.synthetic import write_model

def row(name: str, us: float, nbytes: int, **more) -> dict:
  return {"role": name, "part": name, "count": 1, "bytes": nbytes, "ops": 1, "name": "r", "types": [],
          "bound": "memory", "global_size": [8, 1, 1], "local_size": [32, 1, 1], "serial": 1, "registers": 32,
          "stack": 0, "load_bytes": 16, "lines": [4.0, None], "estimate_us": us} | more

def step(*rows: dict) -> dict:
  return {"target": "CUDA:sm_80", "kernels": len(rows), "bytes": sum(r["bytes"] for r in rows), "ops": 1,
          "card": {"name": "A100", "gbs": 1000}, "estimate_us": sum(r["estimate_us"] for r in rows),
          "roles": list(rows)}

def test_worst_kernels_exceed_bandwidth_bound_most():
  """The worst kernels exceed their bandwidth bound most: at 1,000 GB/s, 200 MB take 200 us."""
  found = report.worst(step(row("fast", 210, 200_000_000), row("slow", 60, 1000), row("worst", 300, 100_000_000)))
  assert [r["role"] for r in found] == ["worst", "slow", "fast"]
  assert len(report.worst(step(*(row(f"k{i}", i, 0) for i in range(30))))) == report.WORST

def profile(name: str) -> dict:
  part = {"name": "ffn_down", "kernels": 2, "us": 90.0, "share": 0.9, "bytes": 4_000_000, "gbs": 44.4,
          "peak_share": 0.8}
  host = {"name": "host", "kernels": 0, "us": 10.0, "share": 0.1, "bytes": 0, "gbs": None, "peak_share": None}
  return {"name": name, "timed": "in the step", "measured_us": 101.0, "sum_us": 100.0, "peak_gbs": 55.5,
          "rows": [part, host]}

def test_html_page():
  steps = report.steps_of(4096, 512)
  assert list(steps) == ["decode", "decode @ d4096", "prompt of 512"]
  of_target = {name: step(row("act", 30, 1000, part="attention: softmax"), row("blk.*.ffn_up", 20, 10_000_000))
               for name in steps}
  text = report.page({
    "date": "2026-11-22T10:00:00Z", "machine": {"cpu": "Z", "cores": 2}, "versions": {"commit": "abc"}, "device": "CPU",
    "file": "m.gguf", "model": "llama 1B", "size": 1 << 30, "tests": {"depth": 4096, "prompt": 512},
    "targets": {"CUDA:sm_80": of_target, "X:y": {"failed": "no such device"}},
    "measured": {"profiles": [profile(name) for name in steps]}})
  assert "| CUDA:sm_80 | decode | 2 | 10 | A100 | 50 | 20% |" in text
  assert "X:y: left out, no such device" in text
  assert "estimates of the cost model" in text
  # for the step at depth and for the prompt, not for the step at depth 0
  assert text.count("| attention: softmax | memory | 8x1x1 of 32x1x1 | 1 | 30.0 | 0.0 | 1 | 4/- | 32 |") == 2
  assert "| ffn_down | 2 | 90.0 | 90.0% | 4.00 | 44.4 | 80% |" in text
  assert "## Peers" not in text

def run(*args: str) -> subprocess.CompletedProcess[str]:
  command = [sys.executable, str(report.ROOT / "bench" / "report.py"), *args]
  return subprocess.run(command, capture_output=True, text=True)

@extended
def test_report_combines_kernels_output(tmp_path):
  model = write_model(tmp_path / "model.gguf", dim=256, ffn=512, heads=4, layers=1, context=96, types="Q8_0")
  out = tmp_path / "new" / "report"
  done = run("-m", str(model), "--targets", "CPU:x86-64-v3", "NOPE", "-d", "70", "-p", "8", "--estimates-only", "--out",
             str(out))
  assert done.returncode == 0, done.stderr
  assert done.stdout == f"written: {out}.md, {out}.json\n"
  found = json.loads(out.with_suffix(".json").read_text())
  decode, deep, prompt = found["targets"]["CPU:x86-64-v3"].values()
  assert decode["kernels"] == deep["kernels"]
  assert decode["bytes"] < deep["bytes"]
  assert prompt["estimate_us"] > decode["estimate_us"] > 0
  assert "no such device" in found["targets"]["NOPE"]["failed"]
  assert "measured" not in found
  assert "NOPE: left out" in out.with_suffix(".md").read_text()

@pytest.mark.parametrize(("args", "words"), [
  (["-d", "0"], "--depth 0: give a number from 1"), (["-p", "5000"], "its context is 96; use smaller -d or -p"),
  (["-m", "none.gguf"], "none.gguf")])
def test_bad_input_is_one_line(args, words, tmp_path):
  model = write_model(tmp_path / "model.gguf", context=96)
  done = run("-m", str(model), *args)
  assert (done.returncode, done.stderr.count("\n")) == (2, 1)
  assert re.search(re.escape(words), done.stderr)
