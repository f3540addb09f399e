"""
Rewrites of each pass on a small kernel, as text: the graph before and after.

A case is a tensor expression without memory. All its kernels are scheduled and lowered for a target while
explain/recording.py records. This runs in a child process, because a process can open only one target.
"""
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from bench.random_model import quant_named
from tinygrad import Device, Tensor, UOp, dtypes
from tinygrad.uop.ops import Ops
from tinygrad_llm.analysis import programs
from tinygrad_llm.device import captured
from tinygrad_llm.device.device import open_target
from tinygrad_llm.patches.explain import pseudocode, recording, transcript
from tinygrad_llm.patches.ir.intrinsics import called
from tinygrad_llm.weights import numerics
from tinygrad_llm.weights.decode import dequantize, layout
from tinygrad_llm.weights.weight import Weight

DEPTH, LINES = 4, 40  # levels of a printed expression; lines of a graph's difference

# *** cases

def weights(name: str, rows: int, n: int, experts: int = 0) -> Weight:
  """A matrix of a type, repacked as this target has it; with `experts`, two matrices for each expert."""
  qt, every = quant_named(name), rows * (2 * experts or 1)
  found = layout(qt, Device[Device.DEFAULT].renderer, every, n)
  if found is None: stored = Tensor.empty(every, qt.row_items(n), dtype=qt.dtype)
  else: stored = Tensor.empty(every // found.tile, found.row_words(n // qt.block), found.tile, dtype=dtypes.uint32)
  return Weight(qt, stored, (2, experts, rows, n) if experts else (every, n), found)

def vector(*shape: int, dtype: Any = dtypes.float32) -> Tensor: return Tensor.empty(*shape, dtype=dtype)

def some(most: int) -> UOp: return UOp.variable("tokens", 1, most).bind(most)

def in_bytes(n: int, tokens: int | UOp = 1) -> Tensor:
  """int8 activations with a scale for each group of 16."""
  return numerics.unpacked(vector(64 if isinstance(tokens, UOp) else tokens, n // 16, 6, dtype=dtypes.uint32)[:tokens])

def product(name: str, rows: int = 64, n: int = 512) -> Tensor: return weights(name, rows, n).matmul(vector(1, 1, n))

def product_of_bytes(name: str) -> Tensor: return weights(name, 256, 512).matmul(in_bytes(512))

def prompt_of_bytes(name: str, rows: int, n: int) -> Tensor:
  return weights(name, rows, n).matmul(in_bytes(n, some(64)).unsqueeze(0))

def prompt(name: str, dtype: Any = dtypes.half) -> Tensor:
  return weights(name, 128, 512).matmul(vector(1, 64, 512, dtype=dtype)[:, :some(64)].float())

def gated(name: str) -> Tensor:
  """Gate and up products of three chosen experts, the gate applied."""
  y = (in_bytes(512) * weights(name, 64, 512, experts=6).experts(vector(3, dtype=dtypes.int32))).sum(-1)
  return (y[0].relu() * y[1]).contiguous()

def weighted(name: str) -> Tensor:
  """The weighted sum of three experts' products with biases."""
  y = (vector(3, 1, 768) * weights(name, 64, 768, experts=6).experts(vector(3, dtype=dtypes.int32))[1]).sum(-1)
  return ((y + vector(3, 64)) * vector(3, 1)).sum(0)

def normed() -> Tensor:
  x = vector(1, 1, 2048)
  norm = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * vector(2048)
  return weights("Q4_K", 512, 2048).matmul(norm)

def added() -> Tensor: return product("Q8_0", 64, 1024) + product("Q8_0", 64, 512)

def beside() -> list[Tensor]:
  x = vector(1, 1, 512)
  return [weights("Q4_K", 2048, 512).matmul(x), weights("Q6_K", 1024, 512).matmul(x)]

def rows(name: str) -> Tensor:
  """A product with a matrix in the file's own layout."""
  qt = quant_named(name)
  return vector(1, 1024) @ dequantize(qt, vector(64, qt.row_items(1024), dtype=qt.dtype), 1024).transpose(-1, -2)

def values() -> Tensor:
  """Reductions over a symbolic number of positions."""
  n = UOp.variable("n", 0, 63).bind(32) + 1
  shares, kept = vector(32, 64)[:, :n], vector(8, 64, 64, dtype=dtypes.half)[:, :n]
  return shares.reshape(8, 4, 1, n) @ kept.float().unsqueeze(1)

def attention() -> Tensor:
  """One token's attention over a symbolic number of positions: 2 heads of 4 queries."""
  n, kv = UOp.variable("n", 1, 512).bind(300), vector(2, 2, 512, 64, dtype=dtypes.half)
  keys, kept = kv[0][:, :n].float(), kv[1][:, :n].float()
  scores = (vector(2, 4, 1, 64) * keys.unsqueeze(1)).sum(-1) / 8
  shares = (scores - scores.max(-1, keepdim=True)).exp()
  return (shares.unsqueeze(-1) * kept.unsqueeze(1)).sum(2) / shares.sum(-1, keepdim=True)

def scores() -> Tensor:
  """Products of rotated queries with many keys."""
  angle = vector(512, 32)
  q = vector(512, 32).sin() * angle.cos() * angle.sin() + angle
  return (q.unsqueeze(1) * vector(1024, 32).unsqueeze(0)).sum(-1)

# *** the case on which each pass acts; passes with such a test elsewhere are left out

CPU, AMX, CUDA, PTX = "CPU:x86-64-v4", "CPU:sapphirerapids", "CUDA:sm_90", "NV:PTX:sm_90"
CASES: dict[str, tuple[str, Callable[[], Any]]] = {
  "matvec": (CPU, lambda: product("Q4_K")), "bytes": (CPU, lambda: product_of_bytes("Q6_K")),
  "gated": (CPU, lambda: gated("Q4_K")), "weighted": (CPU, lambda: weighted("Q4_K")), "added": (CPU, added),
  "softmax": (CPU, lambda: vector(8, 24).softmax(-1)), "normed": (CPU, normed), "beside": (CPU, beside),
  "embedding": (CPU, lambda: vector(40000, 32)[vector(2, dtype=dtypes.int32)]), "values": (CPU, values),
  "attention": (CPU, attention), "scores": (CPU, scores), "codes": (CPU, lambda: rows("IQ4_XS")),
  "file": (CPU, lambda: rows("Q6_K")), "bf16": (CPU, lambda: prompt("BF16", dtypes.bfloat16)),
  "prompt": (CPU, lambda: prompt_of_bytes("Q6_K", 2048, 1024)),
  "packed": (CPU, lambda: numerics.pack(vector(1, 512) * 2.0)),
  "tiles": (AMX, lambda: prompt("Q6_K", dtypes.bfloat16)),
  "words": (CUDA, lambda: product("Q4_K")), "table": (CUDA, lambda: product("MXFP4")),
  "halves": (CUDA, lambda: product("F16")), "block": (CUDA, lambda: prompt("Q4_K")), "norm": (CUDA, normed),
  "largest": (CUDA, lambda: vector(1, 32000).max(-1)), "some": (CUDA, lambda: vector(64, 48)[:some(64)].max(0)),
  "two bytes": (CUDA, lambda: weights("Q4_K", 256, 512).matmul(numerics.fine(vector(1, 1, 512)))),
  "instruction": (PTX, lambda: product("F16"))}

PASSES: dict[str, str] = {
  "factor_sums": "matvec", "gemv": "matvec", "hoist_sums": "matvec", "lanes": "matvec", "dot_int8_cpu": "bytes",
  "clamps": "gated", "join_products": "gated", "merge_sums": "weighted", "split_products": "added",
  "kernel_chains": "softmax", "hoist_factors": "normed", "horizontal_fusion": "beside", "gathers": "embedding",
  "elementwise": "embedding", "reshapes": "values", "flash_decoding": "attention", "store_factors": "scores",
  "table_lookup": "codes", "hoist_scales": "codes", "narrow": "file", "vectorizer": "matvec", "hooks": "softmax",
  "ordered_loads": "prompt", "dot_bf16": "bf16", "epilogues": "bf16", "pack_operands": "prompt",
  "reroll": "packed",
  "amx_tiles": "tiles", "merge_fields": "words", "int_to_float": "words", "fields_in_place": "words",
  "shuffle_reduce": "words", "launch_bounds": "words", "table_lookup_gpu": "table", "shared_operands": "table",
  "half8_loads": "halves", "mma_tiles": "block", "norm_fusion": "norm", "reciprocal": "norm", "reductions": "largest",
  "block_reductions": "some", "dot_int8_gpu": "two bytes", "ptx": "instruction"}

# *** in the child

def sketch(u: UOp, depth: int = DEPTH) -> str:
  """An expression's text down to a few levels: ADD(MUL(INDEX, CONST 2), ..)"""
  value = f" {u.arg}" if u.op in (Ops.CONST, Ops.RANGE) else f" {called(u.arg)}" if u.op is Ops.CUSTOM else ""
  if not u.src or u.op in (Ops.CONST, Ops.RANGE, Ops.PARAM): return f"{u.op.name}{value}"
  inner = ", ".join(sketch(s, depth - 1) for s in u.src) if depth else ".."
  return f"{u.op.name}{value}({inner})"

def counts(u: UOp) -> list[str]:
  """The count of each operation in a graph."""
  names = (x.op.name + (f" {called(x.arg)}" if x.op in (Ops.CUSTOM, Ops.CUSTOMI) else "") for x in u.toposort())
  return [f"{name}: {count}" for name, count in sorted(Counter(names).items())]

def shown(x: Any) -> Iterator[str]:
  """The lines of a value that a rule matched or made, or that a function returned."""
  if isinstance(x, UOp): yield sketch(x)
  elif isinstance(x, list): yield from (line for item in x for line in shown(item))
  else: yield from str(x).split("\n")

def changed(before: Any, after: Any) -> list[str]:
  """The difference of two kernels as pseudocode, or as operation counts if that shows none; else of expressions."""
  if not all(isinstance(x, UOp) and x.op is Ops.SINK for x in (before, after)):
    return pseudocode.changes([*shown(before)], [*shown(after)])
  names, is_kernel = pseudocode.Names(), before.arg is not None and not pseudocode.is_expanded(before)
  found = [pseudocode.changes(pseudocode.lines(before, names), pseudocode.lines(after, names))] if is_kernel else []
  return next(filter(None, found), pseudocode.changes(counts(before), counts(after)))

def told(step: recording.Step) -> list[str]:
  lines = changed(step.before, step.after)
  if step.opts is not None: lines = [f"opts {transcript.opts(step.opts)}", *lines]
  more = [f".. {len(lines) - LINES} lines more"] if len(lines) > LINES else []
  name = step.name.split(":")[0]  # a lambda's name is its file and line
  return [f"{step.place.split(':')[1]} {name}".strip(), *lines[:LINES], *more]

def rewrites(target: str) -> dict[str, list[str]]:
  """{pass: lines of its first step in its case}, for all cases of a target."""
  open_target(target)
  found: dict[str, list[str]] = {}
  for case, (of, make) in CASES.items():
    if of != target: continue
    with recording.recording() as recorder:
      for call in captured.scheduled(make)[0].src:
        if call.src[0].op is Ops.SINK: programs.lowered(call)
    for name in (name for name, at in PASSES.items() if at == case):
      step = next((step for step in recorder.steps if step.patch == name), None)
      found[name] = [] if step is None else told(step)
  return found
