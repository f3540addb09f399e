"""Inputs for the tests of compile_time passes: a layer, other tensors that models use, and random graphs."""
import random

from tinygrad import Tensor, dtypes, function
from tinygrad.uop.ops import Ops, UOp

@function
def layer(x: Tensor, w: Tensor) -> Tensor:
  return ((x * (x * x).mean(-1, keepdim=True).rsqrt()) @ w.T.float()).silu() + x

def graphs() -> list[Tensor]:
  """Layers, a softmax over a symbolic length, a gather, a scan, unpacked bits and padding."""
  n = UOp.variable("n", 1, 64).bind(17)
  x, w, ids = Tensor.empty(4, 96), Tensor.empty(96, 96, dtype=dtypes.half), Tensor.empty(7, dtype=dtypes.int)
  words = Tensor.empty(32, 12, dtype=dtypes.uint32)
  return [layer(layer(x, w), w), Tensor.empty(8, 64)[:, :n].softmax(), w[ids].float(), x.cumsum(1).max(0),
          ((words.unsqueeze(-1) >> Tensor.arange(0, 32, 8)) & 255).cast(dtypes.int8).sum(1),
          x.pad(((1, 2), (0, 3))) * 2.5]

def random_graph(rng: random.Random) -> UOp:
  """A random graph of operations and constants, with twin nodes that differ only in a tag."""
  nodes = [UOp.const(i, dtypes.int) for i in range(4)] + [UOp.const(0.5 * i, dtypes.float) for i in range(3)]
  nodes += [UOp.range(n, n) for n in (3, 4)]
  for _ in range(150):
    op = rng.choice((Ops.ADD, Ops.MUL, Ops.MAX, Ops.WHERE, Ops.CUSTOM, Ops.CAST))
    src = tuple(rng.choices(nodes[-12:] + nodes[:4], k=rng.randrange(1, 5)))
    nodes.append(UOp(op, rng.choice((dtypes.int, dtypes.float)), src, rng.choice("ab") if op is Ops.CUSTOM else None,
                     rng.choice((None, None, "twin"))))
  return UOp.sink(*nodes)
