"""
Instructions of targets and how each renderer spells them: dot products, table look-ups, shuffles, conversions.
"""
