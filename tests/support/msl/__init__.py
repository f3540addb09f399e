"""
Executes Metal kernels without a Mac: clang compiles their source as C++ and the CPU runs it.

- source.py: translates a kernel's source to C++, and refuses what Apple's compiler would refuse
- metal_stdlib: the part of Metal's standard library that tinygrad's kernels use
- executor.cpp: runs threads as fibers that synchronise in simdgroups and threadgroups. It checks all accesses: races,
  uninitialised memory, bounds, alignment, divergence
- memory.py: buffers between guard pages
- kernel.py: compiles, loads and launches a kernel; Fault
- ops_metal.py: tinygrad's device METAL on the executor, so that the whole app runs on it

The executor models neither speed nor Apple's compiler; the macOS workflow tests with the real compiler.
"""
