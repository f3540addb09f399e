"""
Records this machine's measurements during a kernel search, for tests/search/test_beam.py, which replays them.

  NUM_CPU_THREADS=2 python tests/tools/record_search.py      writes tests/data/search.json (a minute)
"""
import argparse
import json
import os
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ |= {"DEV": "CPU", "NO_GEMV": "1"}  # with gemv the search would find little
from tinygrad_llm.device.compiler import use_c_compiler

use_c_compiler()
from tests.support import search_kernel
from tinygrad import Device
from tinygrad_llm.patches.cache import schedules
from tinygrad_llm.patches.search import measure, tuner
from tinygrad_llm.patches.search.beam import Search
from tinygrad_llm.patches.search.sandbox import Sandbox
from tinygrad_llm.patches.search.space import space

SHAPE = 1024, 768, "half"

class Recorder(measure.OnDevice):
  """Measures on the device and records the answers."""
  record: dict[str, list[Any]]
  def keep(self, kind: str, many: Any, answers: Any) -> Any:
    for opts, answer in zip(many, answers):
      self.record.setdefault(kind, []).append([None if opts is None else schedules.to_json(opts), answer])
    return answers
  def estimate(self, many: Any) -> Any: return self.keep("estimate", many, super().estimate(many))
  def time(self, many: Any, best: float) -> Any: return self.keep("time", many, super().time(many, best))
  def compare(self, many: Any) -> Any: return self.keep("compare", many, super().compare(many))
  def check(self, opts: Any) -> Any: return self.keep("check", [opts], [super().check(opts)])[0]

def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.parse_args()
  kernel = search_kernel.product(*SHAPE)
  found = space(kernel.ast, Device[kernel.device].renderer)
  with Sandbox(2) as sandbox:
    tuner.begin(kernel, sandbox)
    recorder = Recorder(sandbox, float("inf"), {}, lambda opts: None, lambda opts, what: None)
    recorder.record = {}
    result = Search(found, tuner.present(found), [], recorder).run()
  path = ROOT / "tests" / "data" / "search.json"
  opts = None if result.opts is None else schedules.to_json(result.opts)
  rows = {kind: list({json.dumps(row[0]): row for row in rows}.values()) for kind, rows in recorder.record.items()}
  path.write_text(json.dumps({"shape": SHAPE, "winner": opts, "ratio": result.ratio, "answers": rows}) + "\n")
  print(f"{path}: {result.timed} timed, ratio {result.ratio:.3f}, {opts}")

if __name__ == "__main__": main()
