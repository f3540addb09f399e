"""Unscheduled kernels for tests of schedule choosers: on one CPU and on the GPUs of gpu_renderers."""
from dataclasses import replace

from tests.gpu import gpu_renderers
from tinygrad import Device
from tinygrad.codegen.opt.postrange import Scheduler
from tinygrad.renderer import Renderer
from tinygrad.uop.ops import AxisType, KernelInfo, UOp

def renderer(target: str) -> Renderer:
  """The renderer of a GPU by name, or of a CPU with AVX-512, whatever this machine is."""
  if target != "CPU": return gpu_renderers.named(target)
  ren = Device["CPU"].renderer
  return type(ren)(replace(ren.target, arch="x86_64,x86-64-v4"))

def started(ast: UOp, target: str) -> Scheduler:
  """The Scheduler of a kernel as a schedule chooser gets it."""
  k = Scheduler(ast, renderer(target))
  k.convert_loop_to_global()
  return k

def opts(k: Scheduler | None) -> list[tuple]:
  return [] if k is None else [(o.op.name, o.arg) for o in k.applied_opts]

def kernel(place: UOp, value: UOp, *loops: UOp, name: int = 9, n: int = 4096) -> UOp:
  """A kernel that stores a value in each iteration of its output ranges."""
  out = UOp.param(name, value.dtype, (n,))
  return UOp.sink(out.index(place).store(value).end(*loops), arg=KernelInfo())

def output(n: int | UOp, id: int = 0) -> UOp: return UOp.range(n, id, AxisType.WEAK)
def reduced(n: int | UOp, id: int = 8) -> UOp: return UOp.range(n, id, AxisType.REDUCE)
