"""
This process: its standard streams, its forks, Python's garbage collector, its exit.
"""
