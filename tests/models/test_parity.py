"""Random networks that transformers saves have the same logits after loading."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import exam
import numpy as np
import pytest
import safetensors.torch
import tiers
from examples import DATA, FAMILIES
from families import BART, VOCAB, torch_model, unscaled
from variants import VARIANTS

from decoding_jax.models import Llama, for_long_texts, with_shared_prefix
from decoding_jax.models.checkpoint import load_model, save_model
from decoding_jax.models.checkpoint.directory import Settings
from decoding_jax.models.checkpoint.families import FAMILIES as FAMILY

# transformers and PyTorch raise warnings that do not concern these tests.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def transformers() -> Any:
    import transformers as module

    module.utils.logging.disable_progress_bar()
    return module


LATER = (
    *("gemma2", "gemma3", "gemma4", "gpt_neox", "llama_yarn", "mistral", "qwen3"),
    *("byt5", "llama2", "longt5", *BART, "switch", "t5gemma", "t5gemma2", "umt5"),
)
# Output tables of their own, or none where a relative has one.
TABLES = ("bart_untied", "marian_tied", "umt5_scaled")
# test_fixtures.py compares these families, and all their layers, with what PyTorch gave.
COMPARED = (
    *("t5_1_1", "mt5", "byt5", "umt5", "mbart", "pegasus", "marian", "m2m_100", "gemma2"),
    *("t5gemma", "t5gemma2", "gpt_neox", "llama2", "llama3", "llama_yarn", "smollm", "qwen2"),
    *("mistral", "qwen3"),
    *DATA,
)
EXHAUSTIVE = (
    "gpt2",
    "bart",
    "gemma3",
    "gemma4",
    "gemma4_others",
    "madlad",
    "qwen2_window",
    "qwen3_biased",
)
EVERY = (*FAMILIES, *VARIANTS)


def torch_reference(model: Any, asked: dict[str, np.ndarray]) -> exam.Reference:
    """The logits of transformers along a text, as one row without padding or cache."""
    import torch

    def reference(row: int, tokens: list[int]) -> np.ndarray:
        length = int(asked["length"][row])
        text = torch.tensor([asked["prompt"][row, :length].tolist() + tokens])
        ids = {"input_ids": text}
        if model.config.is_encoder_decoder:
            source = asked["source"][row : row + 1, : asked["source_length"][row]]
            ids = {"input_ids": torch.tensor(source), "decoder_input_ids": text}
        with torch.no_grad():
            return model(**ids, use_cache=False).logits[0, length - 1 :].numpy()

    return reference


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "family",
    tiers.of_table(
        EVERY,
        exhaustive=EXHAUSTIVE,
        release=[
            x
            for x in EVERY
            if x in {*COMPARED, *VARIANTS} - {*EXHAUSTIVE, "falcon_alibi", "bart_untied"}
        ],
    ),
)
def test_logits_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    model = torch_model(family, seed=1)
    model.save_pretrained(tmp_path)
    asked = exam.questions(family, seed=2)
    want = exam.expected(asked, torch_reference(model, asked))
    assert np.std(want["chain"]) > 0.5, "the logits are too similar to distinguish networks"
    loaded = load_model(tmp_path)
    exam.compare(exam.answers(loaded, asked, step=1), want, 1e-4)
    exam.compare(exam.answers(loaded, asked, step=3), want, 1e-4)


@pytest.mark.parametrize(
    "family",
    tiers.of_table(
        EVERY,
        exhaustive=[*LATER, *TABLES, "olmo3", "phi3"],
        # Other settings are written by the tables that read them, and the tensors as they were.
        release=[x for x in (*DATA, *VARIANTS) if x not in (*TABLES, "olmo3", "phi3")],
    ),
)
def test_transformers_reads_saved_models(family: str, tmp_path: Path, transformers: Any) -> None:
    original = torch_model(family, seed=3)
    original.save_pretrained(tmp_path / "original")
    save_model(load_model(tmp_path / "original"), tmp_path / "saved", dtype="bfloat16")
    kind = type(torch_model(family, seed=4))
    kind = transformers.T5ForConditionalGeneration if family == "mt5" else kind
    kind = transformers.AutoModelForCausalLM if family in DATA else kind
    reloaded = kind.from_pretrained(tmp_path / "saved", dtype="float32").eval()
    reloaded = unscaled(reloaded) if family == "umt5" else reloaded
    asked = exam.questions(family, seed=5)
    want = torch_reference(original, asked)(0, [5, 6, 7])
    # The weights are bfloat16 values, so the conversion is exact.
    np.testing.assert_allclose(torch_reference(reloaded, asked)(0, [5, 6, 7]), want, atol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["longt5", "longt5_local"])
def test_inputs_that_end_around_the_borders_of_blocks(family: str, tmp_path: Path) -> None:
    model = torch_model(family, seed=1)
    model.save_pretrained(tmp_path)
    length = np.arange(1, 19, dtype=np.int32)
    source = np.random.default_rng(3).integers(1, VOCAB, (18, 21), dtype=np.int32)
    asked = {
        "source": source,
        "source_length": length,
        "prompt": np.zeros((18, 1), np.int32),
        "length": np.ones(18, np.int32),
    }
    bound = exam.bound(load_model(tmp_path), asked)
    output, _ = exam.prefill(bound, asked["prompt"], asked["length"])
    reference = torch_reference(model, asked)
    want = np.stack([reference(row, [])[0] for row in range(18)])
    np.testing.assert_allclose(output.logits[:, 0, 0], want, atol=1e-4)


@pytest.mark.exhaustive
def test_prompts_longer_than_in_training(tmp_path: Path) -> None:
    """With longrope, transformers rotates all tokens of such a text by the long factors."""
    reference = torch_model("phi3_long", seed=1)
    reference.save_pretrained(tmp_path / "phi3")
    model = load_model(tmp_path / "phi3")
    long = for_long_texts(model)
    assert (model.max_positions, long.max_positions) == (32, 64)
    draw = np.random.default_rng(2)
    asked = {
        "prompt": draw.integers(1, 40, (exam.ROWS, 40), dtype=np.int32),
        "length": np.array([33, 40, 37], np.int32),
    }
    tokens = draw.integers(1, 40, (exam.ROWS, exam.LANES, exam.STEPS), dtype=np.int32)
    output, cache = exam.prefill(long, asked["prompt"], asked["length"])
    block, _ = exam.extend(long, cache, tokens, 0)
    answer = torch_reference(reference, asked)
    for row, lane in np.ndindex(exam.ROWS, exam.LANES):
        want = answer(row, tokens[row, lane].tolist())
        found = np.concatenate([output.logits[row, 0], block.logits[row, lane]])
        np.testing.assert_allclose(found, want, atol=2e-5)
    with pytest.raises(ValueError, match=r"^long_texts: expected False, as before for_long"):
        save_model(long, tmp_path / "long")
    other = Llama(model.params, dataclasses.replace(model.config, rope_scaling=None))
    expected = "^model: expected a Llama whose rope_scaling is longrope, got"
    with pytest.raises(ValueError, match=rf"{expected} None$"):
        for_long_texts(other)
    with pytest.raises(ValueError, match=rf"{expected} a SharedPrefixModel$"):
        for_long_texts(with_shared_prefix(model, [1, 2]))  # type: ignore[arg-type]


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", ["mistral", "ministral3"])
def test_the_text_network_of_a_mistral_that_reads_images(
    text: str, tmp_path: Path, transformers: Any
) -> None:
    name, settings = FAMILIES[text]
    vision = {**settings, "head_dim": 8, "image_size": 4, "patch_size": 2, "model_type": "pixtral"}
    config = transformers.Mistral3Config(
        text_config=getattr(transformers, name)(**settings).to_dict(),
        vision_config={k: x for k, x in vision.items() if "rope" not in k},
        tie_word_embeddings=False,
    )
    model = transformers.Mistral3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path)
    asked = exam.questions(text, seed=2)
    output, _ = exam.prefill(load_model(tmp_path), asked["prompt"], asked["length"])
    reference = torch_reference(model, asked)
    for row in range(exam.ROWS):
        want = reference(row, [])[0]
        np.testing.assert_allclose(output.logits[row, 0, 0], want, atol=2e-5)


def test_experts_in_mxfp4_are_widened(tmp_path: Path, transformers: Any) -> None:
    """The released files of gpt-oss have two floats in a byte, and exponents of groups."""
    import torch
    from transformers.integrations import mxfp4

    name, settings = FAMILIES["gpt_oss"]
    wide = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "layer_types": None}
    config = getattr(transformers, name)(**settings | wide)
    transformers.GptOssForCausalLM(config).bfloat16().save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    values["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    draw, want = torch.Generator().manual_seed(0), {}
    for part, shape in {"gate_up": (4, 128, 1), "down": (4, 32, 2)}.items():
        blocks = torch.randint(256, (*shape, 16), dtype=torch.uint8, generator=draw)
        scales = torch.randint(118, 126, shape, dtype=torch.uint8, generator=draw)
        want[part] = mxfp4.convert_moe_packed_tensors(blocks, scales).float().numpy()
        prefix = f"model.layers.0.mlp.experts.{part}_proj"
        del tensors[prefix]
        tensors |= {f"{prefix}_blocks": blocks, f"{prefix}_scales": scales}
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    model = load_model(tmp_path, dtype="auto")
    found = model.params["layers_0"]["mlp"]
    assert model.config.dtype == "bfloat16"
    both = want["gate_up"]
    for part, kernel in {
        "gate": both[..., ::2],
        "up": both[..., 1::2],
        "down": want["down"],
    }.items():
        np.testing.assert_array_equal(found[f"{part}_experts"]["kernel"].astype("float32"), kernel)


# Settings of training, of generation, and of transformers itself.
OTHERS = (
    *("_name_or_path", "architectures", "chunk_size_feed_forward", "dtype", "id2label"),
    *("init_std", "initializer_range", "is_decoder", "is_encoder_decoder", "label2id"),
    *("layerdrop", "model_type", "output_router_logits", "router_aux_loss_coef"),
    *("router_jitter_noise", "slow_but_exact"),
    *("output_attentions", "output_hidden_states", "pretraining_tp", "problem_type"),
    *("return_dict", "transformers_version", "use_cache"),
)


# Settings that transformers reads only without others, or never.
SUPERSEDED = {
    "cohere2": ["head_dim"],
    "exaone4": ["sliding_window_pattern"],
    "falcon": ["multi_query"],
    "gpt2": [
        *("reorder_and_upcast_attn", "summary_activation", "summary_proj_to_labels"),
        *("summary_type", "summary_use_proj"),
    ],
    "gpt_neo": ["attention_layers"],
    "mpt": ["embedding_fraction", "init_device", "learned_pos_emb", "norm_type"],
    "phi3": ["original_max_position_embeddings"],
    "qwen2_moe": ["intermediate_size"],
    "qwen3_moe": ["intermediate_size", "sliding_window"],
}


class Recorded(dict):
    """Settings that remember which of them were asked for."""

    asked: set[str]

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)


@pytest.mark.parametrize("are_null", [False, True])
def test_heads_that_a_file_does_not_count(are_null: bool, transformers: Any) -> None:
    """Absent or null, they are those of ``transformers``, where it has any."""
    from huggingface_hub.errors import StrictDataclassError

    found = 0
    for name in FAMILIES.keys() & FAMILY.keys():
        kind, changes = FAMILIES[name]
        keys = {"num_key_value_heads", "head_dim"} & FAMILY[name].keys.keys()
        changes = {key: value for key, value in changes.items() if key not in keys}
        nulls = dict.fromkeys(keys) if are_null else {}
        with contextlib.suppress(StrictDataclassError):  # it takes no null
            config = getattr(transformers, kind)(**changes | nulls)
            values = {key: value for key, value in config.to_dict().items() if key in changes}
            settings = Settings(Path("config.json"), values | nulls)
            for key in keys:
                want = getattr(config, key, None)
                assert want in (None, FAMILY[name].keys[key].read(settings, key)), (name, key)
                found += want is not None
    assert found > 10


@pytest.mark.parametrize("family", [*DATA, "gpt2"])
def test_every_setting_is_followed_or_refused(family: str, transformers: Any) -> None:
    kind, changes = FAMILIES[family]
    values = Recorded(getattr(transformers, kind)(**changes).to_dict())
    values.asked = set()
    FAMILY[values["model_type"]].fields_of(Settings(Path("config.json"), values))
    unread = {key for key in values if not key.endswith(("dropout", "pdrop", "token_id"))}
    assert not unread - values.asked - set(OTHERS) - set(SUPERSEDED.get(family, ()))
