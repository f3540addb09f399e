"""
Rewrites of a scheduled kernel that hold on any target: nested sums, hoisted loop-invariant sums and factors, skipped
steps. This folder names no instruction of a target.
"""
