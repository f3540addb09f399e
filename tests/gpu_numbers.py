"""
The schedules for GPUs executed: by OpenCL on the CPU, where its runtime is, against float64.

  python tests/gpu_numbers.py [TYPE ..] [--shape ROWS N]    errors of all types (make gpu-numbers)

The runtime is that of the wheels intel-opencl-rt and intel-cmplr-lib-rt (270 MB, x86-64), or what OPENCL_PATH and
OCL_ICD_FILENAMES say.
"""
import argparse
import functools
import os
import pathlib
import sys
from collections.abc import Sequence

import child
import numpy as np
import tinygrad_llm  # noqa: F401  (before tinygrad: it applies the patches)
from gguf import GGMLQuantizationType, quants
from gpu_schedules import TYPES
from synthetic import random_blocks
from tinygrad import Device, Tensor, dtypes
from tinygrad.codegen.opt import Opt, OptOps
from tinygrad.engine.realize import compile_linear, run_linear
from tinygrad_llm.quant import QUANT_TYPES, QuantType, dequantize, layout, pack, reference

MOST = 2e-3  # error, as a fraction of the root mean square of the results
SHAPES = ((48, 768), (64, 2048), (40, 3584))  # rows, n

@functools.cache
def opencl() -> dict[str, str] | None:
  """The environment of a process in which DEV=CL runs on this machine; None where it does not."""
  lib = pathlib.Path(sys.prefix) / "lib"
  env = {"DEV": "CL"}
  if "OPENCL_PATH" not in os.environ and (lib / "libintelocl.so").exists():
    env |= {"LD_LIBRARY_PATH": f"{lib}", "OPENCL_PATH": f"{lib / 'libOpenCL.so.1'}",
            "OCL_ICD_FILENAMES": f"{lib / 'libintelocl.so'}"}
  try: return env if child.call(opens, **env).value else None
  except AssertionError: return None

def opens() -> bool:
  """Whether the default device is there and has halves."""
  return dtypes.half in Device[Device.DEFAULT].renderer.supported_dtypes()

def file_rows(qt: QuantType, rows: int, n: int) -> np.ndarray:
  """Bytes of a file, (rows, bytes of a row)."""
  rng = np.random.default_rng(7)
  if qt.name == "F16": return (rng.standard_normal((rows, n)) * 0.02).astype(np.float16).view(np.uint8)
  if qt.name == "TQ2_0": return quants.quantize(rng.standard_normal((rows, n), np.float32), GGMLQuantizationType.TQ2_0)
  return random_blocks(rng, qt.name, rows * n // qt.block, 0.02).reshape(rows, -1)

def matvec(name: str, rows: int, n: int) -> tuple[Tensor, np.ndarray]:
  """The lazy product of a matrix, in the layout for the default device, with a vector; and what it should be."""
  qt = next(qt for qt in QUANT_TYPES.values() if qt.name == name)
  raw, lay = file_rows(qt, rows, n), layout(qt, Device[Device.DEFAULT].renderer, rows, n)
  kind = {dtypes.uint32: np.uint32, dtypes.float16: np.float16}[qt.dtype]
  if lay is None:
    pack(qt, raw, n, held := np.zeros((rows, qt.row_items(n)), kind))
    packed = Tensor(held).realize()
  else:
    blocks = n // qt.block
    units = np.zeros((rows * blocks, qt.held), np.uint8)
    units[:, qt.front:qt.front + qt.nbytes] = raw.reshape(rows * blocks, -1)
    units = units.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[qt.unit]).reshape(rows, blocks, -1)
    packed = Tensor.zeros(rows // lay.tile, blocks // lay.together, lay.group_words, lay.tile,
                          dtype=dtypes.uint32).contiguous().realize()
    for place, words in lay.repack(Tensor(units).realize()): packed[:, :, place, :].assign(words).realize()
    packed = lay.rows(packed.reshape(rows // lay.tile, -1, lay.tile))
  x = np.random.default_rng(8).standard_normal(n).astype(np.float32)
  wanted = reference(qt, raw.reshape(-1), n).reshape(rows, n).astype(np.float64) @ x.astype(np.float64)
  return Tensor(x.reshape(1, 1, n)).realize() @ dequantize(qt, packed, n, lay).transpose(-1, -2), wanted

def error(name: str, rows: int, n: int, opts: Sequence[Opt] | None = None) -> tuple[float, str]:
  """The largest error, as a fraction of the root mean square; and the opts. `opts`: those to apply, not the heuristic's."""
  y, wanted = matvec(name, rows, n)
  linear, variables = y.linear_with_vars()
  if opts is not None:
    call = linear.src[-1]
    ast = call.src[0].replace(arg=call.src[0].arg.__class__(**{**vars(call.src[0].arg), "opts_to_apply": tuple(opts)}))
    linear = linear.replace(src=(*linear.src[:-1], call.replace(src=(ast, *call.src[1:]))))
  compiled = compile_linear(linear)
  run_linear(compiled, variables)
  found = np.frombuffer(y.uop.base.buffer.as_memoryview(), np.float32)
  applied = " ".join(f"{opt.op.name}:{opt.axis}:{opt.arg}" for opt in compiled.src[-1].src[0].src[0].arg.applied_opts)
  return float(np.abs(found - wanted).max() / np.sqrt((wanted ** 2).mean())), applied

def errors(names: list[str], shapes: list[list[int]]) -> dict[str, float]:
  """Of the heuristic's schedules: {type: the largest of all shapes}."""
  return {name: max(error(name, rows, n)[0] for rows, n in shapes) for name in names}

def with_opts(name: str, rows: int, n: int, opts: list[list]) -> float:
  """Of a schedule written down: opts (name, axis, arg) each."""
  return error(name, rows, n, [Opt(OptOps[op], axis, arg) for op, axis, arg in opts])[0]

def main() -> None:
  parser = argparse.ArgumentParser(description="Execute the schedules for GPUs by OpenCL on the CPU.")
  parser.add_argument("types", nargs="*", default=list(TYPES), metavar="TYPE")
  parser.add_argument("--shape", nargs=2, type=int, action="append", metavar=("ROWS", "N"))
  args = parser.parse_args()
  if (env := opencl()) is None: sys.exit("no OpenCL runtime with halves is here; run: pip install intel-opencl-rt "
                                         "intel-cmplr-lib-rt, or set OPENCL_PATH and OCL_ICD_FILENAMES")
  found = child.call(errors, args.types, args.shape or [list(shape) for shape in SHAPES], **env).value
  for name, value in found.items(): print(f"{name:8s} {value:.1e} {'' if value < MOST else 'WRONG'}")
  if any(not value < MOST for value in found.values()): sys.exit(1)

if __name__ == "__main__":
  import gpu_numbers
  gpu_numbers.main()  # its functions are found by their module's name in a child
