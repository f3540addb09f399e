"""compile_time/interning.py: equal nodes are one object, with any threads and any lifetimes."""
import gc
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tinygrad import Tensor, UOp, dtypes
from tinygrad.helpers import Context
from tinygrad.uop import ops
from tinygrad.uop.ops import Ops, UOpMetaClass
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.compile_time import interning

pytestmark = pytest.mark.skipif(not is_on("interning"), reason="it is off")
TABLE = UOpMetaClass.ucache

@pytest.fixture
def restless() -> Iterator[None]:
  """Switches threads as often as Python allows."""
  interval = sys.getswitchinterval()
  sys.setswitchinterval(1e-6)
  yield
  sys.setswitchinterval(interval)

def together(works: list[Callable[[], None]]) -> None:
  gate = threading.Barrier(len(works))
  def begin(work: Callable[[], None]) -> None:
    gate.wait()
    work()
  with ThreadPoolExecutor(len(works)) as pool:
    for done in [pool.submit(begin, work) for work in works]: done.result()

def test_two_threads_make_one_node(restless: None) -> None:
  made: list[list[UOp]] = [[], []]
  def work(mine: list[UOp]) -> Callable[[], None]:
    return lambda: mine.extend(UOp(Ops.CONST, arg=i) for i in range(700_000, 720_000))
  together([work(mine) for mine in made])
  assert all(x is y for x, y in zip(*made))

def number(n: int) -> UOp: return UOp(Ops.CONST, dtypes.int, (), n)
def named(name: str) -> UOp: return UOp(Ops.BUFFER, dtypes.weakint, (), name)

def test_nodes_dropped_by_other_threads(restless: None) -> None:
  """Threads make and drop the same few nodes; a held node is always found again."""
  wrong: list[str] = []
  def work(seed: int) -> Callable[[], None]:
    def run() -> None:
      chance, held = random.Random(seed), dict[str, UOp]()
      for _ in range(20_000):
        name = f"interning {chance.randrange(3)}"
        if name in held:
          if named(name) is not held.pop(name): wrong.append(name)
        else: held[name] = named(name)
    return run
  together([work(seed) for seed in range(3)])
  assert not wrong

def test_node_deletion_calls_no_python() -> None: assert not hasattr(UOp, "__del__")

def test_dead_nodes_leave_no_entries() -> None:
  gc.collect()
  before = len(TABLE)
  x = number(123457)
  for i in range(50): x = x + (i + 5_000_017)
  assert len(TABLE) > before + 50
  seen = weakref.ref(x)
  del x
  gc.collect()
  assert seen() is None and len(TABLE) <= before + 1

def test_reused_entry_is_not_freed() -> None:
  node = number(77_000_001)
  key = (node.op, node.dtype, node.src, node.arg, node.tag)
  other = TABLE.pop(key)
  again = number(77_000_001)
  assert again is not node
  del node, other
  gc.collect()
  assert number(77_000_001) is again

def test_spec_2_checks_interned_nodes() -> None:
  """With SPEC=2 tinygrad checks nodes, and they are interned all the same; a refused node leaves no entry."""
  with Context(SPEC=2): node = number(77_000_003)
  assert number(77_000_003) is node
  with Context(SPEC=2), pytest.raises(RuntimeError): UOp(Ops.ADD, dtypes.float, (node, node))
  key = (node.op, node.dtype, node.src, node.arg, node.tag)
  del node
  gc.collect()
  assert key not in TABLE

def test_buffer_refcount() -> None:
  x = Tensor([1.0, 2.0, 3.0]).realize()
  buffer = x.uop.buffer
  before = buffer.uop_refcount
  del x
  gc.collect()
  assert buffer.uop_refcount == before - 1

def test_buffer_counts_a_node_once() -> None:
  """A buffer counts a node once, also if it is assigned twice, as for a view; the count ends with the node."""
  x = Tensor([1.0, 2.0, 3.0]).realize()
  node, buffer, kept = x.uop.base, x.uop.base.buffer, len(interning.Buffers.counts)
  ops.buffers[node] = buffer
  before = buffer.uop_refcount
  del x, node
  gc.collect()
  assert buffer.uop_refcount == before - 1 and len(interning.Buffers.counts) == kept - 1

@pytest.mark.parametrize("function", [interning._uncount, interning._free])
def test_callbacks_at_interpreter_exit(function: Callable[..., None]) -> None:
  """At exit module globals are gone, so these callbacks must not use any."""
  assert not set(function.__code__.co_names) & set(vars(interning))

def test_nodes_from_before_installation() -> None:
  """Nodes from before the pass was installed are in its table like all others."""
  assert {type(place) for place in list(TABLE.values())} == {interning.Place}

# *** nodes

def var(name: str) -> UOp: return UOp.variable(name, 0, 9)

def test_equal_nodes_are_one_object():
  a, b = var("a"), var("b")
  assert a + b is UOp(Ops.ADD, a.dtype, (a, b)) is UOp(Ops.ADD, src=(a, b)) is not b + a
  assert UOp(Ops.NOOP) is UOp(Ops.NOOP, dtypes.void, ()) is not UOp(Ops.NOOP, tag=1)
  assert UOp.const(1) is not UOp.const(True) and UOp.const(0.0) is not UOp.const(-0.0)

def test_nodes_are_freed_with_last_user():
  before = len(TABLE)
  kept = var("never used before") + 12_345_678
  assert len(TABLE) > before
  del kept
  gc.collect()
  assert len(TABLE) <= before

def test_spec_2_refuses_impossible_dtype():
  """Under SPEC=2, tinygrad refuses a node with an impossible dtype."""
  a = var("a")
  assert UOp(Ops.ADD, dtypes.half, (a, a)).dtype is dtypes.half
  with Context(SPEC=2), pytest.raises(RuntimeError, match="bad dtype"): UOp(Ops.ADD, dtypes.float, (a, a))
