"""
The mixers, the parts of a layer that relate positions: each maps a layer's normalised input to an addend.
Attention reads a KV cache, with queries, keys and values of gqa.py or mla.py. Recurrent mixers keep a state of fixed
size, such as shortconv.py, and delta.py with its linear_attention.py.
"""
