"""Runs samplers of other projects against the distributions that their documentation promises.

``python -m experiments.audit`` runs what is installed; ``docs/audit.md`` has the results.
"""
