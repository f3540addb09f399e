"""
Rules on graphs that hold on every target: factors out of sums, sums in sums, gathers, reshapes.
"""
