"""
What makes tinygrad trace, schedule and lower in less time. Kernels are the same with these passes and without.
"""
