"""
What passes share: loops, indices, products, actions of a schedule, the target's limits. Pure functions on graphs.
Nothing here is installed, or changes a kernel by itself.
"""
