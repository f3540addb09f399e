"""runtime/graph_dependencies.py: a graph's node waits exactly for the nodes with which it shares memory."""
import itertools
import random

import pytest
from tinygrad import Tensor, TinyJit, UOp
from tinygrad.device import Buffer
from tinygrad.engine import jit
from tinygrad.uop.ops import Ops
from tinygrad_llm.patches import is_on, load

dependencies = load("graph_dependencies")
SIZE = 1 << 17  # elements; too many for a stage of a kernel chain

pytestmark = pytest.mark.skipif(not is_on("graph_dependencies") or not is_on("dispatch"), reason="no graphs to test")

class Recorder(jit.GraphRunner):
  """A graph that makes nodes as tinygrad's CUDAGraph does, and can run them in any order that the edges allow."""
  def __init__(self, graph: UOp, input_uops: tuple[UOp, ...]):
    super().__init__(graph, input_uops)
    self.nodes, self.waits = [], list[list[int]]()
    for _, ast, bufs, _ in self.calls:
      node = _Node(len(self.nodes))
      self.waits.append([n.number for n in self._access_resources([b.base for b in bufs], ast.arg.outs, node)])
      self.nodes.append(node)

  @property
  def before(self) -> list[set[int]]:
    """For each node, all nodes that are done when it starts."""
    found = list[set[int]]()
    for waits in self.waits: found.append(set(waits).union(*(found[i] for i in waits)))
    return found

  def in_some_order(self, rng: random.Random) -> list[int]:
    order, left = list[int](), set(range(len(self.waits)))
    while left:
      order.append(rng.choice(sorted(i for i in left if left.isdisjoint(self.waits[i]))))
      left.remove(order[-1])
    return order

  def run(self, order: list[int], values: dict[str, int]) -> None:
    for j in order:
      _, ast, bufs, own = self.calls[j]
      sizes, local = ast.arg.launch_dims(values)
      args = [bufs[i].ensure_allocated().get_buf(bufs[i].device) for i in ast.arg.globals]
      self.runtimes[j](*args, global_size=sizes, local_size=local, vals=ast.arg.vals(values | own), wait=True)

class _Node:
  def __init__(self, number: int): self.number = number

def share_memory(a: Buffer, b: Buffer) -> bool:
  return a.base is b.base and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes

def conflicts(graph: Recorder) -> set[tuple[int, int]]:
  """Pairs of calls (earlier, later) of which one writes memory that the other uses."""
  found = set[tuple[int, int]]()
  for (i, (_, a, of_a, _)), (j, (_, b, of_b, _)) in itertools.combinations(enumerate(graph.calls), 2):
    if any((m in a.arg.outs or n in b.arg.outs) and share_memory(x, y)
           for m, x in enumerate(of_a) for n, y in enumerate(of_b)): found.add((i, j))
  return found

def branches(seed: int) -> tuple[Recorder, list[Buffer]]:
  """
  A captured step of random sums of earlier results, in memory that is reused, and the buffers that it writes.
  """
  rng = random.Random(seed)
  plan = [(rng.randrange(6), rng.randrange(6), rng.random() < 0.3) for _ in range(30)]
  state = Tensor.zeros(SIZE).contiguous().realize()
  @TinyJit
  def step(x: Tensor) -> Tensor:
    known = [(x + i).contiguous() for i in range(6)]
    for n, (i, j, stores) in enumerate(plan):
      known[n % 6] = (known[i] * 0.5 + known[j]).contiguous()
      if stores: state.assign(state * 0.5 + known[n % 6])
    return (sum(known[1:], known[0]) + state).realize()
  x = Tensor.rand(SIZE).realize()
  for _ in range(3): result = step(x)
  call, = step.captured.linear.src
  assert call.src[0].op is Ops.CUSTOM_FUNCTION
  return Recorder(call.src[0], (x.uop.base,)), [t.uop.base.buffer for t in (result, state)]

@pytest.mark.parametrize("seed", range(3))
def test_dependencies_are_exact(seed):
  """A node waits for all conflicting nodes and for no others; many pairs of nodes are independent."""
  graph, written = branches(seed)
  before, needed = graph.before, conflicts(graph)
  assert {(i, j) for i, j in needed if i not in before[j]} == set()
  assert {(i, j) for j, waits in enumerate(graph.waits) for i in waits} <= needed
  assert [(i, j) for waits in graph.waits for i, j in itertools.permutations(waits, 2) if i in before[j]] == []
  alone = [(i, j) for i, j in itertools.combinations(range(len(before)), 2) if i not in before[j]]
  assert len(alone) > len(before)
  found = []
  for order in (range(len(before)), *(graph.in_some_order(random.Random(n)) for n in range(5))):
    for buffer in written: buffer.as_memoryview(force_zero_copy=True)[:] = bytes(buffer.nbytes)
    graph.run([*order], {})
    found.append([bytes(buffer.as_memoryview()) for buffer in written])
  assert all(x == found[0] for x in found) and any(found[0][0])

def test_input_uses_its_whole_buffer():
  """An input's whole buffer counts as used, because a replay has another buffer with other overlaps."""
  x, y = (Tensor.rand(64).realize() for _ in range(2))
  @TinyJit
  def step(x: Tensor) -> tuple[Tensor, Tensor]:
    return (x[:32] + y[:32]).contiguous().realize(), (x[32:] + y[32:]).contiguous().realize()
  for _ in range(3): step(x)
  graph = Recorder(step.captured.linear.src[0].src[0], (x.uop.base,))
  bases = {x.uop.base.buffer, y.uop.base.buffer}
  assert {b for j in range(len(graph.calls)) for b in dependencies.used(graph, j) if b.base in bases and b.base is b} \
    >= {x.uop.base.buffer}
