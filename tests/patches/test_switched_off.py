"""
Numbers are right whichever passes are off: for each two passes all four combinations of on and off are tested.

The rows are a pairwise covering array; each row is a process that computes a product, sum or attention of each kind.
The effect of a pass on kernels is checked by the pass's own tests.
"""
import itertools
import random

import pytest
from tests.attention.test_attention import MODELS, PROMPTS, errors
from tests.patches import test_codegen
from tests.schedule.test_register_tiles import gated
from tests.support import child
from tests.support.extended import extended, sample
from tests.tiles.test_pack_operands import fixed
from tests.weights.test_expert_blocks import products
from tinygrad_llm.patches.pipeline import PASSES, Phase, why_off

KERNELS = (Phase.GRAPH, Phase.LAUNCH, Phase.CHOOSE, Phase.LOOPS, Phase.VECTORS)
NAMES = [p.name for p in PASSES if p.phase in KERNELS and p.suits(True) and "AMX" not in p.targets]
ONES = ("embedding", "packed", "values", "norm", "added", "chain", "experts Q4_K", "gated Q4_K", "weighted Q4_K",
        "Q6_K", "rows Q4_K", "int8 Q4_K", "tokens Q8_0")  # cases of test_codegen
MOST = 2e-5  # error of a float32 sum in any order, as a fraction of the expected values' root mean square

# *** the rows

State = tuple[str, str, bool, bool]  # two passes, and whether each is off

def switches(names: tuple[str, ...]) -> dict[str, str]: return {f"NO_{name.upper()}": "1" for name in names}

def off(names: tuple[str, ...]) -> frozenset[str]:
  """The passes that are off when `names` are switched off: they and their dependents."""
  environment = switches(names)
  return frozenset(name for name in NAMES if why_off(name, environment))

def states(without: frozenset[str]) -> set[State]:
  return {(a, b, a in without, b in without) for a, b in itertools.combinations(NAMES, 2)}

def possible() -> set[State]:
  """All states of all pairs, except a pass that is on without a pass that it needs."""
  found = states(frozenset())
  for a, b in itertools.combinations(NAMES, 2):
    found.add((a, b, True, True))
    if b not in off((a,)): found.add((a, b, True, False))
    if a not in off((b,)): found.add((a, b, False, True))
  return found

def covering() -> list[tuple[str, ...]]:
  """Rows of passes to switch off, found greedily: each is the best of some random rows."""
  rng, left = random.Random(0), possible() - states(frozenset())
  rows: list[tuple[str, ...]] = []
  while left:
    drawn = [tuple(sorted(rng.sample(NAMES, rng.randint(1, 9)))) for _ in range(60)]
    best = max(drawn, key=lambda names: len(left & states(off(names))))
    left -= states(off(best))
    rows.append(best)
  return rows

ROWS = covering()

# *** in the child

def wrong() -> dict[str, float]:
  """{computation: error} of the errors that are too large."""
  found = {name: test_codegen.error(*test_codegen.CASES[name]()) for name in ONES}
  found["tile"] = gated(40, 192, 5, 60)["error"]
  found["bytes"] = fixed("Q4_K", 5)["error"]
  found["blocks"] = max(products("Q4_0", 2, False, [7, 3], 0)["errors"])
  found["attention"] = max(error for error, _ in errors([MODELS[0].__dict__, PROMPTS[0].__dict__]))
  return {name: error for name, error in found.items() if not error < MOST}

# *** here

def test_rows_cover_all_switch_states():
  seen = set().union(*(states(off(names)) for names in ((), *ROWS)))
  assert seen == possible() and len(ROWS) < 40

# a row switches off a third of the passes; other tests run with all passes on, and a pass's own tests without it
@pytest.mark.parametrize("names", sample(map(" ".join, ROWS), map(" ".join, ROWS[1:2])))
def test_results_with_passes_switched_off(names): assert child.call(wrong, **switches(tuple(names.split()))).value == {}

@extended
def test_wrong_results_are_detected(monkeypatch):
  monkeypatch.setattr(test_codegen, "error", lambda lazy, wanted: 0.5)
  monkeypatch.setattr(f"{__name__}.errors", lambda cases: [(float("nan"), 1)])
  assert set(wrong()) == {*ONES, "attention"}
