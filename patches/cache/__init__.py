"""
What is kept on disk between processes: programs, captures, results of BEAM, and the store under them.
"""
