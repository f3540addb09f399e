"""
schedule/register_tiles and epilogues: prefill GEMMs with float weights. Several tokens share each load, and epilogues
are vectors, for any numbers of tokens and rows.
"""
import functools
import platform
import re
from dataclasses import replace

from tests.support.extended import extended, sample, some
from tests.support import child
import numpy as np
import pytest
from tests.support import interpret
from tests.support import scheduling
from tests.support import symbolic
from tinygrad import Device, Tensor, Variable, dtypes
from tinygrad.codegen import to_program
from tinygrad.codegen.opt import KernelOptError
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.engine import realize
from tinygrad.uop.ops import AxisType, Ops, UOp
from tinygrad_llm.patches.ir import targets
from tinygrad_llm.patches.ir.actions import ScheduleOps, action
from tinygrad_llm.patches.schedule import register_tiles

HELD = 1 << 12  # elements; small, so that the rows are split into several parts
X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="for x86")
MOST = 1e-5  # error, as a fraction of the root mean square
TYPES = ("float32", "half", "bfloat16")

# *** graphs

def tiled(tokens: int | UOp, n: int, interleaved: bool = True) -> tuple[UOp, Scheduler, bool]:
  """
  A GEMM of tokens with 32 rows (tiles of 16 interleaved rows or plain rows), its Scheduler with n tokens at once, and
  whether the action applies.
  """
  token, tile, lane = (scheduling.output(size, i) for i, size in enumerate((tokens, 2, 16)))
  j = scheduling.reduced(8)
  place = (tile * 8 + j) * 16 + lane if interleaved else (tile * 16 + lane) * 8 + j
  x, w = (UOp.param(slot, dtypes.float, (4096,)) for slot in (0, 1))
  total = (w.index(place) * x.index(token * 8 + j)).reduce(j, arg=Ops.ADD)
  sink = scheduling.kernel(token * 32 + tile * 16 + lane, total, token, tile, lane)
  k = scheduling.started(sink, "CPU")
  try: applied = register_tiles.apply(k, action(ScheduleOps.TOKENS, n))
  except KernelOptError: applied = False
  return sink, k, applied

@pytest.mark.parametrize(("tokens", "n", "parts"), [(12, 4, 3), (12, 3, 4), (10, 4, 3), (5, 5, 1), (7, 2, 4)])
def test_tokens_are_tiled(tokens, n, parts):
  """for token in 10: .. --> for t in 3, u in 4 UPCAST: token = min(t * 4 + u, 9)"""
  sink, k, applied = tiled(tokens, n)
  assert applied and interpret.same(sink, k.ast)
  sizes = {r.arg[-1]: int(r.vmax) + 1 for r in k.ast.toposort() if r.op is Ops.RANGE and r.arg[0] in (0, 9)}
  assert sizes.pop(AxisType.UPCAST) == n and sizes == {AxisType.WEAK: parts}

def test_row_blocks_without_lanes(monkeypatch):
  """for token in n: for row in 32: .. --> for rows in 2: for token in n / 4: for row in 16: for 4 tokens UPCAST: .."""
  monkeypatch.setattr(register_tiles, "HELD", 16 * 8)
  n = UOp.variable("n", 1, 9, param=True)
  token, row, j = scheduling.output(n), scheduling.output(32, 1), scheduling.reduced(8)
  x, w = (UOp.param(slot, dtypes.float, (4096,)) for slot in (0, 1))
  total = (w.index(row * 8 + j) * x.index(token * 8 + j)).reduce(j, arg=Ops.ADD)
  k = scheduling.started(sink := scheduling.kernel(token * 32 + row, total, token, row), "CPU")
  assert register_tiles.apply(k, action(ScheduleOps.TOKENS, 4))
  loops = sorted((r for r in k.ast.toposort() if r.op is Ops.RANGE and r.arg[-1] is AxisType.WEAK), key=lambda r: r.arg)
  assert [int(r.vmax) + 1 for r in loops] == [2, 3, 16] and loops[1].src[0] is not n
  for length in (1, 4, 6, 9):
    fixed = {n: UOp.const(length)}
    assert interpret.same(sink.substitute(fixed, walk=True), k.ast.substitute(fixed, walk=True))

@pytest.mark.parametrize(("tokens", "n", "interleaved"), [(4, 5, True), (32, 17, True), (8, 4, False), (8, 0, True)])
def test_rejects_invalid_actions(tokens, n, interleaved):
  """Refused: more tokens than there are, or than registers; a known number of tokens without lanes; 0."""
  sink, k, applied = tiled(tokens, n, interleaved)
  assert not applied and k.ast is not None and not k.applied_opts

# *** in the child

def prompt(name: str, rows: int, n: int, tokens: int, most: int) -> tuple[Tensor, np.ndarray]:
  """The lazy x @ w.T for `tokens` of at most `most` tokens, and its expected value."""
  register_tiles.HELD = HELD
  rng = np.random.default_rng([rows, n])
  w = Tensor(rng.standard_normal((rows, n)).astype(np.float32)).cast(getattr(dtypes, name)).realize()
  x = rng.standard_normal((most, n)).astype(np.float32)
  of = Variable("tokens", 1, most).bind(tokens)
  wanted = x[:tokens].astype(np.float64) @ w.cast(dtypes.float32).numpy().astype(np.float64).T
  return Tensor(x).realize()[:of] @ w.cast(dtypes.float32).transpose(-1, -2), wanted

def computed(name: str, rows: int, n: int, tokens: int, most: int) -> dict:
  lazy, wanted = prompt(name, rows, n, tokens, most)
  program = to_program(*realize._get_call_to_compile(lazy.linear_with_vars()[0].src[-1]))
  values = symbolic.values(prompt(name, rows, n, tokens, most)[0], wanted.shape)
  return {"opts": str(program.src[0].arg.applied_opts), "source": program.src[2].arg,
          "error": float(np.abs(values - wanted).max() / np.sqrt((wanted ** 2).mean()))}

def gated(rows: int, n: int, tokens: int, most: int) -> dict:
  """A feed-forward epilogue: silu(gate) * up plus a residual, from one GEMM."""
  register_tiles.HELD = HELD
  rng = np.random.default_rng([rows, n, 1])
  w, x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((2 * rows, n), (most, n), (most, rows)))
  w = w.astype(np.float16).astype(np.float32)
  exact = x[:tokens].astype(np.float64) @ w.T / n ** 0.5
  wanted = exact[:, :rows] / (1 + np.exp(-exact[:, :rows])) * exact[:, rows:] + y[:tokens]
  packed, x, y = Tensor(w).cast(dtypes.half).realize(), Tensor(x).realize(), Tensor(y).realize()
  def lazy() -> Tensor:
    of = Variable("tokens", 1, most).bind(tokens)
    gate, up = (x[:of] @ packed.cast(dtypes.float32).transpose(-1, -2) * n ** -0.5).split(rows, dim=-1)
    return gate.silu() * up + y[:of]
  program = to_program(*realize._get_call_to_compile(lazy().linear_with_vars()[0].src[-1]))
  return {"source": program.src[2].arg,
          "error": float(np.abs(symbolic.values(lazy(), wanted.shape) - wanted).max() / np.sqrt((wanted ** 2).mean()))}

def all_gated(listed: list[tuple]) -> list[dict]: return [gated(*arguments) for arguments in listed]

def all_computed(listed: list[tuple]) -> list[dict]: return [computed(*arguments) for arguments in listed]

def registers(arch: str = "") -> int:
  ren = Device["CPU"].renderer
  return targets.registers(type(ren)(replace(ren.target, arch=arch)) if arch else ren)

# *** here

SIZES = [(96, 256, 5, 300), (64, 1024, 33, 40), (33, 64, 32, 64), (512, 320, 64, 64), (7, 128, 3, 3), (40, 192, 2, 2)]

@functools.cache
def found(name: str, off: str = "") -> list[dict]:
  rng = np.random.default_rng(TYPES.index(name))
  drawn = [(int(rng.integers(1, 80)), 16 * int(rng.integers(1, 40)), int(rng.integers(1, 90)), 90) for _ in range(4)]
  return child.call(all_computed, [(name, *sizes) for sizes in (*SIZES, *drawn)],
                    **({f"NO_{off.upper()}": "1"} if off else {})).value

@pytest.mark.parametrize("name", sample(TYPES, ("half",)))
def test_results_match_reference(name): assert max(row["error"] for row in found(name)) < MOST

@extended
@pytest.mark.parametrize("off", ["register_tiles", "lanes", "vectorizer"])
def test_results_without_pass(off): assert max(row["error"] for row in found("half", off)) < MOST

def test_tile_sizes_share_loads():
  """A load serves several sums: tiles of 6 tokens by 4 rows, or 3 by 2, as the CPU's registers allow."""
  assert all("TOKENS" in row["opts"] for row in found("half"))
  first = found("half")[0]["source"]
  inner = first[first.rindex("for (int Ridx"):]
  inner = inner[:inner.index("}")]
  tokens, rows = (6, 4) if child.call(registers).value == 32 else (3, 2)
  assert inner.count("__builtin_convertvector") == inner.count("data2_") == rows * 2  # vectors of 32 elements
  assert inner.count("data1_") == tokens * 2 and inner.count("*cast") == tokens * rows * 2
  assert "__builtin_prefetch" not in inner and "volatile" not in inner

def test_loop_order():
  """The loops, outermost first: blocks of rows that fit in a cache, all tokens, tiles of these rows."""
  loops = re.findall(r"for \(int \w+ = 0; \w+ < (.+?); \w+\+\+\)", found("half")[1]["source"])
  assert loops[0].isdigit() and re.fullmatch(r"\(\(data\d_\+(5\)/6|2\)/3)\)", loops[1]) and loops[2].isdigit()

@pytest.mark.parametrize("arch, wanted", some([
  ("x86_64,x86-64-v4", 32), ("x86_64,x86-64-v3", 8), ("x86_64,znver4,avx512f", 32), ("arm64,native", 8)], 1, 3))
def test_tile_fits_registers(arch, wanted): assert child.call(registers, arch).value == wanted

# *** epilogues

GATED = [(96, 256, 5, 40), (512, 320, 64, 64), (33, 64, 32, 64), (16, 128, 1, 9), (24, 128, 3, 3)]
OTHER = "CPU:CLANG:x86_64,x86-64-v3"

@functools.cache
def found_gated(**env: str) -> list[dict]:
  rng = np.random.default_rng(7)
  drawn = [(8 * int(rng.integers(1, 30)), 16 * int(rng.integers(2, 40)), int(rng.integers(1, 90)), 90)
           for _ in range(4)]
  return child.call(all_gated, [*GATED, *drawn], **env).value

@pytest.mark.parametrize("env", some([{}, pytest.param({"DEV": OTHER}, marks=X86), {"NO_EPILOGUES": "1"}], 0), ids=str)
def test_epilogue_results(env): assert max(row["error"] for row in found_gated(**env)) < MOST

def scalars(source: str) -> int:
  """The number of scalar comparisons, such as a scalar exponential needs."""
  return len(re.findall(r"_Bool alu\d+ = \(alu\d+!=alu\d+\)", source))

def test_epilogues_are_vectorised():
  """Epilogues are vectors for whole vectors of rows; for others, and without the pass, exponentials are scalar."""
  whole, odd = (found_gated()[i]["source"] for i in (0, 2))
  assert scalars(whole) == 0 and scalars(odd) > 0 and "float16" in whole.split("for (")[-1]
  assert scalars(found_gated(NO_EPILOGUES="1")[0]["source"]) > 0
