"""compile_time/type_inference: dtypes and shapes of nodes equal tinygrad's own."""
import random
import weakref

import pytest
from tests.compile_time.layers import graphs
from tinygrad import Tensor, dtypes
from tinygrad.dtype import AddrSpace, ConstFloat, Invalid
from tinygrad.helpers import Context
from tinygrad.uop import ops
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.patches import is_on
from tinygrad_llm.patches.compile_time import type_inference

pytestmark = pytest.mark.skipif(not is_on("type_inference"), reason="it is off")

def test_inferred_properties_match_tinygrad():
  """Every node of kernels and of their source graphs has tinygrad's dtype, shape, address space and ranges."""
  seen = 0
  for lazy in graphs():
    for call in (lazy.uop, *lazy.linear_with_vars()[0].src):
      for node in call.toposort():
        what = node.op, node.src, node.arg
        assert type_inference.dtype_from_uop(*what) is type_inference._stock_dtype(*what)
        assert type_inference._shape(node) == type_inference._stock_shape(node)
        assert type_inference._addrspace(node) is type_inference._stock_addrspace(node)
        assert list(type_inference._ranges(node)) == list(type_inference._stock_ranges(node))
        seen += 1
  assert seen > 500

@pytest.mark.parametrize("seed", range(20))
def test_random_graph_ranges_match_tinygrad(seed):
  """Ranges come in tinygrad's order, also if a range's length depends on another range, and after ENDs."""
  rng = random.Random(seed)
  loops = [UOp.range(4, 0), UOp.range(8, 1)]
  loops.append(UOp.range(loops[0] + 3, 2))
  buffers = [UOp.param(0, dtypes.int, (64,), "CPU"), UOp.placeholder((64,), dtypes.int, 0, addrspace=AddrSpace.REG)]
  nodes = [UOp.const(i, dtypes.int) for i in range(2)] + [r.cast(dtypes.int) for r in loops]
  for _ in range(60):
    a, b = rng.choices(nodes[-8:] + nodes[:5], k=2)
    buffer, kind = rng.choice(buffers), rng.randrange(5)
    if kind < 2: nodes.append(a + b)
    elif kind == 2: nodes.append(buffer.index(a.cast(dtypes.weakint) if a.dtype is not dtypes.weakint else a).load())
    elif kind == 3: nodes.append(UOp(Ops.REDUCE, dtypes.int, (a, rng.choice(loops)), (Ops.ADD, 0)))
    else: nodes.append(buffer.after(buffer.index(rng.choice(loops)).store(a).end(*rng.sample(loops, 2))).index(b))
  for node in UOp.sink(*nodes).toposort():
    assert list(type_inference._ranges(node)) == list(type_inference._stock_ranges(node))
    assert list(node.ranges) == ([node] if node.op is Ops.RANGE else []) + list(node._ranges)
    assert type_inference._addrspace(node) is type_inference._stock_addrspace(node)

def test_cached_properties_hold_no_node():
  """Cached properties keep no node alive: a range's ranges contain it, yet it is freed. Errors are not cached."""
  loop = UOp.range(12_345, 77)
  seen = weakref.ref(loop)
  assert (loop + 1).ranges is (loop + 1).ranges and list(loop.ranges) == [loop]
  del loop
  assert seen() is None
  for _ in range(2):
    with pytest.raises(RuntimeError, match="shape requested"): UOp(Ops.NOOP).shape  # noqa: B018

@pytest.mark.parametrize("dtype", [*dtypes.all, dtypes.weakint, dtypes.weakfloat])
def test_constants(dtype):
  """Constants are converted as by tinygrad, signs included; the second time they may come from the cache."""
  values = [0, 1, -1, 3, 0.0, -0.0, 1.0, 0.1, -2.7, 1e30, float("nan"), float("inf"), True, False, Invalid]
  for val in (values + [ConstFloat(x) for x in values if isinstance(x, float)]) * 2:
    try: want = type_inference._stock_const(dtype, val)
    except (ValueError, OverflowError) as e:
      with pytest.raises(type(e)): dtype.const(val)
      continue
    assert repr(dtype.const(val)) == repr(want) and type(dtype.const(val)) is type(want)

def test_mixed_sources():
  a, b = UOp.const(1, dtypes.half), UOp.const(2, dtypes.float)
  assert ops.dtype_from_uop(Ops.ADD, (a, b), None) is dtypes.float
  assert (Tensor.empty(3, 1) + Tensor.empty(1, 4)).shape == (3, 4)
  with pytest.raises(IndexError): UOp(Ops.ADD, dtypes.float, (Tensor.empty(3).uop, Tensor.empty(4).uop)).shape  # noqa: B018

def test_shrink_shape():
  """
  A SHRINK's shape follows from its offset's bounds alone. A part outside its source is an error, as in tinygrad.

  With SPEC=2 tinygrad checks it itself.
  """
  x, i = UOp.placeholder((64,), dtypes.float, 0), UOp.range(16, 0)
  def cut(offset: UOp | int, size: int) -> UOp:
    def vector(u: UOp | int) -> UOp: return UOp.stack(u if isinstance(u, UOp) else UOp.const(u))
    return UOp(Ops.SHRINK, x.dtype, (x, vector(offset), vector(size)))
  for offset, size in ((i * 4, 4), (i + 40, 9), (3, 61), (0, 0), (i, 49)):
    assert type_inference._shrunk(*cut(offset, size).src) == (size,) == cut(offset, size).shape
  for offset, size in ((i * 4, 5), (i - 1, 4)):  # undecided: tinygrad accepts it
    assert type_inference._shrunk(*cut(offset, size).src) == cut(offset, size).shape == (size,)
  with Context(SPEC=2): assert type_inference._shrunk(*cut(i * 4, 4).src) is None and cut(i * 4 + 1, 3).shape == (3,)
  for offset, size in ((60, 5), (0, 65), (-1, 3), (i + 64, 1)):
    with pytest.raises(ValueError, match="invalid shrink"): cut(offset, size).shape  # noqa: B018
  n = UOp.variable("n", 1, 64)
  assert Tensor.empty(64)[:n.bind(7)].shape[0].vmax == 64
  with pytest.raises(ValueError): Tensor.empty(8).shrink(((2, 9),))

I, F, H, B = (UOp.const(1, dtype) for dtype in (dtypes.int, dtypes.float, dtypes.half, dtypes.bool))

@pytest.mark.parametrize(("op", "src", "arg", "dtype"), [
  (Ops.ADD, (F, F), None, dtypes.float), (Ops.CMPLT, (F, F), None, dtypes.bool),
  (Ops.CAST, (F,), dtypes.half, dtypes.half),
  (Ops.WHERE, (B, F, F), None, dtypes.float), (Ops.STORE, (F, F), None, dtypes.void),
  (Ops.SHL, (I, UOp.const(1, dtypes.uint32)), None, dtypes.int), (Ops.LOAD, (H,), None, dtypes.half),
  (Ops.ADD, (H, F), None, dtypes.float), (Ops.MULACC, (F, F, H), None, dtypes.float), (Ops.CUSTOM, (F,), "x", None)])
def test_dtype_rules(op, src, arg, dtype):
  """ADD of floats has its sources' dtype, a comparison bool, a CAST its argument; others as tinygrad finds them."""
  assert type_inference.dtype_from_uop(op, src, arg) is dtype is type_inference._stock_dtype(op, src, arg)

def test_property_derived_from_sources(monkeypatch):
  """A property is computed from the sources' properties if they are cached, else for the whole graph."""
  name = UOp.__dict__["_shape"].name
  x = UOp.placeholder((4, 3), dtypes.float, 0).reshape((4, 3))
  total = x + x * 2.0
  assert name not in vars(total.src[1]) and total._shape == (4, 3)
  calls: list[UOp] = []
  monkeypatch.setattr(UOp.__dict__["_shape"], "find", calls.append)
  assert total._shape == (4, 3) and not calls  # it is cached as an attribute
  monkeypatch.undo()
  assert vars(total.src[1])[name] == vars(total)[name] == (4, 3)
  more = total * 3.0
  assert more.src[1]._shape is not None and name not in vars(more)
  assert more._shape == (4, 3) == vars(more)[name]  # from its sources alone
