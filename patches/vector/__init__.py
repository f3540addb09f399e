"""
SIMD code of CPUs: scalar loops become vectors, loads are ordered for the compiler. Nothing here is for a GPU.
"""
