"""Random sums of products over ranges, as passes find them in a kernel's graph."""
import functools
import operator
import random
from collections.abc import Callable, Iterable, Iterator

from tests.support.interpret import same
from tinygrad import dtypes
from tinygrad.schedule.indexing import BufferizeOpts
from tinygrad.uop.ops import AxisType, KernelInfo, Ops, UOp

OUTPUTS = tuple(UOp.range(n, i, AxisType.WEAK) for i, n in enumerate((4, 8)))  # 32 steps
LOOPS = tuple(UOp.range(n, 2 + i, AxisType.REDUCE) for i, n in enumerate((2, 4, 3)))
OUT, SIZE = 9, 1024

def load(slot: int, *loops: UOp) -> UOp:
  """A load of a float, at a different index for each iteration of the ranges."""
  place, step = UOp.const(0), 1
  for r in loops: place, step = place + r * step, step * (int(r.vmax) + 1)
  return UOp.param(slot, dtypes.float, (max(step, SIZE),)).index(place)

def stage(value: UOp, *loops: UOp, removable: bool = True) -> UOp:
  """A STAGE: a value materialised over some ranges, as the scheduler has it before it splits kernels."""
  return UOp(Ops.STAGE, src=(value, *loops), arg=BufferizeOpts("CPU", removable=removable))

def term(rng: random.Random, loops: tuple[UOp, ...]) -> UOp:
  some = rng.sample(loops, rng.randint(0, len(loops)))
  return load(rng.randrange(4), *some) if some or rng.random() < 0.5 else UOp.const(float(rng.randint(-3, 3)))

def drawn(rng: random.Random, loops: tuple[UOp, ...], inner: tuple[UOp, ...], depth: int = 3) -> UOp:
  """A random expression that may contain reductions over the ranges `inner`."""
  if inner and rng.random() < 0.3:
    return drawn(rng, (*loops, inner[0]), inner[1:], depth - 1).reduce(inner[0], arg=Ops.ADD)
  if depth <= 0: return term(rng, loops)
  a, b = (drawn(rng, loops, inner, rng.randrange(depth)) for _ in range(2))
  return a + b if rng.random() < 0.45 else a * b

def kernel(value: UOp) -> UOp:
  """A kernel that stores a value for each iteration of OUTPUTS."""
  place = OUTPUTS[0] * (int(OUTPUTS[1].vmax) + 1) + OUTPUTS[1]
  out = UOp.param(OUT, dtypes.float, (SIZE,))
  return UOp.sink(out.index(place).store(value).end(*OUTPUTS), arg=KernelInfo())

def _product(rng: random.Random, loops: tuple[UOp, ...]) -> UOp:
  """A product of a load that depends on the row and two that rows share, with equal or different indices."""
  own, shared, other = (rng.sample(loops, rng.randint(1, len(loops))) for _ in range(3))
  return load(0, *own, *OUTPUTS) * (load(1, *shared) * load(2, *rng.choice((shared, other))))

def kernels(count: int) -> Iterator[UOp]:
  """Kernels of one sum of products; each fourth sums any random expression."""
  for seed in range(count):
    rng = random.Random(seed)
    loops = tuple(rng.sample(LOOPS, rng.randint(1, 3)))
    value = functools.reduce(operator.add, [_product(rng, loops) for _ in range(rng.randint(1, 3))])
    yield kernel((value if seed % 4 else drawn(rng, (*OUTPUTS, *loops), ())).reduce(*loops, arg=Ops.ADD))

def changed(run: Callable[[UOp], UOp], graphs: Iterable[UOp], error: float = 0) -> int:
  """The number of graphs that a pass changes. AssertionError if one computes something else afterwards."""
  found = 0
  for i, graph in enumerate(graphs):
    made = run(graph)
    assert same(graph, made, error), i
    found += made is not graph
  return found
