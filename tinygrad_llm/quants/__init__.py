"""
What the bits of each GGML type mean: the table of types, a file a family with its decode expressions, the quantisers.
A new type is a decode function and a row in its family's file. Nothing here reads a file or knows a layout.
"""
