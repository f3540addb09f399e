"""
Quantisation formats: the table of GGML types, decode expressions (one file per family), and quantisers.
A new type is a decode function and a row in its family's file. No module here reads files or knows memory layouts.
"""
