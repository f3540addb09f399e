"""
The passes that change kernels: each has its effect, and none when it is off. Results are right with and without it, and
compile workers make the same kernels.
"""
import functools
import platform
import re
import subprocess
import sys
from collections.abc import Callable

from tests.support import child
import numpy as np
import pytest
from tests.support import random_graphs
from tests.support.extended import extended, sample, some
from tests.support.synthetic import random_blocks
from tinygrad import Device, Tensor, dtypes
from tinygrad.codegen import to_program
from tinygrad.engine import realize, worker
from tinygrad.helpers import Context
from tinygrad.runtime.support import compiler_cpu
from tinygrad.uop.ops import UOp, sym_infer
from tinygrad_llm import patches
from tinygrad_llm.patches.pipeline import PASSES, Phase
from tinygrad_llm.quants.table import QUANT_TYPES, QuantType, pack, reference
from tinygrad_llm.weights import numerics
from tinygrad_llm.weights.decode import dequantize, layout
from tinygrad_llm.weights.layout import Layout, store
from tinygrad_llm.weights.weight import Weight

MOST = 1e-5  # error of a float32 sum in any order, a sequential one included
STREAMS = [qt.name for qt in QUANT_TYPES.values() if qt.fields and qt.name != "TQ2_0"]
NUMPY = {dtypes.uint32: np.uint32, dtypes.float16: np.float16, dtypes.float32: np.float32}

# *** in the child

def held(name: str, rows: int, n: int, stream: bool) -> tuple[QuantType, Tensor, Layout | None, np.ndarray]:
  """A matrix of a type, as in the file or repacked (stream) with its layout, and its float64 values."""
  qt = next(qt for qt in QUANT_TYPES.values() if qt.name == name)
  if name in ("F16", "F32"):
    raw = np.random.default_rng(0).standard_normal((rows, n)).astype(NUMPY[qt.dtype]).tobytes()
  elif name == "BF16":
    raw = np.random.default_rng(0).standard_normal((rows, n), np.float32).view(np.uint16)[:, 1::2].tobytes()
  else: raw = random_blocks(np.random.default_rng(0), name, rows * n // qt.block, 0.02)
  wanted = reference(qt, raw, n).reshape(rows, n).astype(np.float64)
  found = layout(qt, Device[Device.DEFAULT].renderer, rows, n) if stream else None  # None: no pass makes lanes of rows
  if found is not None and qt.unit < 4: packed = Tensor(np.frombuffer(raw, f"u{qt.unit}").reshape(rows, -1)).realize()
  else:
    pack(qt, raw, n, out := np.zeros((rows, qt.row_items(n)), NUMPY[qt.dtype]))
    packed = Tensor(out).realize()
  if found is None: return qt, packed, None, wanted
  stored = Tensor.zeros(rows // found.tile, found.row_words(n // qt.block), found.tile, dtype=dtypes.uint32)
  store(found, stored := stored.contiguous().realize(), packed.reshape(rows, n // qt.block, -1), 0)
  return qt, stored, found, wanted

def weight(name: str, rows: int, n: int, stream: bool = False) -> tuple[Callable[[], Tensor], np.ndarray]:
  """A lazy dequantised matrix, from the file's rows or from interleaved rows, and its float64 values."""
  qt, stored, found, wanted = held(name, rows, n, stream)
  packed = stored if found is None else found.rows(stored)
  return lambda: dequantize(qt, packed, n, found), wanted

def chosen(name: str, rows: int, n: int) -> tuple[Tensor, np.ndarray]:
  """The experts 4, 1 and 1 of 6, of two matrices each: (2, 3, rows, n), lazy and in float64."""
  qt, stored, found, wanted = held(name, 12 * rows, n, True)
  ids = Tensor([4, 1, 1], dtype=dtypes.int32).realize()
  return Weight(qt, stored, (2, 6, rows, n), found).experts(ids), wanted.reshape(2, 6, rows, n)[:, [4, 1, 1]]

def experts(name: str, rows: int = 64, n: int = 768) -> tuple[Tensor, np.ndarray]:
  """Products of one x with the chosen experts."""
  x, (w, wanted) = vector(1, n), chosen(name, rows, n)
  return (Tensor(x).realize() * w).sum(-1), wanted @ x[0].astype(np.float64)

def gated(name: str, rows: int = 64, n: int = 768) -> tuple[Tensor, np.ndarray]:
  """Products of one x with gate and up of the chosen experts, the gate applied."""
  y, wanted = experts(name, rows, n)
  return (y[0].relu() * y[1]).contiguous(), np.maximum(wanted[0], 0) * wanted[1]

def weighted(name: str, rows: int = 64, n: int = 768) -> tuple[Tensor, np.ndarray]:
  """The weighted sum over the chosen experts, each with its own x and a bias."""
  x, shares, bias = vector(3, 1, n), vector(3, 1, seed=2), vector(3, rows, seed=3)
  w, wanted = chosen(name, rows, n)
  y = (Tensor(x).realize() * w[1]).sum(-1) + Tensor(bias).realize()
  return (y * Tensor(shares).realize()).sum(0), (((wanted[1] * x).sum(-1) + bias) * shares).sum(0)

def added(name: str) -> tuple[Tensor, np.ndarray]:
  """x @ w.T + y @ v.T: two kernels."""
  (a, of_a), (b, of_b) = matvec(name, 64, 1024, stream=True), matvec(name, 64, 512, stream=True)
  return a + b, of_a + of_b

def chain() -> tuple[Tensor, np.ndarray]:
  """A softmax: maximum, sum, then the elements."""
  x = vector(8, 24)
  e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
  return Tensor(x).realize().softmax(-1), e / e.sum(-1, keepdims=True)

def vector(*shape: int, seed: int = 1) -> np.ndarray:
  return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)

def matvec(name: str, rows: int, n: int, norm: bool = False, stream: bool = False) -> tuple[Tensor, np.ndarray]:
  """The lazy x @ w.T, or norm(x) @ w.T, and its expected value."""
  lazy_w, w = weight(name, rows, n, stream)
  x, by = vector(1, n), vector(n, seed=2) if norm else np.ones(n, np.float32)
  lazy = Tensor(x).realize() * Tensor(by).realize() * 0.5 if norm else Tensor(x).realize()
  wanted = (x.astype(np.float64) * by * (0.5 if norm else 1)) @ w.T
  return lazy @ lazy_w().transpose(-1, -2), wanted

def sums(q: np.ndarray) -> np.ndarray:
  """The word of an activation group that holds the sum of its bytes."""
  return (q.sum(-1, keepdims=True, dtype=np.int32) * np.int32(-128)).view(np.uint32)

def with_int8(name: str, rows: int, n: int, tokens: int = 1) -> tuple[Tensor, np.ndarray]:
  """x @ w.T with int8 activations in groups of 16 (scale and sum), as numerics.py packs them."""
  lazy_w, w = weight(name, rows, n, True)
  q = np.random.default_rng(3).integers(-127, 128, (tokens, n // 16, 16)).astype(np.int8)
  scale = vector(tokens, n // 16, 1)
  packed = Tensor(np.concatenate((q.view(np.uint32), scale.view(np.uint32), sums(q)), -1)).realize()
  wanted = (q * scale.astype(np.float64)).reshape(tokens, n) @ w.T
  return numerics.unpacked(packed) @ lazy_w().transpose(-1, -2), wanted

def packed() -> tuple[Tensor, np.ndarray]:
  """A gated value quantised to int8 groups: one kernel of vectors."""
  gate, up = vector(2048), vector(2048, seed=2)
  gate[32:48] = 0
  lazy = numerics.pack(Tensor(gate).realize().relu() * Tensor(up).realize())
  x = (np.maximum(gate, 0) * up).reshape(-1, 16)
  top = np.abs(x).max(-1, keepdims=True)
  scaled = x * np.divide(np.float32(127), top, out=np.zeros_like(top), where=top > 0)
  q = (scaled + np.where(x < 0, np.float32(-0.5), np.float32(0.5))).astype(np.int8)
  words = np.concatenate((q.view(np.uint32), (top * np.float32(1 / 127)).view(np.uint32), sums(q)), -1)
  return lazy, words.astype(np.float64)

def values() -> tuple[Tensor, np.ndarray]:
  """Sums over a symbolic number of positions: 32 heads, of which groups of 4 share values of 64 elements."""
  shares, kept = vector(32, 64), vector(8, 64, 64, seed=2).astype(np.float16)
  n = UOp.variable("n", 0, 63).bind(32) + 1
  lazy = Tensor(shares).realize()[:, :n].reshape(8, 4, 1, n) @ Tensor(kept).realize()[:, :n].float().unsqueeze(1)
  return lazy, np.einsum("hgn,hnd->hgd", shares[:, :33].reshape(8, 4, 33).astype(np.float64), kept[:, :33])[:, :, None]

def largest() -> tuple[Tensor, np.ndarray]:
  """The maximum over a symbolic number of positions, for 48 adjacent elements."""
  x = vector(64, 48)
  return Tensor(x).realize()[:UOp.variable("n", 1, 64).bind(33)].max(0), x[:33].max(0).astype(np.float64)

def embedding() -> tuple[Tensor, np.ndarray]:
  lazy_w, w = weight("Q8_0", 40000, 32)
  return lazy_w()[Tensor([31, 4], dtype=dtypes.int32).realize()], w[[31, 4]]

def gate() -> tuple[Tensor, np.ndarray]:
  gate, up = vector(2048), vector(2048, seed=2)
  return Tensor(gate).realize().relu() * Tensor(up).realize(), np.maximum(gate, 0) * up

CASES = {"embedding": embedding, "packed": packed, "gate": gate, "values": values, "largest": largest,
         "large": functools.partial(matvec, "Q6_K", 1024, 1024, stream=True),
         "norm": functools.partial(matvec, "Q8_0", 64, 1024, True), "added": functools.partial(added, "Q8_0"),
         "chain": chain} | \
        {f"{f.__name__} {name}": functools.partial(f, name) for f in (experts, gated, weighted)
         for name in ("Q4_K", "MXFP4")} | \
        {n: functools.partial(matvec, n, 64, 1024) for n in ("Q4_K", "Q6_K", "Q5_0", "MXFP4", "IQ4_XS", "F16")} | \
        {f"rows {n}": functools.partial(matvec, n, 64, 1024, stream=True) for n in ("Q4_K", "Q8_0", "MXFP4")} | \
        {f"int8 {name}": functools.partial(with_int8, name, 64, 512) for name in STREAMS} | \
        {f"tokens {name}": functools.partial(with_int8, name, 256, 512, 11) for name in STREAMS}

def error(lazy: Tensor, wanted: np.ndarray) -> float:
  """The largest error, as a fraction of the expected values' root mean square."""
  return float(np.abs(lazy.numpy().astype(np.float64) - wanted).max() / np.sqrt((wanted ** 2).mean()))

def look(names: list[str]) -> dict[str, dict]:
  """For each case: number of kernels, error, and the last kernel's source, operations and opts."""
  found = {}
  for name in names:
    calls, (lazy, wanted) = CASES[name]()[0].linear_with_vars()[0].src, CASES[name]()
    tasks = [realize._get_call_to_compile(call) for call in calls]
    program = to_program(*tasks[-1])
    found[name] = {"kernels": len(calls), "source": program.src[2].arg, "error": error(lazy, wanted),
                   "ops": int(sym_infer(program.src[0].arg.estimates.ops, {"n": 33})),
                   "opts": str(program.src[0].arg.applied_opts)}
  return found

def by_workers(names: list[str]) -> list[str]:
  """Sources of the cases' last kernels, made by a compile worker without the disk cache."""
  with Context(CACHELEVEL=0): context = {v.key: v.value for v in realize.to_program_context}
  calls = [CASES[name]()[0].linear_with_vars()[0].src[-1] for name in names]
  tasks = [(i, realize._get_call_to_compile(call), context) for i, call in enumerate(calls)]
  made = dict(worker.get_worker_pool().map(realize._compile_kernel, tasks))
  return [made[i].src[2].arg for i in range(len(names))]

def shapes(name: str, sizes: list[list[int]]) -> list[float]:
  """Errors of matvecs of other sizes."""
  return [error(*matvec(name, rows, n)) for rows, n in sizes]

def on_gpu() -> str:
  """The source of a Q6_K matvec for a GPU, in OpenCL."""
  from tinygrad.codegen import full_rewrite_to_sink, line_rewrite, pm_linearize_cleanups
  from tinygrad.codegen.late.linearizer import linearize
  from tinygrad.helpers import Target
  from tinygrad.renderer.cstyle import OpenCLRenderer
  lazy, _ = matvec("Q6_K", 64, 1024)
  ast, _ = realize._get_call_to_compile(lazy.linear_with_vars()[0].src[-1])
  renderer = OpenCLRenderer(Target("CL", "CL"))
  return renderer.render(line_rewrite(linearize(full_rewrite_to_sink(ast, renderer)), pm_linearize_cleanups))

# *** here

# passes that change kernels, and cases that show them: compiling all cases without each pass takes too long
PATCHES = {
  "reshapes": ["values"], "gathers": ["embedding"], "hoist_sums": ["Q4_K", "rows Q4_K", "int8 Q6_K"],
  "hoist_factors": ["norm"],
  "vectorizer": ["Q4_K", "F16"], "table_lookup": ["MXFP4", "IQ4_XS", "int8 MXFP4"], "narrow": ["Q6_K"],
  "lanes": ["rows Q4_K", "Q4_K", "F16"], "factor_sums": ["Q4_K", "MXFP4", "rows Q4_K", "int8 Q8_0"],
  "dot_int8_cpu": ["int8 Q4_K", "int8 NVFP4"], "hoist_scales": ["Q4_K", "MXFP4"], "gemv": ["Q6_K", "norm", "rows Q8_0"],
  "clamps": ["experts Q4_K"], "merge_sums": ["weighted Q4_K"], "split_products": ["added"],
  "join_products": ["gated Q4_K"], "kernel_chains": ["chain"],
  "elementwise": ["gate"], "reroll": ["packed"], "ordered_loads": ["large"], "hooks": ["Q4_K", "F16", "rows Q4_K"],
  "choose": ["Q6_K", "norm"]}

# `make test` looks at these cases with all passes, and at the first case of a pass without it; `make extended`: all
CORE = ("packed", "gate", "values", "largest", "norm", "added", "chain", "experts Q4_K", "Q4_K", "Q6_K", "MXFP4", "F16",
        "rows Q4_K", "int8 Q4_K", "tokens Q4_K")
WITHOUT_ANY = ["rows Q4_K", "embedding", "norm", "F16", "int8 Q4_K"]

def names(off: str, later: bool) -> list[str]:
  """The cases that one process looks at: in `make test`, or later."""
  if not off: return [name for name in CASES if (name in CORE) != later]
  return PATCHES.get(off, WITHOUT_ANY)[1:] if later else PATCHES.get(off, WITHOUT_ANY)[:1]

@functools.cache
def seen(off: str = "", later: bool = False) -> dict[str, dict]:
  return child.call(look, names(off, later), **({f"NO_{off.upper()}": "1"} if off else {})).value

def row(name: str, off: str = "") -> dict: return seen(off, name in names(off, True))[name]

def sources(name: str, off: str) -> tuple[str, str]:
  """The source of a case, with all passes and without one."""
  return row(name)["source"], row(name, off)["source"]

def wrong(off: str, later: bool) -> dict[str, float]:
  return {name: row["error"] for name, row in seen(off, later).items() if row["error"] > MOST}

@pytest.mark.parametrize("later", sample([False, True], [False]))
def test_results_match_reference(later): assert wrong("", later) == {}

# passes that `make test` switches off; `make extended` switches off each pass
OFF = ("hoist_sums", "lanes", "factor_sums", "gemv")

@pytest.mark.parametrize("off, later", sample(
  [(off, later) for off in [*PATCHES, "patches"] for later in (False, True) if names(off, later)],
  [(off, False) for off in OFF]))
def test_results_without_one_pass(off, later):
  """Without any one pass the numbers stay right: a pass that relies on it does nothing, or nothing wrong."""
  assert wrong(off, later) == {}

@pytest.mark.parametrize("off", sample(PATCHES, OFF))
def test_disabling_a_pass_changes_kernels(off):
  assert any(here != without for here, without in (sources(name, off) for name in PATCHES[off]))

@pytest.mark.parametrize("later", sample([False, True], [False]))
def test_each_case_is_one_kernel(later):
  found = {name: row["kernels"] for name, row in seen("", later).items()}
  assert found == dict.fromkeys(found, 1) | {name: 2 for name in found if name == "added"}

@pytest.mark.parametrize("patch, name, kernels", sample(
  [("join_products", "gated Q4_K", 2), ("kernel_chains", "chain", 3), ("split_products", "added", 1)],
  [("kernel_chains", "chain", 3)]))
def test_kernel_count_without_pass(patch, name, kernels): assert row(name, patch)["kernels"] == kernels

@pytest.mark.parametrize("name", sample(["experts Q4_K", "gated MXFP4", "weighted Q4_K", "weighted MXFP4"],
                                        ["experts Q4_K"]))
def test_selected_expert_scheduled_as_matrix(name):
  """An expert's matrix, chosen by its id, is scheduled like a plain matrix: rows as lanes, a block unrolled."""
  assert row(name)["opts"].count("UNROLL") > 1 and re.search(r"unsigned_int16 val\d+ = ", row(name)["source"])

@extended
def test_expert_choice_needs_no_bounds_checks():
  """Choosing an expert leaves no conditions on loads; without clamps each load has one."""
  here, off = (source[source.index("void r_"):] for source in sources("experts Q4_K", "clamps"))
  assert "?" in off and here.count("?") <= 2 < off.count("?")  # the two bounds of the id itself

@extended
def test_expert_sum_is_merged():
  """merge_sums merges the sum over experts into the product's sum; without it, rows are not lanes."""
  here, off = sources("weighted Q4_K", "merge_sums")
  assert "unsigned_int16" in here and "unsigned_int16" not in off

@extended
def test_reshapes():
  """A position's index needs no division."""
  here, off = sources("values", "reshapes")
  assert not re.search(r"[%/]", here[here.index("void r_"):]) and re.search(r"\w%\w", off)

@pytest.mark.parametrize("name", ["values", "largest"])
def test_adjacent_columns_are_lanes(name):
  """Adjacent elements belong to different sums, so there are no horizontal sums."""
  source = row(name)["source"]
  assert re.search(r"float16 \w+ = |\(float16\*\)", source) and "[15]" not in source

@extended
def test_gathers():
  """A row of a large table is loaded in the kernel that uses it; without gathers, all rows are read first."""
  assert row("embedding")["kernels"] == 1 < row("embedding", "gathers")["kernels"]

def test_activation_sums_are_hoisted():
  """The activation sum of a group of 32 is an array element, computed before the loop over rows."""
  here, off = sources("Q4_K", "hoist_sums")
  assert re.search(r"float \w+\[32\];", here) and not re.search(r"float \w+\[32\];", off)
  first = [re.search(r"  for \(int (\w+) = 0; \w+ < (\d+)", text) for text in (here, off)]
  assert [int(loop[2]) for loop in first if loop is not None] == [4, 32]  # 4 blocks of 8 groups; 32 rows a thread

@extended
def test_row_invariant_factors_are_hoisted():
  here, off = sources("norm", "hoist_factors")
  assert re.search(r"float \w+\[1024\];", here) and not re.search(r"float \w+\[1024\];", off)

def test_arithmetic_is_vectorised():
  """Arithmetic uses vectors of 16; without vectorizer at most loads do."""
  here, off = sources("Q4_K", "vectorizer")
  assert len(re.findall(r"^  +float16 \w+ = .*[*+]", here, re.M)) > 4
  assert "float16" not in off

@pytest.mark.parametrize("name", sample(["MXFP4", "IQ4_XS"], ["MXFP4"]))
def test_table_lookup_instruction(name):
  here, off = sources(name, "table_lookup")
  assert "__builtin_shufflevector" in here or "tbl" in here
  assert "__builtin_shufflevector" not in off and "tbl" not in off

@pytest.mark.parametrize("name", sample(["Q4_K", "Q6_K", "Q5_0"], ["Q4_K", "Q6_K"]))
def test_plain_int4_uses_no_lookup(name):
  """Plain 4-bit integers use no lookup, because conversion is as cheap."""
  assert "shufflevector" not in row(name)["source"]

def test_byte_vectors_for_6_bit_quant():
  """A 6-bit quant is assembled in byte vectors."""
  here, off = (len(re.findall(r"unsigned_int16 \w+ = ", text)) for text in sources("Q6_K", "narrow"))
  assert here < off

@extended
def test_row_accumulators_are_an_array():
  here, off = sources("F16", "lanes")
  assert re.search(r"float \w+\[16\];", here) and not re.search(r"float \w+\[16\];", off)

@pytest.mark.parametrize("name", sample(["Q4_K", "MXFP4"], ["Q4_K"]))
def test_scale_is_multiplied_once_per_group(name):
  """A scale is multiplied once for all weights of its group."""
  assert row(name)["ops"] < 0.9 * row(name, "factor_sums")["ops"]

def test_interleaved_rows_are_a_vector():
  """16 interleaved rows are a vector: no horizontal sum, and one store of all."""
  here, off = sources("rows Q4_K", "lanes")
  stores = re.findall(r"^  +\*(\S*data0)", here, re.M)
  assert stores == ["((float16*)((data0"] and "float16" not in off

def test_token_loop_is_inside_row_tiles():
  """The loop over tokens is inside the loop over row tiles; for larger matrices see test_pack_operands.py."""
  loops = re.findall(r"for \(int \w+ = 0; \w+ < (\d+)", row("tokens Q4_K")["source"])
  assert loops[-4:] == ["11", "2", "2", "2"]  # tokens, blocks, parts of a block

@pytest.mark.parametrize("name", sample(STREAMS, ("Q4_K",)))
def test_int8_dots(name):
  """All products of int8 activations, of every repacked type, take four bytes at once."""
  body = (text := row(f"int8 {name}")["source"])[text.index("void r_"):]
  assert body.count("add_dots_of_") >= 8
  assert "signed char" not in body[body.rindex("for (int"):]

# not Q1_0: in prefill its bits are not recognised as bytes, and it stays float32
@pytest.mark.parametrize("name", sample([name for name in STREAMS if name != "Q1_0"], ("Q4_K",)))
def test_int8_dots_in_prefill(name):
  """In prefill, a format's offsets and the tokens' activation sums use byte dot products, too."""
  body = (text := row(f"tokens {name}")["source"])[text.index("void r_"):]
  assert body.count("add_dots_of_") >= 8 and "signed char" not in body[body.rindex("for (int"):]

@pytest.mark.parametrize("name", sample(PATCHES["dot_int8_cpu"], ["int8 Q4_K"]))
def test_int8_dots_off(name): assert "add_dots_of_" not in row(name, "dot_int8_cpu")["source"]

@extended
@pytest.mark.skipif(platform.machine() != "x86_64", reason="for x86")
@pytest.mark.parametrize("arch", ["x86-64-v3", "x86-64-v2", "x86-64"])
def test_int8_dots_on_other_cpus(arch):
  """int8 dot products with AVX2 instructions, and without any instruction for them."""
  found = child.call(look, [f"int8 {name}" for name in ("Q4_K", "Q8_0", "MXFP4")], DEV=f"CPU:CLANG:x86_64,{arch}").value
  assert {name: row["error"] for name, row in found.items() if row["error"] > MOST} == {}

@pytest.mark.parametrize("name", sample(["Q4_K", "MXFP4"], ["Q4_K"]))
def test_group_scales_are_vectorised(name):
  """Scales are unpacked as vectors, so there are fewer scalar shifts."""
  here, off = (len(re.findall(r"^  +(?:unsigned int|float) \w+ = .*(?:>>|<<)", text, re.M))
               for text in sources(name, "hoist_scales"))
  assert here < off

def test_gemv_schedule():
  here, off = row("Q6_K")["opts"], row("Q6_K", "gemv")["opts"]
  assert "THREAD" in here or here.count("UNROLL") > 3
  assert off.count("UNROLL") < here.count("UNROLL")

def test_elementwise_is_vectorised():
  """Elementwise kernels use vectors of 16."""
  here, off = sources("gate", "elementwise")
  assert "float16 " in here and "float16 " not in off

@extended
def test_reroll_vectors_of_a_group():
  """A group's elements are one vector and its words another; without reroll, vectors span 16 groups."""
  here, off = sources("packed", "reroll")
  assert off.count("int16 ") > 20 > here.count("int16 ") > 0 and "?" in here and "unsigned_int4 " in here
  assert len(here.splitlines()) < len(off.splitlines()) / 4

def elements(names: list[str]) -> list[str]:
  """The names of ELEMENTS with wrong results."""
  return [name for name in names if not np.allclose(*ELEMENTS[name](), rtol=2e-6, atol=2e-6, equal_nan=True)]

def element(make: Callable, *shapes: tuple[int, ...], dtype: type = np.float32) -> Callable[[], tuple]:
  """An expression of random tensors, and the same of numpy arrays: in float64, or unchanged integers."""
  def both() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    xs = [(rng.standard_normal(shape) * (3 if dtype is np.float32 else 50)).astype(dtype) for shape in shapes]
    tensors = [Tensor(x).realize() for x in xs]
    return make(Tensor, *tensors).numpy(), make(np, *[x.astype(np.float64) if dtype is np.float32 else x for x in xs])
  return both

# expressions with loops of 16 or more iterations; m: Tensor or numpy
ELEMENTS: dict[str, Callable[[], tuple]] = {
  "sum": element(lambda m, a, b: a * 2 + b, (64,), (64,)),
  "threads": element(lambda m, a, b: a * b - 1, (1 << 17,), (1 << 17,)),
  "strides": element(lambda m, a: a[::3] - a[1::3], (96,)),
  "columns": element(lambda m, a, b: a.T + b, (32, 48), (48, 32)),
  "rows": element(lambda m, a, b: a + b, (48, 1), (48, 32)),
  "backwards": element(lambda m, a: m.flip(a, 0) * a, (80,)),
  "choice": element(lambda m, a, b: m.where(a < b, a, b * b) if m is np else (a < b).where(a, b * b), (64,), (64,)),
  "logic": element(lambda m, a, b: (((a < b) & (a != 0)) | ~(b < 1)) * 1.0, (64,), (64,)),
  "not": element(lambda m, a, b: ~(a < b), (64,), (64,)),
  "true": element(lambda m, a, b: m.where(a, b, 1) if m is np else a.where(b, 1), (64,), (64,), dtype=np.bool_),
  "truth": element(lambda m, a, b: (a < b) ^ (b < 0), (64,), (64,)),
  "equal": element(lambda m, a, b: (a == b) | (a // 2 == b), (640,), (640,), dtype=np.int32),
  "largest": element(lambda m, a, b: m.maximum(a, b) - m.minimum(a, 0.5 * b), (64,), (64,)),
  "whole": element(lambda m, a, b: (a << 3) ^ (b >> 1) & 63, (64,), (64,), dtype=np.int32),
  "parts": element(lambda m, a, b: a // 7 + b % 5, (64,), (64,), dtype=np.int32),
  "bytes": element(lambda m, a, b: a + b, (64,), (64,), dtype=np.uint8),
  "long": element(lambda m, a, b: a * b - a, (64,), (64,), dtype=np.int64),
  "exponent": element(lambda m, a: m.exp(a) if m is np else a.exp(), (64,)),
  "root": element(lambda m, a: m.sqrt(m.abs(a)) if m is np else a.abs().sqrt(), (64,)),
  "quotient": element(lambda m, a, b: a / b, (64,), (64,)),
  "gate": element(lambda m, a, b: a / (1 + m.exp(-a)) * b if m is np else a.silu() * b, (256,), (256,)),
  "sine": element(lambda m, a: m.sin(a) if m is np else a.sin(), (64,)),
  "floor": element(lambda m, a: m.floor(a) + m.trunc(a) if m is np else a.floor() + a.trunc(), (64,)),
  "half": element(lambda m, a, b: a - b, (64,), (64,), dtype=np.float16),
  "stacked": element(lambda m, a, b: m.stack((a, b, a - b), 1) if m is np else a.stack(b, a - b, dim=1), (64,), (64,)),
  "padded": element(lambda m, a: m.pad(a, (8, 8)) + 1 if m is np else a.pad((8, 8)) + 1, (64,)),
  "side by side": element(lambda m, a, b: m.concatenate((a, b)) if m is np else a.cat(b), (48,), (16,)),
}

@pytest.mark.parametrize("env", sample([{}, {"NO_ELEMENTWISE": "1"}, {"NUM_CPU_THREADS": "3"}], [{}]), ids=str)
def test_elements(env): assert child.call(elements, list(ELEMENTS), **env).value == []

@extended
def test_large_matrix_is_read_in_order():
  """A matrix larger than the caches is loaded in order."""
  here, off = sources("large", "ordered_loads")
  at = [int(place) for place in re.findall(r"\(volatile unsigned_int16\*\)\(\(\w+\+\(\w+\+(\d+)\)", here)]
  assert len(at) == 52 and at == sorted(at) and "volatile" not in off

@extended
def test_integers_become_floats_without_conversion():
  """Small integers become floats without a conversion, which GPUs execute at a quarter of the speed or less."""
  here, off = child.call(on_gpu).value, child.call(on_gpu, NO_INT_TO_FLOAT="1").value
  assert here.count("(float)(") < off.count("(float)(") and "as_float" in here

@pytest.mark.parametrize("listed", sample([["Q4_K", "norm"], ["F16", "int8 Q6_K", "int8 NVFP4", "values"]],
                                          [["Q4_K", "norm"]]), ids=" ".join)
def test_compile_workers_make_the_same_kernels(listed):
  found = child.call(by_workers, listed, PARALLEL="1").value
  assert [name for name, source in zip(listed, found) if source != row(name)["source"]] == []

@pytest.mark.parametrize("name", sample(WITHOUT_ANY, WITHOUT_ANY[:1]))
def test_no_patches_leave_stock_kernels(name):
  source = row(name, "patches")["source"]
  assert "float16" not in source and "volatile" not in source

# models' sizes: vocabularies, hidden layers and widths that powers of two do not divide
@pytest.mark.parametrize(("name", "sizes"), some([
  ("Q8_0", [[1, 576], [37, 576], [11008, 64], [50304, 32], [301, 2560], [151936, 32]]),
  ("Q4_K", [[37, 2560], [301, 3584], [11008, 256]]), ("Q6_K", [[37, 2560], [301, 3584], [50304, 256]]),
  ("F16", [[37, 576], [301, 3584], [11008, 40], [5, 33]]), ("MXFP4", [[37, 2880], [301, 576]])], 4))
def test_various_sizes(name, sizes):
  assert max(child.call(shapes, name, sizes, NUM_CPU_THREADS="3").value) < MOST

@pytest.mark.parametrize("name", sample(["Q4_K", "Q6_K", "MXFP4"], ["Q4_K"]))
def test_several_rows_per_thread(name):
  """Several rows a thread, each with its own scales."""
  assert child.call(look, [name], MV_ROWS_PER_THREAD="2").value[name]["error"] <= MOST

THREADS = {"NUM_CPU_THREADS": "3"}

@pytest.mark.parametrize("env, seed, count", some([
  (THREADS, 100, 8), (THREADS, 108, 16), ({"NO_VECTORIZER": "1"}, 100, 24)], 0), ids=str)
def test_random_expressions(env, seed, count):
  """Random expressions have small errors, as fractions of their magnitudes."""
  found = child.call(random_graphs.errors, seed, count, **env).value
  assert [seed + i for i, error in enumerate(found) if not error < 2e-6] == []

# clang 22 does not terminate on these: the index of the one of 16 elements that a mask leaves, and ranks of 16 numbers
CHOICES = """
import tinygrad_llm
from tinygrad import Tensor, UOp, dtypes
from tinygrad.codegen import to_program
from tinygrad.engine import realize
from tinygrad_llm.patches.vector import clang_combine
clang_combine.SECONDS = 3
n = UOp.variable("n", 1, 64).bind(5)
i, x = Tensor.arange(16, dtype=dtypes.int), Tensor.empty(64, 16)[:n]
other, own = x.unsqueeze(1), x.unsqueeze(2)
above = (other > own) | ((other == own) & (i.reshape(1, 1, 16) < i.reshape(1, 16, 1)))
for lazy in (Tensor.empty(64, 16, dtype=dtypes.bool)[:n].where(i, 0).sum(1), above.int().sum(2)):
  program = to_program(*realize._get_call_to_compile(lazy.linear_with_vars()[0].src[-1]))
  print(program.arg.function_name, len(program.src[3].arg) > 100)
"""

@pytest.mark.skipif(platform.machine() != "x86_64", reason="for x86")
def test_vector_combine():
  env = child.environment(DEV="CPU:CLANG:x86_64,x86-64-v4", CCACHE="0")
  done = subprocess.run([sys.executable, "-c", CHOICES], env=env, capture_output=True, text=True, timeout=200)
  assert done.stdout == "r_n_16 True\nr_n_16_16 True\n", done.stderr[-2000:]

def test_every_pass_has_a_test():
  """Each pass is tested here, except for passes with tests of their own, GPU passes, and passes outside of kernels."""
  own = {"pack_operands", "register_tiles", "epilogues", "skip_steps", "dot_bf16", "amx_tiles", "flash_decoding",
         "store_factors", "block_reductions", "online_softmax", "horizontal_fusion", "normal_form"}
  own |= {p.name for p in PASSES if p.phase in (Phase.RENDER, Phase.SEARCH, Phase.LOWERING, Phase.CACHE, Phase.RUNTIME)}
  own |= {p.name for p in PASSES if not p.suits(True)}
  assert own | set(PATCHES) == set(patches.PATCHES) and not own & set(PATCHES)

ADDED = "typedef float wide __attribute__((ext_vector_type(16))); void f(wide* a, wide* b) { *a += *b; }"

def object_code(cpu: str) -> str: return compiler_cpu.ClangCompiler(["x86_64", cpu]).compile(ADDED).hex()

def test_vector_width():
  """Adding 16 floats is one AVX-512 instruction on Intel; clang alone makes two."""
  code = {off: child.call(object_code, "sapphirerapids", NO_CLANG_WIDTH=off).value for off in ("0", "1")}
  vaddps_zmm0 = "62f17c4858"
  assert vaddps_zmm0 in code["0"] and vaddps_zmm0 not in code["1"]
  assert child.call(object_code, "x86-64-v3", NO_CLANG_WIDTH="0").value
