"""
What is kept on disk between processes: programs, captures, schedules, and the store under them.
"""
