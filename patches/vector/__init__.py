"""
SIMD code for CPUs: scalar loops become vectors, and loads are ordered for the compiler. Nothing here is for a GPU.
"""
