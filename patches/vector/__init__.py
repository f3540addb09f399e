"""
SIMD code of CPUs: lanes, table look-ups, dot products of bytes, the order of loads. Nothing here is for a GPU.
"""
