"""
Metal's kernels executed without a Mac: their own source, compiled by clang as C++ and run by the processor.

  source.py      what a kernel's source becomes, and what of it Apple's compiler would refuse
  metal_stdlib   Metal's standard library, as far as tinygrad's kernels use it
  executor.cpp   threads as fibers, simdgroups and threadgroups that wait for each other; all that is read or written
                 is looked at: races, uninitialised memory, bounds, alignment, divergence
  memory.py      buffers between pages that nobody may touch
  kernel.py      a kernel compiled, loaded and launched; Fault
  ops_metal.py   tinygrad's device METAL over all this, so that the whole app runs on it

It is no model of speed, nor of Apple's compiler: what that alone knows is told by the macOS workflow.
"""
