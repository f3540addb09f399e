"""
A kernel's time, estimated from its code alone: instructions, memory accesses, dependency chain, hardware limits.
"""
