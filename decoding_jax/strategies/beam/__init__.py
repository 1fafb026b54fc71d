"""The beam family: hypotheses of one length that compete at every step."""
