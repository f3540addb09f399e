"""
Blocked matrix products: packed and shared operands, tile registers, tensor cores and epilogues.
"""
