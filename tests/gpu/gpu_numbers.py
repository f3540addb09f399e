"""
Compares the GPU schedules' results with float64: run by numpy, and by OpenCL on the CPU if its runtime is installed.

  python tests/gpu/gpu_numbers.py [TYPE ..] [--shape ROWS N ..]    errors of all types (make gpu-numbers)

The runtime comes from the wheels intel-opencl-rt and intel-cmplr-lib-rt (270 MB, x86-64), or from OPENCL_PATH and
OCL_ICD_FILENAMES.
"""
import argparse
import dataclasses
import functools
import os
import pathlib
import sys
from collections.abc import Sequence

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tests.support import child
from tests.gpu import gpu_lockstep
from tests.gpu import gpu_renderers
import numpy as np
import tinygrad_llm  # noqa: F401  (before tinygrad: it applies the patches)
from gguf import GGMLQuantizationType, quants
from tests.gpu.gpu_renderers import RENDERERS
from tests.gpu.gpu_schedules import TYPES, Experts, of_experts, quant_named
from tests.support.synthetic import random_blocks
from tinygrad import Device, Tensor, dtypes
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.engine.realize import compile_linear, run_linear
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.quants.table import QuantType, pack, reference
from tinygrad_llm.weights.decode import dequantize, layout
from tinygrad_llm.weights.layout import Layout
from tinygrad_llm.weights.numerics import fine

NUMPY = {dtypes.uint32: np.uint32, dtypes.int32: np.int32, dtypes.float32: np.float32, dtypes.float16: np.float16,
         dtypes.int8: np.int8, dtypes.uint8: np.uint8}
MOST = 2e-3  # error, as a fraction of the root mean square of the results
SHAPES = ((48, 768), (64, 2048), (40, 3584))  # rows, n
MOE = ((2, 48, 768, 5, 2), (1, 40, 768, 6, 4), (2, 40, 2048, 3, 1), (1, 48, 1024, 16, 8))  # Experts

@functools.cache
def opencl() -> dict[str, str] | None:
  """The environment of a child process in which DEV=CL runs; None if it cannot run here."""
  lib = pathlib.Path(sys.prefix) / "lib"
  env = {"DEV": "CL"}
  if "OPENCL_PATH" not in os.environ and (lib / "libintelocl.so").exists():
    env |= {"LD_LIBRARY_PATH": f"{lib}", "OPENCL_PATH": f"{lib / 'libOpenCL.so.1'}",
            "OCL_ICD_FILENAMES": f"{lib / 'libintelocl.so'}"}
  try: return env if child.call(opens, **env).value else None
  except AssertionError: return None

def opens() -> bool:
  """Whether the default device opens and supports halves."""
  return dtypes.half in Device[Device.DEFAULT].renderer.supported_dtypes()

def file_rows(qt: QuantType, rows: int, n: int) -> np.ndarray:
  """A random matrix as a file stores it: (rows, bytes of a row) uint8."""
  rng = np.random.default_rng(7)
  if qt.name == "F32": return (rng.standard_normal((rows, n)) * 0.02).astype(np.float32).view(np.uint8)
  if qt.name == "F16": return (rng.standard_normal((rows, n)) * 0.02).astype(np.float16).view(np.uint8)
  if qt.name == "TQ2_0": return quants.quantize(rng.standard_normal((rows, n), np.float32), GGMLQuantizationType.TQ2_0)
  return random_blocks(rng, qt.name, rows * n // qt.block, 0.02).reshape(rows, -1)

def held(qt: QuantType, raw: np.ndarray, n: int) -> tuple[Tensor, Layout | None]:
  """A file's rows repacked for GPUs, and their layout (None: the type has no GPU layout)."""
  rows = len(raw)
  if (lay := layout(qt, RENDERERS["CUDA"], rows, n)) is None:
    pack(qt, raw, n, items := np.zeros((rows, qt.row_items(n)), NUMPY[qt.dtype]))
    return Tensor(items).realize(), None
  blocks = n // qt.block
  units = np.zeros((rows * blocks, qt.held), np.uint8)
  units[:, qt.front:qt.front + qt.nbytes] = raw.reshape(rows * blocks, -1)
  units = units.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[qt.unit]).reshape(rows, blocks, -1)
  packed = Tensor.zeros(rows // lay.tile, blocks // lay.together, lay.group_words, lay.tile,
                        dtype=dtypes.uint32).contiguous().realize()
  for place, words in lay.repack(Tensor(units).realize()): packed[:, :, place, :].assign(words).realize()
  return packed.reshape(rows // lay.tile, -1, lay.tile), lay

def arguments(uops: list[UOp], call: UOp, variables: dict[str, int], known: dict[object, np.ndarray]
              ) -> dict[int, np.ndarray]:
  """A kernel's arguments by slot. known: contents of buffers, as earlier kernels left them; it is filled in."""
  found = dict[int, np.ndarray]()
  for u in uops:
    if u.op is not Ops.PARAM: continue
    if u.arg.name in variables: found[u.arg.slot] = np.array(variables[u.arg.name])
    else:
      b = call.src[1 + u.arg.slot].buffer
      raw = bytes(b.as_memoryview()) if b.is_allocated() else b"\xff" * b.nbytes  # not numbers
      found[u.arg.slot] = known.setdefault(b, np.frombuffer(raw, NUMPY[u.dtype]).copy())
  return found

def matvec(name: str, rows: int, n: int, q8: bool = False) -> tuple[Tensor, np.ndarray]:
  """The lazy matvec with a matrix repacked for GPUs, and its expected value. q8: x is quantised to two bytes."""
  qt = quant_named(name)
  packed, lay = held(qt, raw := file_rows(qt, rows, n), n)
  x = Tensor(np.random.default_rng(8).standard_normal(n).astype(np.float32).reshape(1, 1, n)).realize()
  if q8: x = fine(x)
  wanted = reference(qt, raw.reshape(-1), n).reshape(rows, n).astype(np.float64) @ x.numpy().astype(np.float64).ravel()
  return x @ dequantize(qt, packed if lay is None else lay.rows(packed), n, lay).transpose(-1, -2), wanted

def moe(name: str, *role: int) -> tuple[Tensor, np.ndarray]:
  """The lazy output of the experts that a token chose, and its expected value. role: fields of Experts."""
  of = Experts(*role)
  m, rows, n, experts, used = of
  qt, rng = quant_named(name), np.random.default_rng(9)
  packed, lay = held(qt, raw := file_rows(qt, m * experts * rows, n), n)
  x = rng.standard_normal((1, 1, 1 if m == 2 else used, n)).astype(np.float32)
  ids, share = rng.permutation(experts)[:used].astype(np.int32), rng.random((1, 1, used, 1)).astype(np.float32)
  y = of_experts(qt, lay, packed, of, *(Tensor(a).realize() for a in (x, ids.reshape(1, 1, -1), share)))
  weights = reference(qt, raw.reshape(-1), n).reshape(m, experts, rows, n)[:, ids].astype(np.float64)
  products = (weights * x.astype(np.float64).reshape(-1, 1, n)).sum(-1)  # (m, used, rows)
  if m == 1: return y, (products[0] * share.reshape(-1, 1)).sum(0)
  gate, up = products
  return y, (gate / (1 + np.exp(-gate)) * up).reshape(-1)

def with_opts(ast: UOp, opts: Sequence[Sequence] | None) -> UOp:
  """A kernel with given opts, (name, axis, arg) each; None: with the heuristic's opts."""
  if opts is None: return ast
  return ast.replace(arg=dataclasses.replace(ast.arg, opts_to_apply=tuple(Opt(OptOps[o], *at) for o, *at in opts)))

def _error(found: np.ndarray, wanted: np.ndarray) -> float:
  return float(np.abs(found - wanted).max() / np.sqrt((wanted ** 2).mean()))

def errors(cases: list[tuple]) -> list[float]:
  """
  The largest errors of matvecs on the default device, as fractions of the results' root mean square.

  cases: (type, rows, n, opts) each, and optionally whether x is quantised to two bytes.
  """
  found = []
  for name, rows, n, opts, *q8 in cases:
    y, wanted = matvec(name, rows, n, *q8)
    linear, variables = y.linear_with_vars()
    *before, call = linear.src
    call = call.replace(src=(with_opts(call.src[0], opts), *call.src[1:]))
    run_linear(compile_linear(linear.replace(src=(*before, call))), variables)
    found.append(_error(np.frombuffer(y.uop.base.buffer.as_memoryview(), np.float32), wanted))
  return found

def errors_of_experts(cases: list[tuple]) -> list[float]:
  """errors() for a token's experts, (type, matrices, rows, n, experts, used) each."""
  return [_error(y.numpy().ravel(), wanted) for y, wanted in (moe(*case) for case in cases)]

def lockstep(cases: list[tuple]) -> list[tuple[float, str, int, int, str]]:
  """
  Runs matvecs in numpy: (error, opts, threads of a workgroup, warp shuffles, source) of each.

  cases: (renderer, type, rows, n, opts) each, and optionally whether x is quantised to two bytes.
  """
  return [_lockstep(target, *matvec(name, rows, n, *q8), opts) for target, name, rows, n, opts, *q8 in cases]

def lockstep_of_experts(cases: list[tuple]) -> list[tuple[float, str, int, int, str]]:
  """lockstep() for a token's experts, (renderer, type, matrices, rows, n, experts, used) each."""
  return [_lockstep(target, *moe(*case)) for target, *case in cases]

def _lockstep(target: str, y: Tensor, wanted: np.ndarray, opts: Sequence[Sequence] | None = None
              ) -> tuple[float, str, int, int, str]:
  linear, variables = y.linear_with_vars()
  *before, call = linear.src
  if before: run_linear(compile_linear(linear.replace(src=tuple(before))), variables)
  uops = gpu_renderers.lowered(with_opts(call.src[0], opts), target)
  gpu_lockstep.run(uops, args := arguments(uops, call, variables, {}), variables)
  exchanges = sum(u.op is Ops.CUSTOM and u.dtype is dtypes.float for u in uops)
  applied = " ".join(f"{opt.op.name}:{opt.axis}:{opt.arg}" for opt in gpu_renderers.opts(uops))
  return _error(args[0], wanted), applied, gpu_renderers.group(uops), exchanges, RENDERERS[target].render(uops)

def main() -> None:
  parser = argparse.ArgumentParser(description="Execute the schedules for GPUs by OpenCL on the CPU.")
  parser.add_argument("types", nargs="*", default=list(TYPES), metavar="TYPE")
  parser.add_argument("--shape", nargs=2, type=int, action="append", metavar=("ROWS", "N"))
  args = parser.parse_args()
  cases = [[name, *shape, None] for name in args.types for shape in args.shape or SHAPES]
  experts = [[name, *role] for name in args.types for role in MOE]
  say("numpy, for CUDA", cases, [row[0] for row in child.call(lockstep, [["CUDA", *case] for case in cases]).value])
  found = child.call(lockstep_of_experts, [["CUDA", *case] for case in experts], NO_Q8_ACTIVATIONS="1").value
  say("experts by numpy, for CUDA", experts, [row[0] for row in found])
  if (env := opencl()) is None: sys.exit("no OpenCL runtime with halves is here; run: pip install intel-opencl-rt "
                                         "intel-cmplr-lib-rt, or set OPENCL_PATH and OCL_ICD_FILENAMES")
  say("OpenCL", cases, child.call(errors, cases, **env).value)
  say("experts by OpenCL", experts, child.call(errors_of_experts, experts, **env).value)

def say(what: str, cases: list[list], found: list[float]) -> None:
  """Prints errors; exits with 1 if one is too large."""
  print(what)
  for name in dict.fromkeys(case[0] for case in cases):
    values = [(f"{'x'.join(str(size) for size in case[1:] if size)} {value:.1e}", value)
              for case, value in zip(cases, found) if case[0] == name]
    print(f"  {name:8s}", *[text for text, _ in values], "" if max(v for _, v in values) < MOST else "WRONG")
  if any(not value < MOST for value in found): sys.exit(1)

if __name__ == "__main__":
  from tests.gpu import gpu_numbers
  gpu_numbers.main()  # a child process imports the functions by this module name
