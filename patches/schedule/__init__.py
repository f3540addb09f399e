"""
Schedules: which loops of a kernel are split, unrolled, shared among threads. They choose opts, other rooms rewrite.
"""
