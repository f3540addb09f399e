"""
What a kernel will cost, from its code alone: instructions, memory access, the longest chain, the hardware's limits.
"""
