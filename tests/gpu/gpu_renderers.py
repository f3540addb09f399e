"""Renderers for GPU languages that work without the GPU's compiler."""
import math

from tinygrad.codegen import full_rewrite_to_sink, line_rewrite, pm_linearize_cleanups
from tinygrad.codegen.late.linearizer import linearize
from tinygrad.codegen.opt import tc
from tinygrad.helpers import Target
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import CUDARenderer, HIPRenderer, OpenCLRenderer
from tinygrad.renderer.ptx import PTXRenderer
from tinygrad.uop.ops import Ops, UOp
from tinygrad_llm.device.metal import MetalRenderer

class CUDA(CUDARenderer):
  """CUDARenderer without NVRTC."""
  def __init__(self, target: Target):
    Renderer.__init__(self, target)
    self.tensor_cores = tc.get_cuda(target.arch)

class PTX(PTXRenderer):
  """PTXRenderer without a PTX compiler."""
  def __init__(self, target: Target):
    Renderer.__init__(self, target)
    self.tensor_cores = tc.get_cuda(target.arch)

class HIP(HIPRenderer):
  """HIPRenderer without AMD's compiler."""
  def __init__(self, target: Target):
    Renderer.__init__(self, target)
    self.tensor_cores = tc.get_amd(target.arch)

RENDERERS: dict[str, Renderer] = {
  "Metal": MetalRenderer(Target("METAL", arch="Apple9")), "CUDA": CUDA(Target("CUDA", arch="sm_90")),
  "PTX": PTX(Target("CUDA", arch="sm_90")), "OpenCL": OpenCLRenderer(Target("CL", "CL", "cl_khr_fp16"))}

# targets whose tensor cores have other shapes
OTHERS: dict[str, Renderer] = {
  "CUDA sm_75": CUDA(Target("CUDA", arch="sm_75")), "AMD gfx1100": HIP(Target("AMD", arch="gfx1100")),
  "AMD gfx1201": HIP(Target("AMD", arch="gfx1201"))}

def named(name: str) -> Renderer: return (RENDERERS | OTHERS)[name]

def lowered(ast: UOp, name: str) -> list[UOp]:
  return line_rewrite(linearize(full_rewrite_to_sink(ast, named(name))), pm_linearize_cleanups)

def opts(uops: list[UOp]) -> tuple:
  return next(u for u in uops if u.op is Ops.SINK).arg.applied_opts

def group(uops: list[UOp]) -> int:
  """Threads of a workgroup."""
  return math.prod(int(u.src[0].vmax) for u in uops if u.op is Ops.SPECIAL and u.arg.startswith("lidx"))

def render(ast: UOp, name: str) -> str: return named(name).render(lowered(ast, name))
