"""compile_time/toposort: the nodes of a graph in tinygrad's own order."""
import random

from tests.compile_time.layers import graphs
from tinygrad import dtypes
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches.compile_time.toposort import toposort

def naive(root: UOp, gate=lambda node: True, enter_calls: bool = True) -> list[UOp]:
  """A recursive topological sort: sources first, from the left."""
  done: dict[UOp, None] = {}
  def visit(node: UOp) -> None:
    if node in done or not gate(node): return
    for s in node.src if enter_calls or node.op not in (Ops.CALL, Ops.FUNCTION) else node.src[1:]: visit(s)
    done[node] = None
  visit(root)
  return list(done)

def test_tensor_graphs_and_schedules():
  """Graphs of tensors and their schedules, with and without the bodies of calls."""
  bodies = 0
  for lazy in graphs():
    for root in (lazy.uop, lazy.linear_with_vars()[0]):
      for enter_calls in (True, False):
        assert list(toposort(root, enter_calls=enter_calls)) == naive(root, enter_calls=enter_calls)
      bodies += len(toposort(root)) - len(toposort(root, enter_calls=False))
  assert bodies

def test_random_graphs():
  """Random graphs with shared nodes, repeated sources, and gates."""
  rng = random.Random(3)
  for _ in range(50):
    nodes = [UOp.variable(f"v{i}", 0, 9) for i in range(rng.randint(1, 4))]
    for _ in range(rng.randint(1, 60)): nodes.append(UOp(Ops.ADD, dtypes.int, tuple(rng.choices(nodes[-9:], k=2))))
    out = set(rng.sample(nodes, len(nodes) // 4))
    assert list(toposort(nodes[-1])) == naive(nodes[-1])
    def inside(u: UOp, out: set[UOp] = out) -> bool: return u not in out
    assert list(toposort(nodes[-1], inside)) == naive(nodes[-1], inside)

def test_chain_deeper_than_recursion_limit():
  """A chain that is longer than Python's recursion limit."""
  node = first = UOp.variable("v", 0, 9)
  for _ in range(5000): node = UOp(Ops.NEG, dtypes.int, (node,))
  assert len(toposort(node)) == 5001 + len(first.src) and list(toposort(node))[-1] is node
