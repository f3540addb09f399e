"""
The role of each kernel of a step, from the tensors that it reads and from the kernels that read its result.

Roles are: embedding, head, sampling; in a layer, its weights (attn_norm, ffn_down), the input of a matrix (input of
ffn_down), expert routing, and the parts of attention. Those parts read the KV cache, or work for kernels that do.
"""
from __future__ import annotations
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from tinygrad import UOp, dtypes
from tinygrad.engine.realize import get_call_arg_uops
from tinygrad.uop.ops import Ops
from tinygrad_llm.analysis.programs import Reads, Rows, role

EMBEDDING, ROUTING, HEAD, SAMPLING, OTHER, INPUT = (
  "embedding", "routing", "head", "sampling", "other", "input of ")
ATTENTION = "attention"  # all of attention in one kernel, for few queries
ROPE, WRITE, SCORES, SOFTMAX, VALUES = (
  f"attention: {part}" for part in ("rope, mask", "KV cache", "scores", "softmax", "values"))

@dataclass(frozen=True)
class _Kernel:
  """A kernel's call: the file's tensors and the KV caches that it uses, and all arguments that it reads and writes."""
  tensors: tuple[str, ...]
  caches: frozenset[UOp]
  written_caches: frozenset[UOp]
  reads: frozenset[UOp]
  writes: tuple[UOp, ...]

  @classmethod
  def of(cls, call: UOp, weights: Mapping[UOp, Rows], caches: set[UOp]) -> _Kernel:
    (ins, outs), args = _places(call.src[0]), get_call_arg_uops(call)
    used = Reads.of(call, weights, caches, (*ins, *outs))
    held = {i: next(u for u in args[i].toposort() if u.op is Ops.BUFFER) for i in used.caches}
    return cls(tuple(name for rows in used.weights.values() for name in rows.names), frozenset(held.values()),
               frozenset(held[i] for i in used.caches & set(outs)), frozenset(args[i] for i in ins),
               tuple(args[i] for i in outs))

  @property
  def in_layer(self) -> bool: return any(name.startswith("blk.") for name in self.tensors)

def _places(kernel: UOp) -> tuple[Sequence[int], Sequence[int]]:
  """The slots of the arguments that a kernel, compiled or not, reads, and of those that it writes."""
  if kernel.op is Ops.PROGRAM: return kernel.arg.ins, kernel.arg.outs
  ops = kernel.toposort()
  stored = {u.src[0] for u in ops if u.op is Ops.STORE}
  def slots(places: Iterable[UOp]) -> list[int]:
    found = {u.src[0].buf_uop for u in places if u.src and u.src[0].buf_uop.op is Ops.PARAM}
    return sorted(u.arg.slot for u in found)
  return slots(u for u in ops if u.op is Ops.INDEX and u not in stored), slots(stored)

def groups(calls: Sequence[UOp], weights: Mapping[UOp, Rows], caches: set[UOp]) -> list[str]:
  """The role of each call of a schedule, compiled or not. weights: by the buffer that holds them; caches: buffers."""
  kernels = [_Kernel.of(call, weights, caches) for call in calls]
  layers = [i for i, kernel in enumerate(kernels) if kernel.in_layer]
  first, last = (layers[0], layers[-1]) if layers else (0, -1)
  layer = _attention_of(kernels)
  readers = [(i, cache) for i, kernel in enumerate(kernels) for cache in kernel.caches - kernel.written_caches]
  routers = {u for kernel in kernels if any("ffn_gate_inp." in name for name in kernel.tensors) for u in kernel.writes}
  made = {u: i for i, kernel in reversed([*enumerate(kernels)]) for u in kernel.writes}  # the first writer
  names: dict[int, str] = {}
  for i, kernel in reversed([*enumerate(kernels)]):
    if kernel.written_caches: names[i] = WRITE
    elif kernel.caches:
      names[i] = _of_caches(i, [[j for j, c in readers if c is cache and layer[j] == layer[i]]
                                for cache in kernel.caches])
    elif kernel.in_layer: names[i] = _of_weights(kernel.tensors)
    elif kernel.tensors: names[i] = EMBEDDING if i < first else HEAD
    elif routers & kernel.reads: names[i] = ROUTING
    else:
      reader = None if (j := _reader(kernels, i)) is None else names[j]
      alone = all(made.get(u, i) >= i for u in kernel.reads)
      whole = all(dtypes.is_int(u.dtype) for u in kernel.writes)
      names[i] = _of_reader(reader, alone and i < last, i > last, whole)
  return [names[i] for i in range(len(kernels))]

def _attention_of(kernels: Sequence[_Kernel]) -> list[int]:
  """How many attentions end before each kernel: layers that share a cache read it for different ones."""
  ends = [any(".attn_output." in name for name in kernel.tensors) for kernel in kernels]
  return [*accumulate(ends, initial=0)][:-1]

def _of_caches(i: int, readers: Sequence[Sequence[int]]) -> str:
  """The role of kernel i, which reads caches. readers: for each of these, the kernels that read it, in order."""
  if all(len(of_one) == 1 for of_one in readers): return ATTENTION
  return SCORES if any(of_one[0] == i for of_one in readers) else VALUES

def _of_weights(tensors: Sequence[str]) -> str:
  """The role of a kernel that reads a layer's tensors: their names, without the biases of matrices among them."""
  if all(name.endswith("attn_sinks.weight") for name in tensors): return SOFTMAX
  named = [name for name in tensors if not name.endswith(".bias") or name.replace(".bias", ".weight") not in tensors]
  return role(named).replace("blk.*.", "")

def _reader(kernels: Sequence[_Kernel], i: int) -> int | None:
  """The next kernel that reads a result of kernel i before all of them are overwritten; None if there is none."""
  left = set(kernels[i].writes)
  for j in range(i + 1, len(kernels)):
    if left & kernels[j].reads: return j
    left -= set(kernels[j].writes)
  return None

def _of_reader(reader: str | None, alone: bool, after: bool, whole: bool) -> str:
  """
  The role of a kernel that works on activations, from the role of the kernel that reads them.

  - alone: it needs no other kernel's result, e.g. for rows of RoPE's table and for masks.
  - after: it comes after all layers.
  - whole: it writes integers, such as token ids.
  """
  if after: return SAMPLING if whole and reader in (None, SAMPLING) else HEAD
  if reader is None: return OTHER
  if alone or reader in (ROPE, WRITE, SCORES, ATTENTION): return ROPE
  if reader in (SOFTMAX, VALUES): return SOFTMAX
  if reader in (EMBEDDING, ROUTING, HEAD, SAMPLING, OTHER) or reader.startswith(INPUT): return reader
  parts = reader.split("+")
  norms = [part for part in parts if part.endswith("norm")]
  return reader if norms == parts else parts[0] if parts[0] in norms else f"{INPUT}{parts[0]}"

def order(names: Sequence[str]) -> list[str]:
  """
  The names of a step's groups in the order of the model.

  A name that only a later layer has follows the name that precedes it there. A group that runs before all layers, for
  use inside them, has its place among the layers' groups.
  """
  first, last = (EMBEDDING, OTHER), (HEAD, SAMPLING)
  inside = [name for name in names if name not in first + last]
  start = next((i for i, name in enumerate(inside) if ":" not in name and not name.startswith(INPUT)), 0)
  merged: list[str] = []
  for before, name in zip(["", *inside[start:]], inside[start:]):
    if name not in merged: merged.insert(merged.index(before) + 1 if before in merged else 0, name)
  ahead = dict.fromkeys(name for name in inside[:start] if name not in merged)
  return [*(name for name in first if name in names), *ahead, *merged, *(name for name in last if name in names)]
