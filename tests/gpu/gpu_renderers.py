"""
Kernels in the languages of GPUs whose compilers are not here: rendered, and for Metal checked for errors by clang.

Metal is C++ with address spaces; so is clang's C++ for OpenCL, and SHIM makes one of the other: enough of metal_stdlib
for what tinygrad renders. What only Apple's compiler knows is not checked.
"""
import math
import os
import pathlib
import subprocess
import tempfile

from tinygrad.codegen import full_rewrite_to_sink, line_rewrite, pm_linearize_cleanups
from tinygrad.codegen.late.linearizer import linearize
from tinygrad.codegen.opt import tc
from tinygrad.helpers import Target
from tinygrad.renderer import Renderer
from tinygrad.renderer.cstyle import CUDARenderer, MetalRenderer, OpenCLRenderer
from tinygrad.renderer.ptx import PTXRenderer
from tinygrad.uop.ops import Ops, UOp

class Metal(MetalRenderer):
  """MetalRenderer without a Mac."""
  def __init__(self, target: Target):
    Renderer.__init__(self, target)
    self.tensor_cores = tc.metal

class CUDA(CUDARenderer):
  """CUDARenderer without NVRTC."""
  def __init__(self, target: Target):
    Renderer.__init__(self, target)
    self.tensor_cores = tc.get_cuda(target.arch)

class PTX(PTXRenderer):
  """PTXRenderer without a compiler of PTX."""
  def __init__(self, target: Target):
    Renderer.__init__(self, target)
    self.tensor_cores = tc.get_cuda(target.arch)

RENDERERS: dict[str, Renderer] = {
  "Metal": Metal(Target("METAL", arch="Apple9")), "CUDA": CUDA(Target("CUDA", arch="sm_90")),
  "PTX": PTX(Target("CUDA", arch="sm_90")), "OpenCL": OpenCLRenderer(Target("CL", "CL", "cl_khr_fp16"))}

def lowered(ast: UOp, name: str) -> list[UOp]:
  return line_rewrite(linearize(full_rewrite_to_sink(ast, RENDERERS[name])), pm_linearize_cleanups)

def opts(uops: list[UOp]) -> tuple:
  return next(u for u in uops if u.op is Ops.SINK).arg.applied_opts

def group(uops: list[UOp]) -> int:
  """Threads of a group."""
  return math.prod(int(u.src[0].vmax) for u in uops if u.op is Ops.SPECIAL and u.arg.startswith("lidx"))

def render(ast: UOp, name: str) -> str: return RENDERERS[name].render(lowered(ast, name))

SHIM = """
#define device __global
#define constant __constant
#define threadgroup __local
typedef unsigned int uint; typedef unsigned short ushort; typedef unsigned char uchar;
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#define VECTOR(T, n) typedef T T##n __attribute__((ext_vector_type(n)));
VECTOR(float, 2) VECTOR(float, 4) VECTOR(uint, 2) VECTOR(uint, 3) VECTOR(uint, 4) VECTOR(int, 2) VECTOR(int, 4)
VECTOR(half, 2) VECTOR(half, 4)
#define float2(...) ((float2)(__VA_ARGS__))
#define float4(...) ((float4)(__VA_ARGS__))
#define uint4(...) ((uint4)(__VA_ARGS__))
namespace metal {
  template <class T, class F> T as_type(F v) {
    static_assert(sizeof(T) == sizeof(F), "as_type of another size");
    return __builtin_bit_cast(T, v);
  }
  enum class mem_flags { mem_device = 1, mem_threadgroup = 2 };
  constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
  void threadgroup_barrier(mem_flags);
  template <class T> T simd_shuffle_xor(T, ushort);
  float exp2(float); float log2(float); float sqrt(float); float trunc(float);
}
"""

def metal_errors(source: str) -> str:
  """What clang says of a kernel's source; "" if it is right."""
  with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "metal_stdlib").write_text(SHIM)
    pathlib.Path(folder, "kernel.clcpp").write_text(source)
    command = [os.environ.get("CC", "clang"), "-cc1", "-x", "clcpp", "-cl-std=clc++2021", "-triple", "spir64",
               "-cl-ext=+all", "-fsyntax-only", "-Wno-unknown-attributes", "-I", folder, f"{folder}/kernel.clcpp"]
    done = subprocess.run(command, capture_output=True, text=True)
  return done.stdout + done.stderr if done.returncode else ""
