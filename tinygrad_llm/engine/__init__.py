"""
A loaded model at work: prefill, decode, sampling, and which tokens the KV cache and recurrent states hold.
The layers' maths is in nn/, the user's input in the commands.
"""
