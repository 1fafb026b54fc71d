"""The families of decoder-only networks that are data, each in a file."""

from __future__ import annotations

from typing import Any

from decoding_jax import fields
from decoding_jax.models.checkpoint.families import (
    arcee,
    bloom,
    cohere,
    ernie,
    exaone4,
    falcon,
    gemma,
    glm,
    gpt,
    gpt_neox,
    gpt_oss,
    granite,
    llama,
    mixtures,
    olmo,
    opt,
    phi,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
)
from decoding_jax.models.checkpoint.family import Family

FAMILIES: dict[str, Family] = {
    family.model_type: family
    for family in (
        *(llama.LLAMA, llama.MISTRAL, llama.MINISTRAL, llama.MINISTRAL3, llama.MISTRAL3),
        *(llama.QWEN2, llama.QWEN3, llama.MIMO),
        *(gemma.GEMMA, gemma.GEMMA2, gemma.GEMMA3, gemma.GEMMA3_WITH_IMAGES),
        *(olmo.OLMO, olmo.OLMO2, olmo.OLMO3),
        *(phi.PHI, phi.PHI3, arcee.ARCEE, arcee.NEMOTRON, cohere.COHERE, cohere.COHERE2),
        *(ernie.ERNIE4_5, glm.GLM, glm.GLM4, exaone4.EXAONE4, falcon.FALCON),
        *(gpt.GPT_J, gpt_neox.GPT_NEOX),
        *(bloom.BLOOM, granite.GRANITE, opt.OPT, seed_oss.SEED_OSS, smollm3.SMOLLM3),
        *(mixtures.MIXTRAL, mixtures.OLMOE, mixtures.QWEN2_MOE, mixtures.QWEN3_MOE),
        *(gpt_oss.GPT_OSS, gpt.GPT_NEO, gpt.GPT_2, bloom.MPT),
        *(stablelm.STABLELM, starcoder2.STARCODER2),
    )
}
"""The families by their ``model_type``. A network is saved as the first that can say all of it."""


def family_of(model: Any) -> Family:
    """The first family whose settings say all of a network.

    Raises:
      ValueError: if there is none, with what the nearest one would have; or for a network that
        ``for_long_texts`` returned, since files do not say so.
    """
    scaling = getattr(model.config, "rope_scaling", None)
    if scaling is not None and scaling.long_texts:
        raise fields.error("long_texts", "False, as before for_long_texts", True)
    differences = {}
    for name, family in FAMILIES.items():
        if family.model is not type(model):
            continue
        try:
            differences[name] = family.differences(model.config)
        except ValueError:  # it refuses a setting
            continue
        if not differences[name]:
            return family
    nearest = min(differences, key=lambda name: len(differences[name]))
    raise FAMILIES[nearest].refusal(differences[nearest])
