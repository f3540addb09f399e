"""compile_time/graph_rewrite: rules are applied exactly as tinygrad applies them; graphs before and after."""
import random

import pytest
from tests.compile_time.layers import random_graph
from tinygrad import dtypes
from tinygrad.helpers import Context
from tinygrad.uop.ops import BottomUpGate, Ops, PatternMatcher, RewriteContext, UOp, UPat, graph_rewrite
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.compile_time import graph_rewrite as module

pytestmark = pytest.mark.skipif(not is_on("graph_rewrite"), reason="it is off")

def var(name: str, most: int = 9) -> UOp: return UOp.variable(name, 0, most)

def counted(rules: list) -> tuple[PatternMatcher, list[UOp]]:
  """A matcher whose first rule records every node that it sees."""
  asked: list[UOp] = []
  NOTES.append(asked)
  return PatternMatcher([(UPat(tuple(Ops), name="x"), NOTE[len(NOTES) - 1])] + rules), asked

NOTES: list[list[UOp]] = []
NOTE = [lambda x: NOTES[0].append(x), lambda x: NOTES[1].append(x), lambda x: NOTES[2].append(x)]

def test_rules_apply_to_fixed_point():
  """Rules apply after a node's sources and again to each result; a shared node is rewritten once."""
  a, b = var("a"), var("b")
  rules = PatternMatcher([
    (UPat.var("x") * UPat.cvar("c"), lambda x, c: x + x if c.val == 2 else None),
    (UPat.var("x") + UPat.var("x"), lambda x: x << 1),
    (UPat(Ops.SHL, src=(UPat.var("x"), UPat.cvar("c"))), lambda x, c: x.alu(Ops.MAX, c) if c.val == 1 else None)])
  made = graph_rewrite((a * 2 + b) * (a * 2), rules)
  assert made is (a.alu(Ops.MAX, a.const_like(1)) + b) * a.alu(Ops.MAX, a.const_like(1))

def test_fixed_point_graph_is_not_visited_again():
  """A graph at a fixed point is not visited again by the same rules, unless they have a context."""
  rules, asked = counted([(UPat.var("x") + 0, lambda x: x)])
  x = graph_rewrite((var("a") * 3 + 0) * var("b"), rules)
  before = len(asked)
  assert graph_rewrite(x, rules) is x and len(asked) == before
  assert graph_rewrite(x + 7, rules) is x + 7 and len(asked) == before + 2  # the sum and the 7
  others, asked_others = counted([])
  assert graph_rewrite(x, others) is x and len(asked_others) == len(x.toposort())
  assert graph_rewrite(x, rules, ctx={}) is x and len(asked) > before + 2

def test_bottom_up():
  """Bottom up, a rule sees a node before its sources, and its result is rewritten again."""
  a, b, c = var("a"), var("b"), var("c")
  assert ((a + b) * c).substitute({a + b: b * 2, b: c}) is (c * 2) * c
  assert (a + b).substitute({a: b, b: c}) is c + c

def test_cyclic_substitution():
  a, b = var("a"), var("b")
  with pytest.raises(RuntimeError, match="infinite loop in graph_rewrite"): (a + 1).substitute({a: b, b: a})
  assert (a + b).substitute({a: b, b: a}, walk=True) is b + a

@pytest.mark.parametrize("walk", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_substitute_matches_rules(seed, walk):
  """substitute() equals the rules' result, also for substitutes that contain keys, and in the bodies of calls."""
  rng = random.Random(seed)
  graph = random_graph(rng)
  nodes = [u for u in graph.toposort() if u.op is not Ops.SINK]
  graph = UOp.sink(graph, UOp(Ops.CALL, dtypes.void, (UOp.sink(*nodes[-9:]), *nodes[20:24])))
  pairs = [rng.sample(range(len(nodes)), 2) for _ in range(80)]
  subs = {nodes[i]: nodes[j] for i, j in pairs if nodes[i].dtype is nodes[j].dtype and (walk or i > j)}
  rules = PatternMatcher([(UPat(tuple(Ops), name="x"), lambda ctx, x: ctx.get(x))])
  for enter in (False, True):
    made = graph.substitute(subs, walk=walk, enter_calls=enter)
    assert made is graph_rewrite(graph, rules, subs, bottom_up=True, walk=walk, enter_calls=enter) is not graph

def test_walk_visits_each_node_once():
  """A walk visits each node once, after its sources, and does not rewrite results again."""
  a = var("a")
  rules = PatternMatcher([(UPat.cvar("c"), lambda ctx, c: ctx.append(c.val) or c.const_like(c.val + 1))])
  seen: list[int] = []
  assert graph_rewrite((a + 1) * (a + 2) + 1, rules, seen, walk=True) is (a + 2) * (a + 3) + 2
  assert seen == [1, 2]

def test_bottom_up_gate():
  """BottomUpGate: nodes below a gated node are not rewritten."""
  def gate(x):
    raise BottomUpGate
  rules = PatternMatcher([(UPat(Ops.MUL, name="x"), gate), (UPat(Ops.BUFFER, name="x"), lambda x: x.const_like(3))])
  a, b = var("a"), var("b")
  assert graph_rewrite(a * b + a, rules, bottom_up=True) is (a * b) + a.const_like(3)

@pytest.mark.parametrize("bottom_up", [False, True])
def test_infinite_rules_raise(bottom_up):
  back = PatternMatcher([(UPat.var("x") + UPat.var("y"), lambda x, y: x * y),
                         (UPat.var("x") * UPat.var("y"), lambda x, y: x + y)])
  with pytest.raises(RuntimeError, match="infinite loop in graph_rewrite"):
    graph_rewrite(var("a") + var("b"), back, bottom_up=bottom_up)

def test_growing_graph_raises(monkeypatch):
  grow = PatternMatcher([(UPat.cvar("c"), lambda c: c.const_like(c.val + 1) * var("a"))])
  with Context(REWRITE_STACK_LIMIT=500), pytest.raises(RuntimeError, match="infinite loop in graph_rewrite"):
    graph_rewrite(UOp.const(1, dtypes.int) + var("b"), grow)

def test_deep_graph():
  x = var("a")
  for i in range(20_000): x = UOp(Ops.XOR, dtypes.int, (x, UOp.const(i, dtypes.int)))
  pattern = UPat(Ops.XOR, src=(UPat.var("x"), UPat.cvar("c")))
  made = graph_rewrite(x, PatternMatcher([(pattern, lambda x, c: x if c.val % 2 else None)]))
  assert len(made.toposort()) == len(x.toposort()) - 20_000

KINDS = 24

def kind(n: int, *src: UOp) -> UOp: return UOp(Ops.CUSTOM, dtypes.int, src, n)

def one_step(n: UOp, noted: list[UOp] | None) -> UOp | None:
  """A rule: replaces a node by one of its sources, or by nodes of lower kinds; many results are equal."""
  if noted is not None: noted.append(n)
  if n.op is not Ops.CUSTOM or n.arg % 4 == 0: return None
  first, last = n.src[0], n.src[-1]
  if n.arg % 4 == 1: return last
  if n.arg % 4 == 2: return kind(n.arg // 2, kind(n.arg // 3, last, first), first)
  return kind(n.arg // 4 * 4, kind(n.arg // 2, first), kind(n.arg // 2, first), last)

@pytest.mark.parametrize("bottom_up", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_match_tinygrad(seed, bottom_up, monkeypatch):
  """Random graphs are rewritten as by tinygrad; a rule with a context sees nodes in the same order."""
  counting = PatternMatcher([(UPat(tuple(Ops), name="n"), lambda ctx, n: one_step(n, ctx))])
  plain = PatternMatcher([(UPat(tuple(Ops), name="n"), lambda n: one_step(n, None))])
  rng, nodes = random.Random(seed), [UOp.const(i, dtypes.int) for i in range(3)]
  for _ in range(60):
    nodes.append(kind(rng.randrange(KINDS), *rng.choices(nodes[-8:] + nodes[:2], k=rng.randint(1, 3))))
  graph = UOp.sink(*nodes[-5:], *nodes[20:30])
  noted: list[UOp] = []
  made = [graph_rewrite(graph, counting, noted, bottom_up=bottom_up), graph_rewrite(graph, plain, bottom_up=bottom_up)]
  monkeypatch.setattr(RewriteContext, "unified_rewrite", module._unified_rewrite)
  expected: list[UOp] = []
  assert made == [graph_rewrite(graph, counting, expected, bottom_up=bottom_up)] * 2 and made[0] is not graph
  assert noted == expected

def test_walk_matches_tinygrad(monkeypatch):
  """A walk over random graphs gives tinygrad's results for rules that change constants and sums."""
  rules = PatternMatcher([(UPat.cvar("c"), lambda c: c.const_like(c.val * 2)),
                          (UPat(Ops.ADD, name="u"), lambda u: UOp(Ops.MUL, u.dtype, u.src[::-1], u.arg, u.tag))])
  graphs = [random_graph(random.Random(seed)) for seed in range(5)]
  made = [graph_rewrite(graph, rules, walk=True) for graph in graphs]
  assert RewriteContext.walk_rewrite is module.walk_rewrite
  monkeypatch.setattr(RewriteContext, "walk_rewrite", module._walk_rewrite)
  assert made == [graph_rewrite(graph, rules, walk=True) for graph in graphs] != graphs
