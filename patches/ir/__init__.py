"""
Helpers that passes share: loops, indices, products, actions of a schedule, limits of the target. They are pure
functions on graphs. Nothing here is installed or changes a kernel by itself.
"""
