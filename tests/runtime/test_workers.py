"""patches/runtime/workers.py and estimates.py: kernels of any depth come back from compile workers."""
import pickle
from multiprocessing.reduction import ForkingPickler
import pytest
from child import run
from tinygrad import Context, Tensor, UOp, dtypes
from tinygrad.codegen import to_program
from tinygrad.engine import realize
from tinygrad.uop.ops import Ops, sym_infer
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.runtime import estimates

pytestmark = pytest.mark.skipif(not (is_on("workers") and is_on("estimates")), reason="they are off")

def chain(n: int) -> UOp:
  u = UOp.const(1, dtypes.int)
  for i in range(n): u = UOp(Ops.XOR, dtypes.int, (u, UOp.const(i, dtypes.int)))
  return u

def sent(x): return pickle.loads(bytes(ForkingPickler.dumps(x)))

def test_graphs_of_any_depth_are_sent():
  deep = chain(5000)
  with pytest.raises(RecursionError): pickle.dumps(deep)
  assert sent((3, deep)) == (3, deep)
  assert sent(deep) is deep

def test_buffers_are_sent_with_their_contents():
  x = (Tensor([1., 2., 3.]).realize() * 2).uop
  assert Tensor(sent(x)).tolist() == [2., 4., 6.]

def test_estimates_are_simple():
  """Windows of n numbers at 80 places of a buffer: stock's bytes are min(min(n + n, size) + n, size) + .."""
  n, x = UOp.variable("n", 1, 64).bind(3), Tensor.empty(512)
  total = sum([x[i:i + n] for i in range(2, 160, 2)], x[:n])
  ast, renderer = realize._get_call_to_compile(total.linear_with_vars()[0].src[-1])
  with Context(CCACHE=0): program = to_program(ast, renderer)
  found, stock = program.src[0].arg.estimates, estimates._stock(program.src[1].src, ignore_indexing=True)
  assert len(found.mem.toposort()) < 20 < 200 < len(stock.mem.toposort())
  for value in (1, 3, 64):
    for field in ("ops", "lds", "mem"):
      assert sym_infer(getattr(found, field), {"n": value}) == sym_infer(getattr(stock, field), {"n": value})

def test_workers_and_estimates_switched_off():
  code = """
import pickle, tinygrad_llm
from multiprocessing.reduction import ForkingPickler
from tinygrad.renderer import Estimates
from tinygrad.uop.ops import UOp
print(UOp in ForkingPickler._extra_reducers, Estimates.from_uops.__module__)
"""
  on, off = (run(code, **env).stdout for env in ({}, {"NO_WORKERS": "1", "NO_ESTIMATES": "1"}))
  assert (on, off) == ("True tinygrad_llm.patches.runtime.estimates\n", "False tinygrad.renderer\n")
