"""
Passes that shorten tracing, scheduling and lowering. None but normal_form changes a kernel: it makes equal ones one.
"""
