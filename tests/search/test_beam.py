"""The search algorithm with given measurements: its requests, its winner, and its determinism."""
import hashlib
import json
import math
import pathlib
import subprocess
import sys

from tests.support import child
import pytest
from tests.support import search_kernel
from tinygrad import Device
from tinygrad.codegen.opt import OptOps
from tinygrad_llm.patches.cache import schedules
from tinygrad_llm.patches.search import beam, tuner
from tinygrad_llm.patches.search.beam import Before, Search
from tinygrad_llm.patches.search.space import space

class Answers:
  """
  A fake Measure whose times depend only on the opts, and are shorter the more outputs a thread has.

  wrong, dead: predicates of candidates with wrong results, and of candidates that do not run.
  """
  def __init__(self, seed: int = 0, budget: int = 10**9, wrong=lambda opts: False, dead=lambda opts: False):
    self.seed, self.budget, self.wrong, self.dead = seed, budget, wrong, dead
    self.asked: list = []
    self.compiled: list = []

  def number(self, opts) -> float:
    text = json.dumps([self.seed, None if opts is None else schedules.to_json(opts)])
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32

  def seconds(self, opts) -> float:
    more = sum(math.log2(o.arg) for o in opts or () if o.op is OptOps.UPCAST and o.arg)
    return 1e-4 * (1.0 if opts is None else 1.1 - 0.1 * min(more, 4) + 0.05 * self.number(opts))

  def estimate(self, many):
    self.asked += many
    def answer(o): return self.seconds(o) * 1e6, str(self.number(o))
    return ["it is too large" if self.dead(o) and self.number(o) < 0.1 else answer(o) for o in many]

  def time(self, many, best):
    self.compiled += many
    return ["it died" if self.dead(o) else self.seconds(o) * (0.1 if self.wrong(o) else 1) for o in many]

  def compare(self, many): return [[self.seconds(o) * (0.1 if self.wrong(o) else 1)] * 5 for o in many]
  def check(self, opts): return "wrong numbers" if self.wrong(opts) else None
  def over(self): return len(self.compiled) >= self.budget

def run(measure, **how):
  kernel = search_kernel.product()
  found = space(kernel.ast, Device[kernel.device].renderer)
  return Search(found, tuner.present(found), [], measure, **how).run()

def test_finds_faster_schedule():
  result = run(Answers())
  assert result.complete
  assert result.opts is not None
  assert result.ratio < beam.CLEAR
  assert result.after == pytest.approx(result.before * result.ratio)
  assert result.timed > 5

@pytest.mark.parametrize("seed", range(4))
def test_search_is_deterministic(seed): assert run(Answers(seed)) == run(Answers(seed))

def test_no_winner_without_speedup():
  class Same(Answers):
    def seconds(self, opts): return 1e-4 * (1 + 0.005 * self.number(opts))
  result = run(Same())
  assert (result.opts, result.ratio) == (None, 1.0)

@pytest.mark.parametrize("seed", range(3))
def test_wrong_results_never_win(seed):
  """A wrong candidate never wins, however fast, and its neighbours are not searched."""
  answers = Answers(seed, wrong=lambda o: o is not None and answers.number(o) < 0.2)
  result = run(answers)
  assert result.opts is not None
  assert not answers.wrong(result.opts)
  assert "wrong numbers" in result.refused.values()

def test_crashing_candidates_are_remembered():
  answers = Answers(dead=lambda o: o is not None and answers.number(o) < 0.5)
  result = run(answers)
  assert not answers.dead(result.opts)
  assert {"it died", "it is too large"} <= set(result.refused.values())
  assert not set(result.refused) & {result.opts, Before}

def test_kernel_that_never_runs():
  result = run(Answers(dead=lambda o: True))
  assert math.isnan(result.before)
  assert result.opts is None

def test_stops_at_budget():
  answers = Answers(budget=3)
  assert not run(answers).complete
  assert len(answers.compiled) < 20

def test_stops_when_good_enough():
  answers = Answers()
  result = run(answers, enough=1.0)
  assert result.complete
  assert len(answers.compiled) <= 2  # the present schedule, and the heuristic's opts, which may be the same code

RECORDED = pathlib.Path(__file__).parents[1] / "data" / "search.json"

class Recorded:
  """A fake Measure with answers recorded on a machine (tests/tools/record_search.py)."""
  def __init__(self, record):
    self.record = {kind: {json.dumps(opts): answer for opts, answer in rows} for kind, rows in record.items()}

  def answer(self, kind, opts): return self.record[kind][json.dumps(None if opts is None else schedules.to_json(opts))]
  def estimate(self, many): return [a if isinstance(a := self.answer("estimate", o), str) else tuple(a) for o in many]
  def time(self, many, best): return [self.answer("time", o) for o in many]
  def compare(self, many): return [self.answer("compare", o) for o in many]
  def check(self, opts): return self.answer("check", opts)
  def over(self): return False

def replay() -> dict:
  """A search with the recorded answers."""
  record = json.loads(RECORDED.read_text())
  kernel = search_kernel.product(*record["shape"])
  found = space(kernel.ast, Device[kernel.device].renderer)
  result = Search(found, tuner.present(found), [], Recorded(record["answers"])).run()
  return {"winner": None if result.opts is None else schedules.to_json(result.opts), "ratio": result.ratio}

def test_recorded_answers_have_the_same_winner():
  record = json.loads(RECORDED.read_text())
  assert child.call(replay, NO_GEMV="1").value == {"winner": record["winner"], "ratio": record["ratio"]}
  assert len(record["answers"]["time"]) > 5
  assert record["ratio"] < 0.9

@pytest.mark.parametrize(("args", "code"), [(["--help"], 0), (["--nothing"], 2)])
def test_help_and_bad_flags_do_not_record(args, code):
  before = RECORDED.stat()
  script = child.ROOT / "tests" / "tools" / "record_search.py"
  done = subprocess.run([sys.executable, str(script), *args], env=child.environment(), capture_output=True, timeout=120)
  assert done.returncode == code
  assert RECORDED.stat().st_mtime_ns == before.st_mtime_ns
