"""Best-first and best-k search (Xu et al. 2022): a frontier of hypotheses of all lengths."""
