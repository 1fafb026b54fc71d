"""What the TPU compiler makes of the strategies: memory, traffic and collectives of a step."""
