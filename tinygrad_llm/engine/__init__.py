"""
A loaded model at work: prefill, decode, sampling. What layers compute is in nn/, what users type in the commands.
"""
