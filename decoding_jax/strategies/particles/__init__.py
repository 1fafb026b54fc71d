"""Particles: samples with weights, which are resampled while they grow."""

from decoding_jax.strategies.particles.power_sample import PowerSample, power_sample
from decoding_jax.strategies.particles.smc_sample import SMCSample, smc_sample

__all__ = [
    "PowerSample",
    "SMCSample",
    "power_sample",
    "smc_sample",
]
