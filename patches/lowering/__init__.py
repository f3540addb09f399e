"""
The compiler's own pace: what tinygrad computes while it traces, schedules and lowers, in less time. Kernels are the
same with these patches and without.
"""
