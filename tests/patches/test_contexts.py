"""The kernel being lowered is held in a context: targets in turns, nested lowering, several threads."""
import random
from concurrent.futures import ThreadPoolExecutor

from tests.gpu import gpu_renderers
import pytest
from tests.tools.kernel_hashes import hash_of
from tinygrad import Tensor, dtypes
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import UOp
from tinygrad_llm.patches import is_on, hooks
from tinygrad_llm.patches.host.process_lock import lock

pytestmark = pytest.mark.skipif(not is_on("hooks"), reason="there are no passes")
TARGETS = ("CUDA", "Metal", "OpenCL")

def kernels() -> list[UOp]:
  """A matvec with halves, an elementwise kernel, a norm's sum."""
  w, x = Tensor.empty(640, 512, dtype=dtypes.half), Tensor.empty(1, 512)
  made = [(x * w).sum(-1), x.exp() * 2, (x * x).mean(-1)]
  return [y.contiguous().linear_with_vars()[0].src[-1].src[0] for y in made]

def lower(ast: UOp, target: str) -> tuple[str, tuple]:
  """The hash of a kernel's source, and its SINK's tag: the pass that scheduled it, and its node counts."""
  renderer = gpu_renderers.named(target)
  uops = gpu_renderers.lowered(ast, target)
  with lock: source = renderer.render(uops)  # a renderer keeps state while it renders
  return hash_of(source), next(u.tag for u in uops if u.tag is not None and len(u.tag) == 3)

@pytest.fixture(scope="module")
def wanted() -> dict[tuple[UOp, str], tuple[str, tuple]]:
  return {(ast, target): lower(ast, target) for ast in kernels() for target in TARGETS}

def test_kernels_of_targets_differ(wanted): assert len({source for source, _ in wanted.values()}) == len(wanted)

def test_interleaved_targets(wanted):
  turns = random.Random(1).sample([*wanted] * 2, 2 * len(wanted))
  for ast, target in turns: assert lower(ast, target) == wanted[ast, target]

@pytest.mark.parametrize("place", ["before_opts", "after_opts", "before_linearize"])
def test_nested_lowering(wanted, place):
  """A pass may lower another kernel for another target; the outer lowering is not affected."""
  found, (inner, *rest) = [], [*wanted]
  def nested(sink: UOp, ren: Renderer) -> UOp:
    if not found:
      found.append(None)  # no further nesting
      found[0] = lower(*inner)
    return sink
  getattr(hooks, place).insert(0, nested)
  try:
    for ast, target in rest:
      found.clear()
      assert lower(ast, target) == wanted[ast, target]
      assert found == [wanted[inner]]
  finally: getattr(hooks, place).remove(nested)

def test_lowering_in_threads(wanted):
  with ThreadPoolExecutor(4) as pool:
    found = pool.map(lambda unit: (unit, lower(*unit)), [*wanted] * 3)
    assert all(wanted[unit] == made for unit, made in found)

def test_contexts_are_left():
  assert hooks.lowering() is None
  assert not hooks.is_stage()
  with hooks.stages(): assert hooks.is_stage()
  assert not hooks.is_stage()
