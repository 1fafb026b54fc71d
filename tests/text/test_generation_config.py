"""``GenerationConfig``: its files, the strategies it chooses, and what it refuses."""

import json
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest
from networks import drawn
from text_fakes import TABLE, Digits
from words import Words

import decoding_jax
from decoding_jax import Constraints, GenerationConfig, Stop, fields, transforms
from decoding_jax.loop import forms
from decoding_jax.models import T5, T5Config, guided
from decoding_jax.strategies.speculative import Heuristic, ModelDrafter, PromptLookup
from decoding_jax.text.generation_config import PARAMETERS, choose
from decoding_jax.text.generation_config.processors import AtLeast, normalized

KEY = jax.random.key(0)
DOCS = Path(__file__).parents[2] / "docs" / "generation_config.md"
TEXTS = ["12", "345"]
TINY_T5 = drawn(T5, T5Config(40, 8, 1, 8, 8, 1, 1, dtype="float32"))


def chosen(lengths=(5,), eos_ids=(1,), model=None, drafter=None, **values):
    return choose(GenerationConfig(**values), model, eos_ids, lengths, drafter=drafter)


def test_a_file_is_read_whole_and_written_back(tmp_path):
    values = {"num_beams": 4, "eos_token_id": [1, 2], "temperature": 0.5, "use_cache": True}
    (tmp_path / "generation_config.json").write_text(json.dumps({**values, "top_p": None}))
    config = GenerationConfig.load(tmp_path)
    assert dict(config.values) == values
    assert repr(config).startswith("GenerationConfig(num_beams=4, eos_token_id=[1, 2]")
    config.replace(num_beams=None).save(tmp_path / "new", "greedy")
    config.save(tmp_path / "new", "beams.json")
    assert GenerationConfig.load(tmp_path / "new", "beams") == config
    assert GenerationConfig.load(tmp_path / "new", "greedy").num_beams == 1
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_config_does_not_change():
    config = GenerationConfig(num_beams=2)
    with pytest.raises(AttributeError, match="num_beams: a GenerationConfig does not change"):
        config.num_beams = 3
    with pytest.raises(AttributeError, match="beams: GenerationConfig has no such parameter"):
        _ = config.beams


@pytest.mark.parametrize(
    ("values", "strategy", "settings"),
    [
        ({}, "greedy", {}),
        ({"do_sample": True}, "sample", {"num_samples": 1}),
        ({"do_sample": True, "num_return_sequences": 3}, "sample", {"num_samples": 3}),
        ({"num_beams": 3}, "beam_search", {"beam_size": 3, "num_return": 1, "length_penalty": 1.0}),
        ({"num_beams": 3, "do_sample": True}, "beam_sample", {"beam_size": 3}),
        (
            {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.3},
            "diverse_beam_search",
            {"beam_size": 4, "num_groups": 2, "diversity_penalty": 0.3},
        ),
        (
            {"penalty_alpha": 0.6, "top_k": 4},
            "contrastive_search",
            {"penalty_alpha": 0.6, "top_k": 4},
        ),
        ({"num_beams": 2, "force_words_ids": [[3]]}, "constrained_beam_search", {"beam_size": 2}),
        (
            {"prompt_lookup_num_tokens": 6},
            "speculative_sample",
            {"num_draft_tokens": 6, "verifier": "greedy", "num_samples": 1},
        ),
        (
            {"prompt_lookup_num_tokens": 6, "do_sample": True, "num_return_sequences": 2},
            "speculative_sample",
            {"num_draft_tokens": 6, "verifier": "token", "num_samples": 2},
        ),
    ],
)
def test_the_flags_choose_the_strategy(values, strategy, settings):
    choice = chosen(**values).strategy
    assert forms.name_of(choice) == strategy
    for name, value in settings.items():
        want = fields.checked(type(choice).__dataclass_fields__[name], value)
        jax.tree.map(np.testing.assert_array_equal, getattr(choice, name), want)


def test_a_draft_model_is_assisted_decoding():
    choice = chosen(drafter=TABLE)
    assert forms.name_of(choice.strategy) == "speculative_sample"
    assert choice.drafter == ModelDrafter(TABLE, min_confidence=0.4)
    assert chosen(drafter=TABLE, assistant_confidence_threshold=0.0).drafter == TABLE
    assert choice.strategy.num_draft_tokens == 20
    values = {"num_assistant_tokens": 4, "num_assistant_tokens_schedule": "heuristic"}
    heuristic = chosen(drafter=TABLE, **values).strategy.num_draft_tokens
    assert heuristic == Heuristic(max_draft_tokens=None, first=4)
    lookup = chosen(prompt_lookup_num_tokens=3, max_matching_ngram_size=4).drafter
    assert lookup == PromptLookup(4)
    t5 = drawn(T5, T5Config(40, 8, 1, 8, 8, 1, 2, dtype="float32"))
    early = chosen(model=t5, assistant_early_exit=1).drafter.model
    assert early.config.num_decoder_layers == 1


def test_forced_words_are_phrases_and_alternatives():
    given = [[3, 4], [[5], [6, 7]]]
    constraints = chosen(num_beams=2, force_words_ids=given).strategy.constraints
    want = Constraints(((3, 4),), (((5,), (6, 7)),))
    jax.tree.map(np.testing.assert_array_equal, constraints, want)
    same = chosen(num_beams=2, constraints=want).strategy.constraints
    assert same is want


def test_lengths_count_each_prompt():
    choice = chosen(lengths=(5, 8), max_length=12, min_length=9).strategy
    assert choice.max_new_tokens == 7
    np.testing.assert_array_equal(choice.stop.max_new_tokens, [7, 4])
    np.testing.assert_array_equal(choice.transform.min_new_tokens, [4, 1])
    assert chosen().strategy.max_new_tokens == 20
    assert chosen(lengths=(5, 8), model=TINY_T5, max_length=12).strategy.max_new_tokens == 11


def test_transforms_come_in_the_order_of_transformers():
    own = transforms.presence_penalty(0.5)
    config = GenerationConfig(
        do_sample=True,
        top_p=0.9,
        temperature=0.5,
        repetition_penalty=1.2,
        bad_words_ids=[[3]],
        min_new_tokens=2,
        suppress_tokens=[4],
        renormalize_logits=True,
    )
    made = choose(config, None, (1,), [5], transform=own).strategy.transform.transforms
    names = [type(t).__name__ for t in made]
    bans = ["RepetitionPenalty", "BannedSequences", "MinLength", "BannedSequences"]
    assert names == [*bans, "PresencePenalty", "Temperature", "TopK", "TopP", "Partial"]
    assert made[-1].func is normalized
    beams = choose(config.replace(num_beams=2), None, (1,), [5]).strategy.transform.transforms
    assert isinstance(beams[-2], AtLeast)
    assert beams[-2].count == 2


@pytest.mark.exhaustive
def test_generate_and_stream_take_parameters_or_a_config():
    by_name = decoding_jax.generate(
        TABLE, Digits(), TEXTS, strategy="sample", num_samples=2, max_new_tokens=4, key=KEY
    )
    flags = {"do_sample": True, "top_k": 0, "num_return_sequences": 2}
    by_flags = decoding_jax.generate(TABLE, Digits(), TEXTS, key=KEY, max_new_tokens=4, **flags)
    config = GenerationConfig(max_new_tokens=9, **flags)
    by_config = decoding_jax.generate(
        TABLE, Digits(), TEXTS, key=KEY, config=config, max_new_tokens=4
    )
    *_, streamed = decoding_jax.stream(
        TABLE, Digits(), TEXTS, key=KEY, config=config.replace(max_new_tokens=4)
    )
    want = [[c.tokens for c in row] for row in by_name]
    for rows in (by_flags, by_config, streamed):
        assert [[c.tokens for c in row] for row in rows] == want


@pytest.mark.exhaustive
def test_guidance_is_that_of_a_guided_model():
    want = decoding_jax.generate(guided(TABLE, 1.5), Digits(), TEXTS, max_new_tokens=4)
    got = decoding_jax.generate(TABLE, Digits(), TEXTS, guidance_scale=1.5, max_new_tokens=4)
    assert [[c.tokens for c in row] for row in got] == [[c.tokens for c in row] for row in want]
    assert chosen(model=TABLE, guidance_scale=1).model is TABLE


def test_the_end_tokens_are_the_configs_or_else_the_tokenizers():
    assert chosen(eos_ids=(3,)).strategy.stop.eos_ids.tolist() == [3]
    assert chosen(eos_ids=(3,), eos_token_id=5).strategy.stop.eos_ids.tolist() == [5]
    assert chosen(eos_token_id=[5, 6]).strategy.stop.eos_ids.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"temperature": 0.5, "top_p": 0.9},
            "temperature=0.5, top_p=0.9: no effect with do_sample",
        ),
        ({"length_penalty": 2.0}, "length_penalty=2.0: no effect with num_beams=1"),
        (
            {"num_beams": 2, "penalty_alpha": 0.6},
            "penalty_alpha=0.6: no effect with sampling, beam",
        ),
        ({"num_beams": 2, "diversity_penalty": 1.0}, "diversity_penalty=1.0: no effect with num_b"),
    ],
)
def test_what_has_no_effect_is_said(values, message):
    with pytest.warns(UserWarning, match=message):
        chosen(**values)


REFUSED = {name: parameter for name, parameter in PARAMETERS.items() if parameter.use == "refused"}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused(name):
    parameter = REFUSED[name]
    for value in (parameter.default, *parameter.harmless):
        chosen(**{name: value})
    with pytest.raises(ValueError, match=rf"^{name}: expected none, got 0.75: ") as error:
        chosen(**{name: 0.75})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: GenerationConfig(num_beam=3),
            "num_beam: expected a parameter of GenerationConfig, got 3; num_beams is near",
        ),
        (lambda: GenerationConfig(num_beams=0), "num_beams: expected an int of 1 or more, got 0"),
        (lambda: GenerationConfig(top_k=-1), "top_k: expected an int of 0 or more, got -1"),
        (
            lambda: GenerationConfig(penalty_alpha=2),
            "penalty_alpha: expected a number from 0 to 1, got 2",
        ),
        (lambda: GenerationConfig(do_sample=1), "do_sample: expected True or False, got 1"),
        (lambda: GenerationConfig(early_stopping="now"), "early_stopping: expected True, F"),
        (
            lambda: GenerationConfig(num_assistant_tokens_schedule="x"),
            "num_assistant_tokens_schedule: expected one of constant, heuristic,",
        ),
        (lambda: chosen(num_return_sequences=2), "num_return_sequences: expected 1 with num_beams"),
        (
            lambda: chosen(num_beams=2, num_return_sequences=3),
            "num_return_sequences: expected 1 to num_beams, which is 2, got 3",
        ),
        (
            lambda: chosen(num_beams=3, num_beam_groups=2),
            "num_beam_groups: expected a divisor of n",
        ),
        (lambda: chosen(num_beams=2, drafter=TABLE), "drafter: expected greedy decoding or s"),
        (
            lambda: chosen(prompt_lookup_num_tokens=2, drafter=TABLE),
            "drafter: expected none with prompt_lookup_num_tokens",
        ),
        (lambda: chosen(model=TABLE, assistant_early_exit=1), "assistant_early_exit: expected a "),
        (lambda: chosen(max_length=5), "max_length: expected more than the 5 tokens of the"),
        (
            lambda: chosen(sequence_bias=[[[1, 2], 1.0]]),
            "sequence_bias: expected sequences of one token, got (1, 2)",
        ),
        (lambda: chosen(forced_eos_token_id=[1, 2]), "forced_eos_token_id: expected one token"),
        (
            lambda: chosen(do_sample=True, num_beams=2, typical_p=0.5),
            "typical_p: expected 1.0 with num_beams=2, got 0.5",
        ),
        (
            lambda: chosen(do_sample=True, num_beams=2, force_words_ids=[[1]]),
            "force_words_ids: expected plain beams, got sampling or groups",
        ),
        (
            lambda: GenerationConfig(guidance_scale="much"),
            "guidance_scale: expected a finite number, got 'much'",
        ),
        (
            lambda: chosen(model=TABLE, num_beams=2, guidance_scale=3),
            "guidance_scale: expected none with beams, whose scores in transformers are then",
        ),
        (
            lambda: chosen(model=TINY_T5, guidance_scale=3),
            "guidance_scale: expected a decoder-only",
        ),
        (lambda: chosen(num_beams=2, constraints=[1]), "constraints: expected a Constraints, "),
        (lambda: generate(config="greedy"), "config: expected a GenerationConfig, such"),
        (
            lambda: generate(config=GenerationConfig(), strategy="greedy"),
            "strategy: expected None beside a config, got 'greedy'",
        ),
        (lambda: generate(num_beams=2, stop=Stop()), "stop: expected None beside parameters of"),
        (lambda: generate(do_sample=True), "key: expected a typed key such as jax.random.k"),
        (lambda: generate(num_beams=2, num_sample=3), "num_sample: expected a parameter of Gener"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_parameter(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def generate(**settings):
    return decoding_jax.generate(TABLE, Words(0), ["1 2"], **settings)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ("{", "broken JSON"),
        ("[]", "expected a JSON object, got a list"),
        ('{"num_beams": true}', "num_beams: expected an int of 1 or more, got True"),
    ],
)
def test_a_broken_file_is_named(text, message, tmp_path):
    if text is not None:
        (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ValueError, match=rf"generation_config.json: {message}"):
        GenerationConfig.load(tmp_path)
    constrained = GenerationConfig(constraints=Constraints(((1,),)))
    with pytest.raises(ValueError, match="a parameter has a value that JSON cannot hold"):
        constrained.save(tmp_path)


def test_the_page_has_every_parameter():
    _, table = DOCS.read_text("utf-8").split("## Every parameter")
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    want = [
        f"| `{name}` | {'' if p.default is None else f'`{p.default}`'} | "
        f"{ {'used': '', 'no effect': 'No effect: ', 'refused': 'Refused: '}[p.use] }{p.note} |"
        for name, p in PARAMETERS.items()
    ]
    assert rows == want
