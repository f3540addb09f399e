"""
Long reductions on GPUs: alone (argmax of logits, row sums), and fused with the products that they scale (norms).

The functions give the compiled kernels and their results, run by numpy as for CUDA, or by the default device. They run
in a child process whose default device is a GPU, or is scheduled like one.
"""
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.gpu import gpu_lockstep
from tests.gpu import gpu_renderers
import numpy as np
import tinygrad_llm  # noqa: F401  (before tinygrad: it applies the patches)
from tests.gpu.gpu_numbers import _error, file_rows, held
from tests.gpu.gpu_schedules import quant_named
from tinygrad import Tensor, dtypes
from tinygrad.codegen import to_program
from tinygrad.engine import realize, worker
from tinygrad.helpers import PARALLEL, Context
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.engine.sampling import greedy_key, greedy_token
from tinygrad_llm.quants.table import reference
from tinygrad_llm.weights.decode import dequantize

Case = Callable[[], tuple[Tensor, np.ndarray]]
MOST = 2e-5  # error, as a fraction of the root mean square of the results

# *** norms

class Norm(NamedTuple):
  """
  x (1, tokens, n), RMS-normed, times a matrix of a type (rows, n). `options`: words for variants.

  `gate`: the first half of the rows gates the second. `bias`: a bias is added. `residual`: x is a sum. `post`: the
  result is normed, too. `twice`: x is divided by its root mean square twice. `both`: the normed x is added to the
  result.
  """
  type: str
  rows: int
  n: int
  tokens: int = 1
  options: str = ""

  def __call__(self) -> tuple[Tensor, np.ndarray]:
    rng, qt = np.random.default_rng(self.rows + self.n), quant_named(self.type)
    packed, lay = held(qt, raw := file_rows(qt, self.rows, self.n), self.n)
    w = reference(qt, raw.reshape(-1), self.n).reshape(self.rows, self.n).astype(np.float64)
    lazy_w = dequantize(qt, packed if lay is None else lay.rows(packed), self.n, lay)
    arrays = [rng.standard_normal(shape).astype(np.float32) * 3
              for shape in ((1, self.tokens, self.n), (1, self.tokens, self.n), (self.n,), (self.rows,))]
    x, y, by, bias = (Tensor(a).realize() for a in arrays)
    ax, ay, aby, abias = (a.astype(np.float64) for a in arrays)
    if "residual" in self.options: x, ax = x + y, ax + ay
    h = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * by
    ah = ax / np.sqrt((ax ** 2).mean(-1, keepdims=True) + 1e-5) * aby
    if "twice" in self.options:
      h, ah = (v * ((u * u).mean(-1, **keep) + 1e-5) ** -0.5 for v, u, keep in
               ((h, x, {"keepdim": True}), (ah, ax, {"keepdims": True})))
    z, az = h @ lazy_w.transpose(-1, -2), ah @ w.T
    if "bias" in self.options: z, az = z + bias, az + abias
    if "gate" in self.options:
      k = self.rows // 2
      z, az = (z[..., :k].silu() * z[..., k:]).contiguous(), az[..., :k] / (1 + np.exp(-az[..., :k])) * az[..., k:]
    if "post" in self.options:
      z = z * (z.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
      az = az / np.sqrt((az ** 2).mean(-1, keepdims=True) + 1e-5)
    return (z, az) if "both" not in self.options else (z.sum(-1, keepdim=True) + h, az.sum(-1, keepdims=True) + ah)

def random_norms(seed: int, count: int) -> Iterator[Norm]:
  rng = np.random.default_rng(seed)
  for _ in range(count):
    name = str(rng.choice(["Q4_K", "Q6_K", "Q8_0", "MXFP4", "F16"]))
    block = max(quant_named(name).block, 16)
    odds = {"bias": 0.35, "gate": 0.35, "residual": 0.35, "post": 0.2, "twice": 0.2, "both": 0.1}
    options = [option for option, p in odds.items() if rng.random() < p]
    yield Norm(name, 2 * int(rng.integers(2, 40)), block * int(rng.integers(1, 1536 // block + 1)),
               2 if rng.random() < 0.25 else 1, " ".join(options))

# *** reductions alone

class Row(NamedTuple):
  """A reduction of `outputs` rows of n elements each. op: sum or max, of float32, int32 or int64."""
  op: str
  n: int
  dtype: str = "float32"
  outputs: int = 1

  def __call__(self) -> tuple[Tensor, np.ndarray]:
    rng = np.random.default_rng(self.n)
    x = (rng.standard_normal((self.outputs, self.n)) * 1000 - 8000).astype(self.dtype)  # below 0, the padding value
    lazy = Tensor(x).realize()
    return getattr(lazy, self.op)(1), getattr(x.astype(np.float64 if self.dtype == "float32" else np.int64), self.op)(1)

def weighted(experts: int, rows: int, n: int) -> tuple[Tensor, np.ndarray]:
  """Experts' products with biases, summed by shares: reductions over some of a workgroup's threads, and over all."""
  rng = np.random.default_rng(n)
  x, w, bias, share = arrays = [rng.standard_normal(shape).astype(np.float32) for shape in (
    (experts, 1, n), (experts, rows, n), (experts, rows), (experts, 1))]
  lx, lw, lb, ls = (Tensor(a).realize() for a in arrays)
  x64 = x.astype(np.float64)
  return (((lx * lw).sum(-1) + lb) * ls).sum(0), (((x64 * w).sum(-1) + bias) * share).sum(0)

def errors_of_weighted(cases: list[list[int]]) -> list[float]:
  return [_error(y.numpy(), wanted) for y, wanted in (weighted(*of) for of in cases)]

def argmax(n: int) -> bool:
  """Whether argmax finds the first of several equal largest logits."""
  x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
  x[np.random.default_rng(n + 1).integers(n, size=3)] = 9
  return greedy_token(int(greedy_key(Tensor(x.reshape(1, 1, n)).realize()).item())) == int(x.argmax())

# *** results and figures

def case(of: list) -> Case:
  """A Norm or a Row from its fields."""
  return Norm(*of) if of[0] not in ("sum", "max") else Row(*of)

def errors(cases: list[list]) -> list[float]:
  """Errors on the default device of cases, or of random norms if `cases` is (seed, count)."""
  if isinstance(cases[0], int): return [_error(y.numpy(), wanted) for y, wanted in (c() for c in random_norms(*cases))]
  return [_error(y.numpy(), wanted) for y, wanted in (case(of)() for of in cases)]

def argmaxima(sizes: list[int]) -> list[bool]: return [argmax(n) for n in sizes]

def _kernels(y: Tensor) -> list[UOp]: return list(y.linear_with_vars()[0].src)

def counts(cases: list[list]) -> list[int]: return [len(_kernels(case(of)()[0])) for of in cases]

class Kernel(NamedTuple):
  """A kernel. blocks: workgroups; threads: of one; exchanges: warp shuffles; steps: iterations of the longest loop."""
  opts: str
  blocks: int
  threads: int
  exchanges: int
  steps: int
  source: str

def _kernel(uops: list[UOp], target: str) -> Kernel:
  def size(prefix: str) -> int:
    return math.prod(int(u.src[0].vmax) for u in uops if u.op is Ops.SPECIAL and u.arg.startswith(prefix))
  applied = " ".join(f"{opt.op.name}:{opt.axis}:{opt.arg}" for opt in gpu_renderers.opts(uops))
  steps = max([int(u.vmax) + 1 for u in uops if u.op is Ops.RANGE], default=1)
  exchanges = sum(u.op is Ops.CUSTOM and u.dtype in (dtypes.float, dtypes.uint32) for u in uops)
  return Kernel(applied, size("gidx"), size("lidx"), exchanges, steps, gpu_renderers.RENDERERS[target].render(uops))

def lockstep(target: str, cases: list[list]) -> list[tuple[float, list[Kernel]]]:
  """Runs all kernels of cases in numpy: the error and the kernels of each case."""
  found = []
  for of in cases:
    y, wanted = case(of)()
    memory: dict[UOp, np.ndarray] = {}
    kernels = []
    for call in _kernels(y):
      uops = gpu_renderers.lowered(call.src[0], target)
      kinds = {u.arg.slot: u.dtype for u in uops if u.op is Ops.PARAM}
      for i, u in enumerate(call.src[1:]):
        if u in memory: continue
        b = u.buffer
        raw = bytes(b.as_memoryview()) if b.is_allocated() else bytes(b.nbytes)
        memory[u] = np.frombuffer(raw, kinds[i].fmt).copy()
      gpu_lockstep.run(uops, {i: memory[u] for i, u in enumerate(call.src[1:])})
      kernels.append(_kernel(uops, target))
    result = next(memory[u] for u in memory if u.buffer is y.uop.base.buffer)
    found.append((_error(result.reshape(wanted.shape), wanted), kernels))
  return found

def keys(target: str, sizes: list[int]) -> list[list[Kernel]]:
  """The kernels of the argmax of `sizes` logits."""
  return [[_kernel(gpu_renderers.lowered(call.src[0], target), target)
           for call in _kernels(greedy_key(Tensor.empty(1, 1, n)))] for n in sizes]

def sources(cases: list[list]) -> list[str]:
  """Sources of the kernels of cases for the default device, from a compile worker if there are any."""
  calls = [call for of in cases for call in _kernels(case(of)()[0])]
  with Context(CACHELEVEL=0): context = {v.key: v.value for v in realize.to_program_context}
  tasks = [(i, realize._get_call_to_compile(call), context) for i, call in enumerate(calls)]
  if not PARALLEL: return [to_program(*task).src[2].arg for _, task, _ in tasks]
  made = dict(worker.get_worker_pool().map(realize._compile_kernel, tasks))
  return [made[i].src[2].arg for i in range(len(tasks))]
