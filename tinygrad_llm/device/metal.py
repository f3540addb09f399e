"""
Metal without a Mac: kernels are rendered, and clang checks them for errors.

Metal is C++ with address spaces, and so is clang's C++ for OpenCL. SHIM maps one to the other: it declares the part of
metal_stdlib that tinygrad's kernels use. Errors that only Apple's compiler finds are not checked.
"""
from __future__ import annotations
import os, pathlib, subprocess, tempfile
from tinygrad.codegen.opt import tc
from tinygrad.device import CompileError, Compiler
from tinygrad.helpers import Target
from tinygrad.renderer import Renderer, cstyle

SHIM = """
#define device __global
#define constant __constant
#define threadgroup __local
typedef unsigned int uint; typedef unsigned short ushort; typedef unsigned char uchar; typedef unsigned long ulong;
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
typedef half bfloat;
#define VECTOR(T, n) typedef T T##n __attribute__((ext_vector_type(n)));
#define VECTORS(T) VECTOR(T, 2) VECTOR(T, 3) VECTOR(T, 4)
VECTORS(float) VECTORS(half) VECTORS(int) VECTORS(uint) VECTORS(short) VECTORS(ushort) VECTORS(char) VECTORS(uchar)
VECTORS(long) VECTORS(ulong) VECTORS(bfloat)
#define float2(...) ((float2)(__VA_ARGS__))
#define float4(...) ((float4)(__VA_ARGS__))
#define half2(...) ((half2)(__VA_ARGS__))
#define half4(...) ((half4)(__VA_ARGS__))
#define int2(...) ((int2)(__VA_ARGS__))
#define int4(...) ((int4)(__VA_ARGS__))
#define uint2(...) ((uint2)(__VA_ARGS__))
#define uint4(...) ((uint4)(__VA_ARGS__))
#define uchar4(...) ((uchar4)(__VA_ARGS__))
namespace metal {
  template <class T, class F> T as_type(F v) {
    static_assert(sizeof(T) == sizeof(F), "as_type of another size");
    return __builtin_bit_cast(T, v);
  }
  enum class mem_flags { mem_device = 1, mem_threadgroup = 2 };
  constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
  void threadgroup_barrier(mem_flags);
  template <class T> T simd_shuffle(T, ushort);
  template <class T> T simd_shuffle_xor(T, ushort);
  float exp2(float); float log2(float); float sqrt(float); float trunc(float);
  half exp2(half); half log2(half); half sqrt(half); half trunc(half);
  namespace precise { float sin(float); half sin(half); }
  template <class T, int m, int n> struct simdgroup_matrix {
    T elements[2];
    T (&thread_elements())[2] { return elements; }
  };
  typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
  typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
  typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
  template <class R, class A, class B, class C> void simdgroup_multiply_accumulate(R&, A&, B&, C&);
  template <class T> void simdgroup_load(simdgroup_matrix<T, 8, 8>&, const device T*, ulong = 8);
  template <class T> void simdgroup_load(simdgroup_matrix<T, 8, 8>&, const threadgroup T*, ulong = 8);
  template <class T> void simdgroup_store(simdgroup_matrix<T, 8, 8>, device T*, ulong = 8);
  template <class T> void simdgroup_store(simdgroup_matrix<T, 8, 8>, threadgroup T*, ulong = 8);
}
"""

def errors(source: str) -> str:
  """clang's messages on a kernel's source; "" if it finds no error."""
  with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "metal_stdlib").write_text(SHIM)
    pathlib.Path(folder, "kernel.clcpp").write_text(source)
    command = [os.environ.get("CC", "clang"), "-cc1", "-x", "clcpp", "-cl-std=clc++2021", "-triple", "spir64",
               "-cl-ext=+all", "-fsyntax-only", "-Wno-unknown-attributes", "-I", folder, f"{folder}/kernel.clcpp"]
    done = subprocess.run(command, capture_output=True, text=True)
  return done.stdout + done.stderr if done.returncode else ""

class Checker(Compiler):
  """A compiler that only checks: the binary is the source. CompileError if clang finds an error."""
  def __init__(self) -> None: super().__init__(None)

  def compile(self, src: str) -> bytes:
    if found := errors(src): raise CompileError(found)
    return src.encode()

class MetalRenderer(cstyle.MetalRenderer):
  """A Metal renderer for an architecture such as Apple9, on any machine."""
  def __init__(self, target: Target):
    Renderer.__init__(self, target)
    self.compiler, self.tensor_cores = Checker(), tc.metal if int(target.arch.removeprefix("Apple")) >= 7 else []
