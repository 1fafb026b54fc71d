"""The papers' experiments, on a model, a task and metrics of one's own (see docs/papers.md)."""
