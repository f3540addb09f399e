"""schedule/choose.py: the order in which choosers are asked for a schedule, and the answer that is taken."""
from tests.support import scheduling
import pytest
from tinygrad import Tensor, dtypes
from tinygrad.codegen.opt import heuristic
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.uop.ops import UOp
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.schedule import choose

pytestmark = pytest.mark.skipif(not is_on("choose"), reason="it is off")

def ast_of(y: Tensor) -> UOp: return y.contiguous().linear_with_vars()[0].src[-1].src[0]

KERNELS = {"gemv": ast_of((Tensor.empty(1, 512) * Tensor.empty(640, 512, dtype=dtypes.half)).sum(-1)),
           "reductions": ast_of(Tensor.empty(1, 4096).max(-1)), "stock": ast_of(Tensor.empty(33).exp())}

def started(name: str) -> Scheduler: return scheduling.started(KERNELS[name], "CUDA")

ORDER = ("kernel_chains", "block_reductions", "reductions", "elementwise", "gemv")

def test_specific_choosers_are_asked_first():
  """Specific choosers are asked before general ones."""
  assert tuple(reversed(choose.choosers)) == tuple(who for who in ORDER if is_on(who))

def test_tinygrad_calls_the_dispatcher(): assert heuristic.hand_coded_optimizations is choose.hand_coded_optimizations

@pytest.mark.parametrize("name", KERNELS)
def test_first_answer_wins(name, monkeypatch):
  """Choosers before the first answer are asked and have none; later ones are not asked."""
  asked = []
  def recorded(who, chooser):
    return lambda k: (asked.append(who), chooser(k))[1]
  for who, chooser in [*choose.choosers.items()]: monkeypatch.setitem(choose.choosers, who, recorded(who, chooser))
  made = choose.choose(k := started(name))
  order = [who for who in ORDER if who in choose.choosers]
  assert asked == order[:order.index(name) + 1] if name in order else asked == order
  assert bool(made.applied_opts) or name == "stock"
  assert not k.applied_opts  # the given kernel is unchanged
  if name in order: assert choose.choose(started(name), without=name).applied_opts != made.applied_opts

def test_falls_back_to_tinygrad_heuristic(monkeypatch):
  monkeypatch.setattr(choose, "choosers", {})
  for name in KERNELS:
    assert choose.choose(started(name)).applied_opts == choose._stock(started(name)).applied_opts
