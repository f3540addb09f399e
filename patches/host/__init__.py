"""
The host: its cores, threads and processes, the pages of its memory, and the locks between threads.
"""
