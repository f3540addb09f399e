"""
Tensors become kernels: which sums and products a kernel holds, what is stored between kernels, what is launched
together. These rules work on graphs before any kernel has loops.
"""
