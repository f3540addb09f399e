"""
Instructions of GPUs, spelled for each renderer, and arithmetic that suits them. Nothing here is for a CPU.
"""
