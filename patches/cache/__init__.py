"""
Caches on disk that processes share: programs, captures, schedules, and the store under them.
"""
