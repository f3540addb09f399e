"""Speed against peers and against the machine's limit. Figures go to results/, dated."""
