"""
What runs kernels: threads, launches, memory pages, compile workers. Nothing here changes a kernel.
"""
