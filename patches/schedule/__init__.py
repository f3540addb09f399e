"""
Which loops of a kernel are split, unrolled and shared among threads. A chooser answers with a schedule (a list of
Opts); other rooms rewrite the kernel.
"""
