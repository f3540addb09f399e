"""
Blocked matrix products: operands that are packed or shared, tile registers, tensor cores, epilogues.
"""
