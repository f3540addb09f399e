"""
What a step compiled to and where its time goes: programs, the role of each kernel, profiles, tuning.
Nothing here changes a step.
"""
