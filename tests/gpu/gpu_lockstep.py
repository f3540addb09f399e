"""
Runs a GPU kernel in numpy: all threads of a workgroup execute each op in lockstep, as a warp does.

It also runs what no device here can: shuffles between the threads of a warp. It is slow: only for tests of small
kernels.
"""
import itertools
import math
from collections.abc import Iterator

import numpy as np
from tinygrad.dtype import AddrSpace, DType, _to_np_dtype
from tinygrad.uop.ops import GroupOp, Ops, UOp, sym_infer
from tinygrad_llm.patches.ir.intrinsics import named
from tinygrad_llm.patches.isa.dot_int8_gpu import DOT4
from tinygrad_llm.patches.isa.fields_in_place import LOP3
from tinygrad_llm.patches.isa.shuffle_reduce import EXCHANGES
from tinygrad_llm.patches.isa.table_lookup_gpu import PERMUTE
from tinygrad_llm.patches.search.cost.memory_access import BINARY

UNARY = {Ops.NEG: np.negative, Ops.SQRT: np.sqrt, Ops.EXP2: np.exp2, Ops.LOG2: np.log2, Ops.RECIPROCAL: np.reciprocal}

def _kind(dtype: DType) -> type:
  kind = _to_np_dtype(dtype)
  assert kind is not None, dtype
  return kind

class Group:
  """The threads of one workgroup. args: the arguments' arrays by slot; the kernel writes to them."""
  def __init__(self, uops: list[UOp], args: dict[int, np.ndarray], group: tuple[int, ...]):
    self.uops, self.args, self.at = uops, args, group
    local = sorted((u for u in uops if u.op is Ops.SPECIAL and u.arg.startswith("lidx")), key=lambda u: u.arg)
    sizes = [int(u.src[0].vmax) for u in local]
    self.n, self.values, self.gates = math.prod(sizes), dict[UOp, object](), list[np.ndarray]()
    for i, u in enumerate(local): self.values[u] = np.arange(self.n) // math.prod(sizes[:i]) % sizes[i]

  def run(self) -> None:
    i, starts = 0, dict[UOp, int]()
    while i < len(self.uops):
      u = self.uops[i]
      if u.op is Ops.RANGE: starts[u], self.values[u] = i, np.zeros(self.n, np.int64)
      elif u.op is Ops.END:
        loop = next(s for s in u.src[1:] if s.op is Ops.RANGE)
        self.values[loop] = self.values[loop] + 1  # type: ignore[operator]
        if self.values[loop][0] < np.ravel(self.values[loop.src[0]])[0]:  # type: ignore[index]
          i = starts[loop] + 1
          continue
      elif u.op is Ops.IF: self.gates.append(self.values[u.src[0]])  # type: ignore[arg-type]
      elif u.op is Ops.ENDIF: self.gates.pop()
      elif u.op is Ops.STORE: self.store(u)
      elif u.op not in (Ops.SINK, Ops.BARRIER, Ops.GROUP, Ops.NOOP): self.values[u] = self.value(u)
      i += 1

  def value(self, u: UOp):
    src = [self.values.get(s) for s in u.src]
    match u.op:
      case Ops.SPECIAL: return self.values[u] if u.arg.startswith("lidx") else np.full(self.n, self.at[int(u.arg[4:])])
      case Ops.PARAM: return self.args[u.arg.slot]
      case Ops.BUFFER:  # one array for all threads; of registers, each thread has its own part
        size = math.prod(u.max_shape)
        return self.values.get(u, np.zeros(size * (self.n if u.addrspace is AddrSpace.REG else 1), _kind(u.dtype)))
      case Ops.AFTER: return src[0]
      case Ops.CONST: return np.array(u.val)
      case Ops.INDEX | Ops.SHRINK:
        if u.src[0].addrspace in (None, AddrSpace.ALU): return src[0][:, int(u.src[1].vmax)]
        size = int(u.src[2].vmax) if u.op is Ops.SHRINK else 1
        own = np.arange(self.n) * (len(src[0]) // self.n) if u.src[0].addrspace is AddrSpace.REG else 0
        return src[0], np.broadcast_to(src[1] + own, (self.n,))[:, None] + np.arange(size)
      case Ops.LOAD:
        array, at = src[0]
        gate = np.broadcast_to(src[2], (self.n,)) if len(src) > 1 else np.ones(self.n, bool)  # else the load is src[1]
        assert ((at >= 0) & (at < len(array)))[gate].all(), "beyond a buffer"
        found = np.where(gate[:, None], array[np.where(gate[:, None], at, 0)], src[1] if len(src) > 1 else 0)
        return found if at.shape[1] > 1 else found[:, 0]
      case Ops.STACK: return src and np.stack([np.broadcast_to(s, (self.n,)) for s in src], -1)
      case Ops.CAST: return src[0].astype(_kind(u.dtype))
      case Ops.BITCAST: return np.ascontiguousarray(src[0]).view(_kind(u.dtype))
      case Ops.WHERE: return np.where(*src)
      case Ops.MULACC: return src[0] * src[1] + src[2]
      case Ops.WMMA: return wmma(u.arg[2], u.arg[0], *src)
      case Ops.CUSTOM if named(u.arg) in (DOT4, PERMUTE):
        a, b = (np.broadcast_to(s, (self.n,)).astype(np.uint32)[:, None].view(np.int8) for s in src[:2])
        if named(u.arg) is DOT4: return ((a * b.astype(np.int32)).sum(-1) + src[2]).astype(np.int32)
        at = np.broadcast_to(src[2], (self.n,))[:, None] >> np.arange(0, 16, 4) & 7
        return np.take_along_axis(np.hstack([a, b]), at.astype(np.int64), 1).view(np.uint32)[:, 0]
      case Ops.CUSTOMI if named(u.arg) is LOP3: return (src[0].astype(np.uint32) & src[1] ^ src[2]).astype(np.uint32)
      case Ops.CUSTOM:
        bit = next(bit for bit, exchange in EXCHANGES.items() if named(u.arg) is exchange)
        return src[0][np.arange(self.n) ^ bit]
    assert u.op in GroupOp.ALU, u.op
    found = UNARY[u.op](src[0]) if u.op in UNARY else BINARY[u.op](*src)
    return found if u.op in GroupOp.Comparison else found.astype(_kind(u.dtype))

  def store(self, u: UOp) -> None:
    (array, at), value = self.values[u.src[0]], self.values[u.src[1]]  # type: ignore[misc]
    value = np.broadcast_to(value if np.ndim(value) == 2 else np.broadcast_to(value, (self.n,))[:, None], at.shape)
    wanted = np.logical_and.reduce(self.gates) if self.gates else np.ones(self.n, bool)
    array[at[wanted]] = value[wanted]

# *** tensor cores: fragments: the elements (.., row or column, k) or (.., row, column) of each thread of a warp

def _m16n8(k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Fragments of mma.m16n8k8 and k16 for halves. Source: PTX ISA, matrix fragments for mma."""
  lane = np.arange(32)[:, None]
  group, own = lane // 4, lane % 4 * 2
  # A: rows g and g + 8, then both again at k + 8; B: again at k + 8
  of_a = [np.stack([group + e // 2 % 2 * 8, own + e % 2 + e // 4 * 8], -1) for e in range(k // 2)]
  of_b = [np.stack([group, own + e % 2 + e // 2 * 8], -1) for e in range(k // 4)]
  of_c = [np.stack([group + e // 2 * 8, own + e % 2], -1) for e in range(4)]
  return tuple(np.concatenate(of, 1) for of in (of_a, of_b, of_c))

def _simdgroup() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Fragments of simdgroup_matrix 8 x 8: each thread has two neighbours of a row. B is given as (column, k)."""
  lane = np.arange(32)[:, None]
  row, column = lane // 2 % 4 + lane // 16 * 4, lane % 2 * 2 + lane // 8 % 2 * 4
  of = [np.stack([row, column + e], -1) for e in range(2)]
  of_b = [np.stack([column + e, row], -1) for e in range(2)]
  return np.concatenate(of, 1), np.concatenate(of_b, 1), np.concatenate(of, 1)

def _amd(own: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """
  Fragments of v_wmma_f32_16x16x16_f16 in a wave of 32; own: elements of A a thread, 16 on RDNA3, 8 on RDNA4.

  RDNA3: both halves of a wave have the same 16 of k, and every second row of C. RDNA4: each half has 8 of k, and 8
  neighbouring rows. Source: https://gpuopen.com/learn/wmma_on_rdna3/ and RDNA4's ISA.
  """
  lane = np.arange(32)[:, None]
  line, half = lane % 16, lane // 16
  of_a = [np.stack([line, e + half * (8 if own == 8 else 0)], -1) for e in range(own)]
  of_c = [np.stack([e + half * 8 if own == 8 else 2 * e + half, line], -1) for e in range(8)]
  return np.concatenate(of_a, 1), np.concatenate(of_a, 1), np.concatenate(of_c, 1)

def wmma(device: str, dims: tuple[int, int, int], a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
  """Each thread's fragment of A @ B + C. a, b, c: fragments (threads, elements of a thread)."""
  n, m, k = dims
  of_a, of_b, of_c = _simdgroup() if device == "METAL" else _amd(a.shape[-1]) if device == "AMD" else _m16n8(k)
  found = np.empty((len(a), c.shape[-1] if c.ndim else 1), np.float32)
  c = np.broadcast_to(c, found.shape)
  for i in range(0, len(a), 32):
    tile_a, tile_b, tile = (np.full(shape, np.nan) for shape in ((m, k), (n, k), (m, n)))
    tile_a[of_a[..., 0], of_a[..., 1]], tile_b[of_b[..., 0], of_b[..., 1]] = a[i:i + 32], b[i:i + 32]
    tile[of_c[..., 0], of_c[..., 1]] = c[i:i + 32]
    tile = tile_a @ tile_b.T + tile
    found[i:i + 32] = tile[of_c[..., 0], of_c[..., 1]]
  return found

def run(uops: list[UOp], args: dict[int, np.ndarray], variables: dict[str, int] | None = None) -> None:
  """Runs all workgroups, one after another."""
  for group in _groups(uops, variables or {}): Group(uops, args, group).run()

def _groups(uops: list[UOp], variables: dict[str, int]) -> Iterator[tuple[int, ...]]:
  sizes = {u.arg: int(sym_infer(u.src[0], variables)) for u in uops if u.op is Ops.SPECIAL and u.arg.startswith("gidx")}
  return itertools.product(*[range(sizes[name]) for name in sorted(sizes)])
