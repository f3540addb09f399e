"""
Attention of few queries: the rule that cuts positions into parts, and the kernel of a part. Nothing here knows a model;
another fusion of sums that wait for each other may stand here, a schedule of one sum may not.
"""
