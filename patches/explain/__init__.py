"""
What shows the patches at work: where each is installed, and what it did to one kernel. No patch lives here.
"""
