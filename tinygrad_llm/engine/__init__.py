"""
A loaded model at work: prefill, decode, sampling. The layers' maths is in nn/, the user's input in the commands.
"""
