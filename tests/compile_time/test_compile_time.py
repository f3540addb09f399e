"""patches/compile_time: the same kernels, graphs and types as without it, and less work."""
import functools
import gc
import importlib
import itertools
import random

from tests.support import child
from tests.support.extended import sample
import numpy as np
import pytest
from tinygrad import Tensor, codegen, dtypes, function
from tinygrad.codegen import to_program
from tinygrad.engine import realize
from tinygrad.helpers import Context
from tinygrad.uop import ops
from tinygrad.uop.ops import BottomUpGate, Ops, PatternMatcher, UOp, UPat, graph_rewrite
from tinygrad_llm.patches import is_on, load

PATCHES = ("interning", "graph_rewrite", "implicit_inputs", "type_inference", "tuple_order", "scalarize", "trace_cache",
           "gc_pause")
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

@pytest.mark.parametrize("names", sample([ALL := " ".join(PATCHES), *PATCHES], [ALL]))
def test_the_same_kernels(names):
  off = {f"NO_{name.upper()}": "1" for name in names.split()}
  assert len(usual()) > 6 and child.call(sources, **off).value == usual()

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

def test_substitutes_in_a_circle():
  a, b = var("a"), var("b")
  with pytest.raises(RuntimeError, match="infinite loop in graph_rewrite"): (a + 1).substitute({a: b, b: a})
  assert (a + b).substitute({a: b, b: a}, walk=True) is b + a

@pytest.mark.parametrize("walk", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_substitutes_are_those_of_the_rules(seed, walk):
  """Also where a substitute holds what is substituted, and in the body of a call, with enter_calls and without."""
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

def test_a_walk():
  """Each node once, after its sources; what a rule makes is left as it is."""
  a = var("a")
  rules = PatternMatcher([(UPat.cvar("c"), lambda ctx, c: ctx.append(c.val) or c.const_like(c.val + 1))])
  seen: list[int] = []
  assert graph_rewrite((a + 1) * (a + 2) + 1, rules, seen, walk=True) is (a + 2) * (a + 3) + 2
  assert seen == [1, 2]

# *** nodes

def test_a_node_is_there_once():
  a, b = var("a"), var("b")
  assert a + b is UOp(Ops.ADD, a.dtype, (a, b)) is UOp(Ops.ADD, src=(a, b)) is not b + a
  assert UOp(Ops.NOOP) is UOp(Ops.NOOP, dtypes.void, ()) is not UOp(Ops.NOOP, tag=1)
  assert UOp.const(1) is not UOp.const(True) and UOp.const(0.0) is not UOp.const(-0.0)

def test_nodes_go_with_their_last_user():
  before = len(ops.UOpMetaClass.ucache)
  kept = var("never used before") + 12_345_678
  assert len(ops.UOpMetaClass.ucache) > before
  del kept
  gc.collect()
  assert len(ops.UOpMetaClass.ucache) <= before

def test_what_is_checked_is_checked():
  """Under SPEC=2, tinygrad finds a node of a type that it cannot have."""
  a = var("a")
  assert UOp(Ops.ADD, dtypes.half, (a, a)).dtype is dtypes.half
  with Context(SPEC=2), pytest.raises(RuntimeError, match="bad dtype"): UOp(Ops.ADD, dtypes.float, (a, a))

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
  places = load("tuple_order").ranks_of(nodes)
  assert sorted(nodes, key=lambda u: places[u]) == sorted(nodes, key=lambda u: u.tuplize)

def test_a_sum_of_many_terms():
  """Each deeper than the one before: the room between two places does not run out."""
  terms = [UOp.const(i, dtypes.int) for i in range(600)]
  sums = list(itertools.accumulate(terms, lambda x, y: UOp(Ops.ADD, dtypes.int, (x, y)), initial=UOp.range(3, 0)))[1:]
  places = load("tuple_order").ranks_of(UOp.sink(*sums).toposort())
  assert len({places[u] for u in sums}) == len(sums)

@pytest.mark.parametrize("arg", [float("nan"), (1, "x")])
def test_where_arguments_have_no_order(arg):
  """As tinygrad sorts them; and nothing is left of the places."""
  a, b = UOp(Ops.CUSTOM, dtypes.float, (), arg), UOp(Ops.CUSTOM, dtypes.float, (), ("x", 1))
  with pytest.raises(TypeError): load("tuple_order").ranks_of([a, b])
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

def test_what_is_cut_out():
  """Of an index with loops, without a look at the index; a part that is not in its source is an error as ever."""
  inference = load("type_inference")
  x, i = UOp.placeholder((64,), dtypes.float, 0), UOp.range(16, 0)
  def cut(offset: UOp | int, size: int) -> UOp:
    def vector(u: UOp | int) -> UOp: return UOp.stack(u if isinstance(u, UOp) else UOp.const(u))
    return UOp(Ops.SHRINK, x.dtype, (x, vector(offset), vector(size)))
  for offset, size in ((i * 4, 4), (i + 40, 9), (3, 61), (0, 0), (i, 49)):
    assert inference._shrunk(*cut(offset, size).src) == (size,) == cut(offset, size).shape
  for offset, size in ((i * 4, 5), (i - 1, 4)):  # not proved, not disproved: tinygrad lets it pass
    assert inference._shrunk(*cut(offset, size).src) is None and cut(offset, size).shape == (size,)
  for offset, size in ((60, 5), (0, 65), (-1, 3), (i + 64, 1)):
    with pytest.raises(ValueError, match="invalid shrink"): cut(offset, size).shape  # noqa: B018
  n = UOp.variable("n", 1, 64)
  assert Tensor.empty(64)[:n.bind(7)].shape[0].vmax == 64
  with pytest.raises(ValueError): Tensor.empty(8).shrink(((2, 9),))

def test_outputs_are_looked_for_once(monkeypatch):
  module, found = importlib.import_module("tinygrad.function"), []
  stock = module.invalid_outputs
  monkeypatch.setattr(module, "invalid_outputs", lambda graph: found.append(graph) or stock(graph))
  layer(Tensor.empty(5, 96), Tensor.empty(96, 96, dtype=dtypes.half))  # no test calls it with these
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

# *** traces

class Scaled:
  """A layer that notes when it is traced."""
  traced = 0

  def __init__(self, n: int, factor: float):
    self.w, self.factor = Tensor.full((n, n), factor).contiguous().realize(), factor

  @function(precompile=True, allow_implicit=True)
  def __call__(self, x: Tensor, start: UOp) -> Tensor:
    Scaled.traced += 1
    return (x @ self.w + start) * self.factor

def traced(*layers: Scaled, x: Tensor | None = None, start: int = 1) -> tuple[int, list]:
  """How often the layers were traced, one after the other, and what came out."""
  Scaled.traced, bound = 0, UOp.variable("start", 0, 9).bind(start)
  x = Tensor.ones(2, 8).contiguous().realize() if x is None else x
  for scaled in layers: x = scaled(x, bound)
  return Scaled.traced, x.tolist()

def expected(*factors: float, x: float = 1, start: int = 1, n: int = 8) -> float:
  for factor in factors: x = (n * x * factor + start) * factor
  return x

def test_layers_that_are_alike_are_traced_once():
  """The first one's input is made in another way; weights are not looked at, all else is."""
  a, b, c = (Scaled(8, 0.5) for _ in range(3))
  b.w.assign(b.w * 2).realize()
  load("trace_cache").traces.clear()
  count, values = traced(a, b, c)
  first = (8 * 1 * 0.5 + 1) * 0.5
  second = (8 * first * 1.0 + 1) * 0.5
  assert count == 2 and values == [[(8 * second * 0.5 + 1) * 0.5] * 8] * 2

def test_layers_that_differ_are_traced():
  load("trace_cache").traces.clear()
  same, other = [Scaled(8, 0.5) for _ in range(2)], Scaled(8, 0.25)
  assert traced(*same, other, x=Tensor.ones(2, 8).contiguous().realize())[0] == 3
  assert traced(*same)[0] == 0
  count, values = traced(*same, start=3)  # a variable's value is not in the trace of another
  assert values == [[expected(0.5, 0.5, start=3)] * 8] * 2
  assert traced(*same, x=Tensor.ones(3, 8).contiguous().realize())[0] == 2
  wide = Scaled(8, 0.5)
  wide.w = wide.w.half().realize()
  assert traced(same[0], wide)[0] == 1

def test_a_trace_that_found_other_tensors_is_not_kept():
  hidden = Tensor.full((2, 8), 3.0).contiguous().realize()
  @function(allow_implicit=True)
  def add(x: Tensor) -> Tensor: return x + hidden
  load("trace_cache").traces.clear()
  assert add(Tensor.ones(2, 8).contiguous().realize()).tolist() == [[4.0] * 8] * 2
  hidden = Tensor.full((2, 8), 5.0).contiguous().realize()
  assert add(Tensor.ones(2, 8).contiguous().realize()).tolist() == [[6.0] * 8] * 2
  assert not load("trace_cache").traces

def test_only_so_manytraces_are_kept():
  cache = load("trace_cache")
  for n in range(1, cache.KEPT + 4): traced(Scaled(8, 0.5), x=Tensor.ones(n, 8).contiguous().realize())
  assert len(cache.traces) == cache.KEPT

# *** vectors

def test_elements():
  """They are those that numpy finds, however a stack was moved; None where they cannot be seen."""
  rng, elements = random.Random(0), load("scalarize").elements
  for _ in range(200):
    sizes = [rng.choice((1, 2, 3)) for _ in range(rng.randint(1, 3))]
    places = np.arange(np.prod(sizes)).reshape(sizes)
    x = UOp.stack(*[UOp.variable(f"v{i}", 0, 9) for i in range(places.size)]).reshape(tuple(sizes))
    for _ in range(rng.randint(0, 4)):
      how = rng.choice(("permute", "expand", "reshape"))
      if how == "permute":
        axes = rng.sample(range(places.ndim), places.ndim)
        x, places = x.permute(tuple(axes)), places.transpose(axes)
      elif how == "expand": x, places = x.expand((2, *places.shape)), np.broadcast_to(places, (2, *places.shape))
      else: x, places = x.reshape((places.size,)), places.reshape(-1)
    found = elements(x)
    assert [u.expr for u in found] == [f"v{i}" for i in places.flatten()]
  assert elements(UOp.placeholder((4,), dtypes.float, 0)) is None

# *** the garbage collector

def test_it_waits():
  seen: list[bool] = []
  def noted(*args: int, wrong: bool = False) -> int:
    seen.append(gc.isenabled())
    if wrong: raise ValueError
    return sum(args)
  paused = load("gc_pause").paused(noted)
  assert gc.isenabled() and paused(1, 2) == 3 and gc.isenabled()
  with pytest.raises(ValueError): paused(wrong=True)
  assert gc.isenabled()
  gc.disable()
  try: assert paused() == 0 and not gc.isenabled()
  finally: gc.enable()
  assert seen == [False] * 3

def test_it_waits_for_all_that_makes_graphs(monkeypatch):
  """A trace, a schedule, a kernel."""
  collected: list[str] = []
  def note(phase: str, _: dict[str, int]) -> None: collected.append(phase)
  def work() -> None:
    lazy = layer(Tensor.empty(6, 96), Tensor.empty(96, 96, dtype=dtypes.half))
    call = lazy.linear_with_vars()[0].src[0]
    codegen.full_rewrite_to_sink(*realize._get_call_to_compile(call))
  work()
  gc.callbacks.append(note)
  thresholds = gc.get_threshold()
  try:
    gc.set_threshold(50)
    work()
    often = len(collected)
    monkeypatch.setattr(gc, "disable", lambda: None)
    work()
  finally:
    gc.set_threshold(*thresholds)
    gc.callbacks.remove(note)
  assert 3 * often < len(collected) - often
