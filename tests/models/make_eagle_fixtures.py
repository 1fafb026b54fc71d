"""Writes ``heads``: tiny heads, blocks, and what published programs answer.

    PYTHONPATH=EAGLE python tests/models/make_eagle_fixtures.py

EAGLE is a checkout of github.com/SafeAILab/EAGLE; ``speculators`` 0.9 and ``transformers`` 5.23 are
installed. The weights are random and carry no licence. Names, such as ``multi_token``, write those
alone.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

HEADS = Path(__file__).parent / "heads"
SHAPE = {
    "vocab_size": 40,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
DRAFTED = 12


def main() -> None:
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    ids = np.sort(draw.permutation(SHAPE["vocab_size"])[:DRAFTED])
    d2t = torch.tensor(ids - np.arange(DRAFTED))
    t2d = torch.zeros(SHAPE["vocab_size"], dtype=torch.bool)
    t2d[ids] = True
    tokens = torch.tensor(draw.integers(SHAPE["vocab_size"], size=(1, 6)))
    features = torch.randn(1, 6, 3 * SHAPE["hidden_size"])
    asked = {"tokens": tokens, "features": features, "d2t": d2t, "t2d": t2d}
    for make in (authors, speculators, dflash, multi_token, speculators_dflash, assistants):
        if make.__name__ in (sys.argv[1:] or make.__name__):
            make(asked)


def randomize(model: torch.nn.Module, asked: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(1.0 if name.endswith("norm.weight") else 0.0, 0.3)
    model.load_state_dict({k: asked[k] for k in ("d2t", "t2d") if k in asked}, strict=False)
    model.eval()


def write(name: str, config: dict, tensors: dict, asked: dict, answers: dict) -> None:
    folder = HEADS / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, folder / "model.safetensors")
    asked = {k: asked[k] for k in ("tokens", "features")}
    answers = {k: v.detach().contiguous().clone() for k, v in (asked | answers).items()}
    save_file(answers, folder / "expected.safetensors")


def authors(asked: dict[str, torch.Tensor]) -> None:
    """The first entries as a prompt, then one more from the state of the last one."""
    from eagle.model.cnets import Model

    settings = {**SHAPE, "draft_vocab_size": DRAFTED, "model_type": "llama"}
    rest = {"pad_token_id": 0, "rope_scaling": None, "pretraining_tp": 1}
    model = Model(types.SimpleNamespace(**settings, **rest))
    randomize(model, asked)
    tokens, features = asked["tokens"], asked["features"]
    with torch.no_grad():
        states, past = model(features[:, :5], input_ids=tokens[:, :5], use_cache=True)
        logits = model.lm_head(model.norm(states))
        last, _ = model(
            states[:, -1:],
            input_ids=tokens[:, 5:],
            past_key_values=past,
            position_ids=torch.tensor([5]),
            use_cache=True,
        )
    answers = {"logits": logits, "next_logits": model.lm_head(model.norm(last))}
    config = {**settings, "architectures": ["LlamaForCausalLM"]}
    tensors = {k: v for k, v in model.state_dict().items() if k != "embed_tokens.weight"}
    answers["embedding"] = model.embed_tokens.weight
    write("authors", config, tensors, asked, answers)


def speculators(asked: dict[str, torch.Tensor]) -> None:
    """The logits of two steps of training, the second from the states of the first."""
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, Qwen3Config

    variants = {
        "speculators": (LlamaConfig, {"norm_before_fc": True}),
        "speculators_qwen3": (
            Qwen3Config,
            {"norm_before_residual": True, "fc_norm": True, "norm_output": True},
        ),
    }
    for name, (layer_class, flags) in variants.items():
        layers = 1 + (layer_class is Qwen3Config)
        layer = layer_class(
            **{**SHAPE, "num_hidden_layers": layers, "head_dim": 4, "attn_implementation": "eager"}
        )
        config = Eagle3SpeculatorConfig(
            transformer_layer_config=layer,
            draft_vocab_size=DRAFTED,
            eagle_aux_hidden_state_layer_ids=[1, 2, 4],
            speculators_config=SpeculatorsConfig(
                algorithm="eagle3",
                proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
                default_proposal_method="greedy",
                verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
            ),
            **flags,
        )
        layer._attn_implementation = "eager"
        model = Eagle3DraftModel(config)
        randomize(model, asked)
        found: list[torch.Tensor] = []
        model.lm_head.register_forward_hook(lambda module, x, y, found=found: found.append(y))
        with torch.no_grad():
            model(
                asked["features"], asked["tokens"], torch.zeros(1, 6, dtype=torch.long), ttt_steps=2
            )
        # The second step feeds each entry the token of the next one, after its own state.
        answers = {"logits": found[0], "next_logits": found[1]}
        write(name, config.to_dict(), model.state_dict(), asked, answers)


def dflash(asked: dict[str, torch.Tensor]) -> None:
    """A block after five tokens, by the layers of ``speculators`` without a mask."""
    from speculators.models.dflash.model_definitions import Qwen3DFlashDecoderLayer
    from transformers import Qwen3Config
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, Qwen3RotaryEmbedding

    settings = {**SHAPE, "num_hidden_layers": 2, "head_dim": 4, "model_type": "qwen3"}
    config = Qwen3Config(**settings, attn_implementation="eager")
    width, block, mask = SHAPE["hidden_size"], 4, 39
    model = torch.nn.Module()
    model.fc = torch.nn.Linear(3 * width, width, bias=False)
    model.hidden_norm = Qwen3RMSNorm(width, eps=SHAPE["rms_norm_eps"])
    model.layers = torch.nn.ModuleList(Qwen3DFlashDecoderLayer(config, i) for i in range(2))
    model.norm = Qwen3RMSNorm(width, eps=SHAPE["rms_norm_eps"])
    randomize(model, asked)
    embedding = torch.randn(SHAPE["vocab_size"], width)
    model.rotary_emb = Qwen3RotaryEmbedding(config)
    logits = block_states(model, asked, embedding, block, mask) @ embedding.T
    own = {"mask_token_id": mask, "target_layer_ids": [0, 2, 4]}
    written = {**settings, "architectures": ["DFlashDraftModel"], "block_size": block}
    answers = {"logits": logits, "embedding": embedding}
    write("dflash", {**written, "dflash_config": own}, model.state_dict(), asked, answers)


def block_states(
    model: torch.nn.Module, asked: dict, embedding: torch.Tensor, block: int, mask: int
) -> torch.Tensor:
    """The states of the masks of a block after five tokens."""
    tokens = torch.tensor([[asked["tokens"][0, 5], *[mask] * (block - 1)]])
    position = torch.arange(5 + block)[None]
    with torch.no_grad():
        states = model.hidden_norm(model.fc(asked["features"][:, :5]))
        angles = model.rotary_emb(states, position)
        x = embedding[tokens]
        for layer in model.layers:
            x = layer(target_hidden=states, hidden_states=x, position_embeddings=angles)
        return model.norm(x)[:, 1:]


def speculators_dflash(asked: dict[str, torch.Tensor]) -> None:
    """The same by the model of ``speculators``, with a vocabulary of its own."""
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.dflash import DFlashSpeculatorConfig
    from speculators.models.dflash.core import DFlashDraftModel
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import Qwen3Config

    torch.manual_seed(2)
    layer = Qwen3Config(**{**SHAPE, "num_hidden_layers": 2}, head_dim=4)
    layer._attn_implementation = "eager"
    config = DFlashSpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=DRAFTED,
        block_size=4,
        aux_hidden_state_layer_ids=[1, 3, 5],
        mask_token_id=39,
        speculators_config=SpeculatorsConfig(
            algorithm="dflash",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    model = DFlashDraftModel(config)
    randomize(model, asked)
    embedding = model.embed_tokens.weight.detach()
    logits = model.lm_head(block_states(model, asked, embedding, 4, 39))
    answers = {"logits": logits, "embedding": embedding}
    write("speculators_dflash", config.to_dict(), model.state_dict(), asked, answers)


def multi_token(asked: dict[str, torch.Tensor]) -> None:
    """A Llama with three blocks, and the logits of three drafted tokens after each prefix."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    torch.manual_seed(1)
    count, layers = 3, 2
    config = LlamaConfig(
        **{**SHAPE, "num_hidden_layers": layers},
        head_dim=4,
        num_mtp_layers=count,
        attn_implementation="eager",
    )
    target = LlamaForCausalLM(config)
    blocks = MtpModel(target, count)
    randomize(target, {})
    randomize(blocks, {})  # and the target's embedding and projection again
    tokens, logits, drafted = asked["tokens"], [], []
    for size in range(3, tokens.shape[1]):
        seen = tokens[:, :size]
        with torch.no_grad():
            states = target(seen, output_hidden_states=True).hidden_states[-1]
            found = blocks(
                tokens[:, 1 : size + 1],
                states,
                None,
                torch.arange(1, size + 1)[None],
                MtpCache(config=config.get_mtp_config()),
            )
        drafted.append(found[0])
        logits.append(found[1])
    tensors = dict(target.state_dict())
    for name, value in blocks.state_dict().items():
        _, *rest = name.partition("layers.")
        if rest[0]:
            number, _, name = rest[1].partition(".")
            name = name.removeprefix("mtp_block.").replace("post_norm", "shared_head.norm")
            tensors[f"model.layers.{layers + int(number)}.{name}"] = value
    written = {**SHAPE, "num_hidden_layers": layers, "head_dim": 4, "model_type": "llama"}
    written |= {"num_nextn_predict_layers": count, "tie_word_embeddings": False}
    answers = {"logits": torch.cat(logits), "drafted": torch.cat(drafted)}
    write("multi_token", written, tensors, asked, answers)


def assistants(asked: dict[str, torch.Tensor]) -> None:
    """Logits of three drafted tokens after each prefix, for the target in ``fixtures/gemma4``.

    The classes of transformers refuse that all layers read the keys of another model.
    """
    from transformers import (
        Gemma4AssistantConfig,
        Gemma4AssistantForCausalLM,
        Gemma4ForCausalLM,
        Gemma4TextConfig,
        GenerationConfig,
    )
    from transformers.generation import candidate_generator

    torch.manual_seed(3)
    Gemma4TextConfig.kv_sharing_modes = property(lambda self: sharing(self))
    options = {"dtype": "float32", "attn_implementation": "eager"}
    target = Gemma4ForCausalLM.from_pretrained(HEADS.parent / "fixtures" / "gemma4", **options)
    own = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2}
    own |= {"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    own |= {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
    own |= {"use_double_wide_mlp": False, "attn_implementation": "eager"}
    dropped = ("_name_or_path", "architectures", "dtype", "per_layer_config")
    shared = {k: v for k, v in target.config.to_dict().items() if k not in dropped}
    shared |= {"global_head_dim": 8, "num_global_key_value_heads": 1}
    tokens = torch.randint(SHAPE["vocab_size"], (1, 12))
    for name, groups in (("gemma4_assistant", {}), ("gemma4_ordered", {"num_centroids": 8})):
        groups |= {"use_ordered_embeddings": bool(groups), "centroid_intermediate_top_k": 3}
        config = Gemma4AssistantConfig(
            text_config=Gemma4TextConfig(**shared | own),
            backbone_hidden_size=target.config.hidden_size,
            **groups,
        )
        model = Gemma4AssistantForCausalLM(config)
        randomize(model, {})
        for layer in model.model.layers:
            layer.layer_scalar.fill_(0.8)
        if model.masked_embedding is not None:
            model.masked_embedding.token_ordering = torch.randperm(SHAPE["vocab_size"])
        model.generation_config.num_assistant_tokens = 3
        logits, drafted = [], []
        for size in range(1, tokens.shape[1]):
            generator = candidate_generator.SinglePositionMultiTokenCandidateGenerator(
                model, target.get_input_embeddings(), GenerationConfig(max_length=64)
            )
            given = generator.model_kwargs_overrides
            with torch.no_grad():
                outputs = target(tokens[:, :size], use_cache=False, **given)
            after = tokens[:, : size + 1]
            ids, found = generator.get_candidates(after, {}, outputs, False, 0)
            drafted.append(ids[:, size + 1 :])
            logits.append(found)
        answers = {"logits": torch.cat(logits), "drafted": torch.cat(drafted)}
        given = {"tokens": tokens, "features": torch.zeros(0)}
        tensors = {k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}
        write(name, config.to_dict(), tensors, given, answers)


def sharing(config: object) -> list:
    """The modes of the layers, where layers that read keys may all be of another model."""
    first = config.num_hidden_layers - config.num_kv_shared_layers
    kinds = config.layer_types[:first]
    last = {first - 1 - kinds[::-1].index(kind) for kind in set(kinds)}
    modes = ["store" if i in last else None for i in range(first)]
    return modes + ["reuse"] * config.num_kv_shared_layers


if __name__ == "__main__":
    main()
