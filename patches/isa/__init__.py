"""
Target instructions and their spelling in each renderer: dot products, table look-ups, shuffles, conversions.
"""
