"""
Analysis of a step: its compiled kernels, the role of each one, profiles of where its time goes, and tuning.
Nothing here changes a step.
"""
