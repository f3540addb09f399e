"""compile_time/match_code: patterns compiled to Python give the matches of tinygrad's interpreter, in its order."""
import functools
import random

import pytest
from tests.compile_time.layers import random_graph
from tinygrad import codegen, dtypes
from tinygrad.codegen import simplify
from tinygrad.codegen.decomp import dtype, op
from tinygrad.codegen.late import coalesce, gater
from tinygrad.renderer import cstyle
from tinygrad.schedule import rangeify
from tinygrad.uop import divandmod, ops, symbolic, weak
from tinygrad.uop.ops import Ops, PatternMatcher, UOp, UPat
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.compile_time import match_code

pytestmark = pytest.mark.skipif(not is_on("match_code"), reason="it is off")

SEEN: list[dict[str, UOp]] = []

def note(**names) -> None: SEEN.append(names)

def found(pattern: UPat, node: UOp) -> list[dict[str, UOp]]:
  """All matches of a pattern, by a rule that never returns a result."""
  SEEN.clear()
  assert match_code.compiled(pattern, note)(node, None) is None
  return SEEN.copy()

@functools.cache
def matchers() -> list[PatternMatcher]:
  modules = (codegen, simplify, dtype, op, coalesce, gater, cstyle, rangeify, divandmod, symbolic, weak, ops)
  return [x for module in modules for x in vars(module).values() if isinstance(x, PatternMatcher)]

@pytest.fixture
def nodes() -> list[UOp]:
  graphs = [random_graph(random.Random(seed)) for seed in range(4)]
  a, i = UOp.variable("a", 0, 9), UOp.range(8, 0)
  buffer = UOp.new_buffer("CPU", 64, dtypes.float)
  load = buffer.index(i * 4 + a).load()
  more = [(load * 2 + load).cast(dtypes.half).cast(dtypes.float), (i // 2 * 2 + i % 2) < a,
          (load < 0).where(load + 1, load * 0), buffer.index(i).store(load).end(i)]
  return list(UOp.sink(*graphs, *more).toposort())

def test_all_tinygrad_rules(nodes):
  """Each of tinygrad's patterns on each node with its operation, matching or not."""
  patterns = {id(p): p for matcher in matchers() for p, _ in matcher.patterns}.values()
  assert len(patterns) > 250
  matched = 0
  for pattern in patterns:
    try: writer = match_code.Writer(pattern)
    except match_code.Unknown: continue
    if len(list(match_code._cases(writer.case))) > match_code.MOST: continue
    for node in nodes:
      if node.op not in pattern.op: continue
      want = list(pattern.match(node, {}))
      assert found(pattern, node) == want, (pattern.location, node)
      matched += bool(want)
  assert matched > 500

def random_pattern(rng: random.Random, depth: int) -> UPat:
  """A random pattern that may use every feature of patterns."""
  name = rng.choice([None, "x", "y", "z"])
  if depth and rng.random() < .15: return UPat.any(*[random_pattern(rng, depth - 1) for _ in range(rng.randint(2, 3))])
  op = rng.choice([None, Ops.ADD, Ops.MUL, (Ops.ADD, Ops.MUL, Ops.CONST), Ops.CONST, {Ops.CAST, Ops.ADD}, Ops.PARAM])
  src = None
  if depth and (kind := rng.randrange(5)):
    below = [random_pattern(rng, depth - 1) for _ in range(rng.randint(1, 2))]
    src = tuple(below) if kind < 3 else below if kind == 3 else UPat(rng.choice([Ops.CONST, (Ops.ADD, Ops.CONST)]))
  dtype = rng.choice([None, None, dtypes.int, (dtypes.int, dtypes.float)])
  arg = rng.choice([None] * 7 + [0, 3])
  return UPat(op, dtype, src, arg, name, rng.random() < .3, tag=rng.choice([None] * 5 + ["t", ("t", None)]))

@pytest.mark.parametrize("seed", range(40))
def test_random_patterns(seed, nodes):
  rng = random.Random(seed)
  src = tuple(random_pattern(rng, 2) for _ in range(2))
  pattern = UPat(rng.choice([Ops.ADD, (Ops.ADD, Ops.MUL)]), src=src, name="w")
  try: list(match_code.Writer(pattern).lines("{}"))
  except match_code.Unknown: pytest.skip("tinygrad's")
  few = [n.replace(tag=rng.choice([None, "t"])) for n in rng.sample([n for n in nodes if n.op in pattern.op], 60)]
  few += [UOp(n.op, n.dtype, tuple(s.replace(tag="t") for s in n.src), n.arg) for n in few[:30]]
  for node in few: assert found(pattern, node) == list(pattern.match(node, {}))

def test_compiled_rule_keeps_its_globals():
  """A compiled rule keeps the globals of its creation, as with tinygrad's own compiler of rules."""
  global SEEN
  pattern, before = UPat(Ops.NOOP, name="x"), SEEN
  rule = match_code.compiled(pattern, note)
  try:
    SEEN = []
    rule(UOp(Ops.NOOP), None)
    assert not SEEN and before.pop() == {"x": UOp(Ops.NOOP)}
  finally: SEEN = before

def test_unsupported_patterns_fall_back_to_tinygrad():
  """An unsupported pattern (names below a repeated one) is left to tinygrad's interpreter."""
  pattern = UPat(Ops.SINK, src=UPat(Ops.CONST, name="c"), name="s")
  with pytest.raises(match_code.Unknown): match_code.Writer(pattern)
  rules = PatternMatcher([(pattern, lambda s, c: s.src[0])])
  one = UOp.const(1, dtypes.int)
  assert rules.rewrite(UOp.sink(one, one)) is one

def test_rule_with_context():
  rules = PatternMatcher([(UPat(Ops.CONST, name="c"), lambda ctx, c: ctx.append(c) or None)])
  found: list[UOp] = []
  assert rules.rewrite(one := UOp.const(1, dtypes.int), found) is None and found == [one]
