"""The time of a step on a GPU or a TPU, beside what the device's memory allows."""
