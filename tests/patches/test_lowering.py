"""patches/lowering: the same kernels, graphs and types as without it, and less work."""
import functools
import importlib
import itertools
import random

import child
import pytest
from tinygrad import Tensor, dtypes, function
from tinygrad.codegen import to_program
from tinygrad.engine import realize
from tinygrad.helpers import Context
from tinygrad.uop import ops
from tinygrad.uop.ops import BottomUpGate, Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad_llm.patches import is_on, load

PATCHES = ("graph_rewrite", "implicit_inputs", "type_inference", "tuple_order")
pytestmark = pytest.mark.skipif(not all(map(is_on, PATCHES)), reason="they are off")

@function
def layer(x: Tensor, w: Tensor) -> Tensor:
  return ((x * (x * x).mean(-1, keepdim=True).rsqrt()) @ w.T.float()).silu() + x

def graphs() -> list[Tensor]:
  """A layer, a softmax over positions that a variable counts, a look-up, a scan, integers and bits."""
  n = UOp.variable("n", 1, 64).bind(17)
  x, w, ids = Tensor.empty(4, 96), Tensor.empty(96, 96, dtype=dtypes.half), Tensor.empty(7, dtype=dtypes.int)
  words = Tensor.empty(32, 12, dtype=dtypes.uint32)
  return [layer(layer(x, w), w), Tensor.empty(8, 64)[:, :n].softmax(), w[ids].float(), x.cumsum(1).max(0),
          ((words.unsqueeze(-1) >> Tensor.arange(0, 32, 8)) & 255).cast(dtypes.int8).sum(1),
          x.pad(((1, 2), (0, 3))) * 2.5]

def sources() -> list[str]:
  with Context(CCACHE=0):
    return [to_program(*realize._get_call_to_compile(call)).src[2].arg for lazy in graphs()
            for call in lazy.linear_with_vars()[0].src]

@functools.cache
def usual() -> list[str]: return child.call(sources).value

@pytest.mark.parametrize("name", PATCHES)
def test_the_same_kernels(name):
  assert len(usual()) > 6 and child.call(sources, **{f"NO_{name.upper()}": "1"}).value == usual()

# *** rewriting

def var(name: str, most: int = 9) -> UOp: return UOp.variable(name, 0, most)

def counted(rules: list) -> tuple[PatternMatcher, list[UOp]]:
  """A matcher whose first rule notes every node that it is asked about."""
  asked: list[UOp] = []
  NOTES.append(asked)
  return PatternMatcher([(UPat(tuple(Ops), name="x"), NOTE[len(NOTES) - 1])] + rules), asked

NOTES: list[list[UOp]] = []
NOTE = [lambda x: NOTES[0].append(x), lambda x: NOTES[1].append(x), lambda x: NOTES[2].append(x)]

def test_rules_until_none_matches():
  """After a node's sources, and again on what a rule made; a node that is used twice once."""
  a, b = var("a"), var("b")
  rules = PatternMatcher([
    (UPat.var("x") * UPat.cvar("c"), lambda x, c: x + x if c.val == 2 else None),
    (UPat.var("x") + UPat.var("x"), lambda x: x << 1),
    (UPat(Ops.SHL, src=(UPat.var("x"), UPat.cvar("c"))), lambda x, c: x.alu(Ops.MAX, c) if c.val == 1 else None)])
  made = graph_rewrite((a * 2 + b) * (a * 2), rules)
  assert made is (a.alu(Ops.MAX, a.const_like(1)) + b) * a.alu(Ops.MAX, a.const_like(1))

def test_a_graph_that_is_left_as_it_is_is_not_looked_at_again():
  """By the same rules without a context; others look, and so do these where there is one."""
  rules, asked = counted([(UPat.var("x") + 0, lambda x: x)])
  x = graph_rewrite((var("a") * 3 + 0) * var("b"), rules)
  before = len(asked)
  assert graph_rewrite(x, rules) is x and len(asked) == before
  assert graph_rewrite(x + 7, rules) is x + 7 and len(asked) == before + 2  # the sum and the 7
  others, asked_others = counted([])
  assert graph_rewrite(x, others) is x and len(asked_others) == len(x.toposort())
  assert graph_rewrite(x, rules, ctx={}) is x and len(asked) > before + 2

def test_bottom_up():
  """A rule sees a node before its sources, and what it makes is looked at again."""
  a, b, c = var("a"), var("b"), var("c")
  assert ((a + b) * c).substitute({a + b: b * 2, b: c}) is (c * 2) * c
  assert (a + b).substitute({a: b, b: c}) is c + c

def test_a_gate():
  """BottomUpGate: what is below is none of the rules' business."""
  def gate(x):
    raise BottomUpGate
  rules = PatternMatcher([(UPat(Ops.MUL, name="x"), gate), (UPat(Ops.BUFFER, name="x"), lambda x: x.const_like(3))])
  a, b = var("a"), var("b")
  assert graph_rewrite(a * b + a, rules, bottom_up=True) is (a * b) + a.const_like(3)

@pytest.mark.parametrize("bottom_up", [False, True])
def test_rules_without_end(bottom_up):
  back = PatternMatcher([(UPat.var("x") + UPat.var("y"), lambda x, y: x * y),
                         (UPat.var("x") * UPat.var("y"), lambda x, y: x + y)])
  with pytest.raises(RuntimeError, match="infinite loop in graph_rewrite"):
    graph_rewrite(var("a") + var("b"), back, bottom_up=bottom_up)

def test_a_graph_that_grows_without_end(monkeypatch):
  grow = PatternMatcher([(UPat.cvar("c"), lambda c: c.const_like(c.val + 1) * var("a"))])
  with Context(REWRITE_STACK_LIMIT=500), pytest.raises(RuntimeError, match="infinite loop in graph_rewrite"):
    graph_rewrite(UOp.const(1, dtypes.int) + var("b"), grow)

def test_a_deep_graph():
  x = var("a")
  for i in range(20_000): x = UOp(Ops.XOR, dtypes.int, (x, UOp.const(i, dtypes.int)))
  pattern = UPat(Ops.XOR, src=(UPat.var("x"), UPat.cvar("c")))
  made = graph_rewrite(x, PatternMatcher([(pattern, lambda x, c: x if c.val % 2 else None)]))
  assert len(made.toposort()) == len(x.toposort()) - 20_000

# *** the order of programs

def random_graph(rng: random.Random) -> UOp:
  """Sums, products and constants over each other, with twins that differ in a tag only."""
  nodes = [UOp.const(i, dtypes.int) for i in range(4)] + [UOp.const(0.5 * i, dtypes.float) for i in range(3)]
  nodes += [UOp.range(n, n) for n in (3, 4)]
  for _ in range(150):
    op = rng.choice((Ops.ADD, Ops.MUL, Ops.MAX, Ops.WHERE, Ops.CUSTOM, Ops.CAST))
    src = tuple(rng.choices(nodes[-12:] + nodes[:4], k=rng.randrange(1, 5)))
    nodes.append(UOp(op, rng.choice((dtypes.int, dtypes.float)), src, rng.choice("ab") if op is Ops.CUSTOM else None,
                     rng.choice((None, None, "twin"))))
  return UOp.sink(*nodes)

@pytest.mark.parametrize("seed", range(20))
def test_places_are_in_the_order_of_tuplize(seed):
  nodes = list(random_graph(random.Random(seed)).toposort())
  places = load("tuple_order").places(nodes)
  assert sorted(nodes, key=lambda u: places[u]) == sorted(nodes, key=lambda u: u.tuplize)

def test_a_sum_of_many_terms():
  """Each deeper than the one before: the room between two places does not run out."""
  terms = [UOp.const(i, dtypes.int) for i in range(600)]
  sums = list(itertools.accumulate(terms, lambda x, y: UOp(Ops.ADD, dtypes.int, (x, y)), initial=UOp.range(3, 0)))[1:]
  places = load("tuple_order").places(UOp.sink(*sums).toposort())
  assert len({places[u] for u in sums}) == len(sums)

@pytest.mark.parametrize("arg", [float("nan"), (1, "x")])
def test_where_arguments_have_no_order(arg):
  """As tinygrad sorts them; and nothing is left of the places."""
  a, b = UOp(Ops.CUSTOM, dtypes.float, (), arg), UOp(Ops.CUSTOM, dtypes.float, (), ("x", 1))
  with pytest.raises(TypeError): load("tuple_order").places([a, b])
  graph = UOp.sink(UOp.range(3, 0) * 2)
  order = load("tuple_order").linearize(graph)
  assert order[-1] is graph and not any("tuplize" in vars(u) for u in order)

# *** types and functions

def test_dtypes_and_shapes():
  """Of every node of every kernel, and of the graphs that they come from, as tinygrad itself finds them."""
  inference, seen = load("type_inference"), 0
  for lazy in graphs():
    for call in (lazy.uop, *lazy.linear_with_vars()[0].src):
      for node in call.toposort():
        what = node.op, node.src, node.arg
        assert inference.dtype_from_uop(*what) is inference._stock_dtype(*what)
        assert inference._shape(node) == inference._stock_shape(node)
        seen += 1
  assert seen > 500

def test_sources_that_differ():
  a, b = UOp.const(1, dtypes.half), UOp.const(2, dtypes.float)
  assert ops.dtype_from_uop(Ops.ADD, (a, b), None) is dtypes.float
  assert (Tensor.empty(3, 1) + Tensor.empty(1, 4)).shape == (3, 4)
  with pytest.raises(IndexError): UOp(Ops.ADD, dtypes.float, (Tensor.empty(3).uop, Tensor.empty(4).uop)).shape  # noqa: B018

def test_outputs_are_looked_for_once(monkeypatch):
  module, found = importlib.import_module("tinygrad.function"), []
  stock = module.invalid_outputs
  monkeypatch.setattr(module, "invalid_outputs", lambda graph: found.append(graph) or stock(graph))
  layer(Tensor.empty(4, 96), Tensor.empty(96, 96, dtype=dtypes.half))
  assert len(found) == 2  # as inputs are found, and here

def test_outputs_are_numbered():
  """What a graph only writes, in its order; the rest is left."""
  module = importlib.import_module("tinygrad.function")
  x = Tensor.empty(4)
  graph = (Tensor.invalids(4, dtype="float").assign(x) + Tensor.invalids(4, dtype="float").assign(x * 2) + x).uop
  outputs = [u for u in graph.toposort() if u in module.invalid_outputs(graph)]
  made = module.renumber_invalid_outputs(graph)
  again = [u for u in made.toposort() if u in module.invalid_outputs(made)]
  assert [u.arg.slot for u in again] == [0, 1] != [u.arg.slot for u in outputs]
  assert x.uop.base in made.toposort() and len(made.toposort()) == len(graph.toposort())
  assert module.renumber_invalid_outputs(x.uop) is x.uop
