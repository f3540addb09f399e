"""Benchmarks against peers and against the machine's limit. Dated figures go to results/."""
