"""
Rewrites of a scheduled kernel that hold on any target: nested sums, loop-invariant sums and factors, steps that are
skipped. No instruction of a target is named here.
"""
