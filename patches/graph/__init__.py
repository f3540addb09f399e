"""
Rules on tensor graphs, before any kernel has loops. They decide which sums and products a kernel holds, what is stored
between kernels, and which kernels share a launch.
"""
