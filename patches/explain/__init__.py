"""
Tools that show the passes at work: where each is installed, and what it did to one kernel. No pass lives here.
"""
