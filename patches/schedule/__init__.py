"""
Schedules: which loops of a kernel are split, unrolled and shared among threads. A chooser returns a copy of the kernel
with a schedule (a list of Opts) applied; passes in other rooms rewrite the kernel.
"""
