"""
Packed rows in memory, and products with them: what a layer gets instead of plain tensors.
How the bytes of a type decode is in files/; which matrix is which is the layers' business.
"""
