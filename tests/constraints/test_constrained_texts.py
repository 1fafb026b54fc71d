"""Constrained texts through strategies, ``generate``, streams, the batch job and the shell."""

import dataclasses
import functools
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import jsonschema
import languages
import numpy as np
import pytest
from languages import NESTED, PERSON, SCHEMAS, Pieces
from networks import drawn, fixture

import decoding_jax
import gin
from decoding_jax import Prompt, Stop, constraints, infer, strategies, transforms
from decoding_jax.models import GPT2, GPT2Config, Llama
from decoding_jax.shell import command
from decoding_jax.strategies.speculative.drafters.base import Path as TextsBefore
from decoding_jax.testing import TableLM, chi_square, log_probs
from decoding_jax.text import ByteTokenizer, chat, inputs, response_formats
from decoding_jax.text.stop_strings import check_constraint

# Seven texts, among them an empty one and parts of "é"; token 7 ends a text.
TOKENIZER = Pieces(["a", "b", "ab", b"\xc3", b"\xa9", "é", ""])
PATTERN = "(ab|é){1,2}b?|a"
TEXTS = ByteTokenizer()
MODEL = TableLM.random(jax.random.key(3), 8)
PROMPT = Prompt(jnp.array([[1, 2, 3], [4, 0, 0]], jnp.int32), jnp.array([3, 1]))
CONSTRAINT = constraints.regex(PATTERN, TOKENIZER)
SETTINGS = {"max_new_tokens": 7, "stop": Stop(eos_ids=(7,))}


def continuations(text):
    """The tokens after which a text matches, or is the beginning of one that does."""
    texts = {"".join(parts) + end for n in (1, 2) for parts in PARTS[n] for end in ("", "b")}
    whole = {text.encode() for text in texts} | {b"a"}
    before = b"".join(TOKENIZER.texts[i] for i in text)
    found = {
        i
        for i, piece in enumerate(TOKENIZER.texts)
        if piece and any(x.startswith(before + piece) for x in whole)
    }
    return found | ({7} if before in whole else set())


PARTS = {1: [("ab",), ("é",)], 2: [(x, y) for x in ("ab", "é") for y in ("ab", "é")]}


def masked(row):
    """The sequences of tokens, with end tokens, and their masked log-probabilities."""
    start, found = PROMPT.tokens[row, : PROMPT.length[row]].tolist(), {}

    def extend(text, total):
        if text[-1:] == (7,):
            found[text] = total
            return
        distribution, allowed = log_probs(MODEL, [*start, *text]), sorted(continuations(text))
        normaliser = np.logaddexp.reduce(distribution[allowed])
        for token in allowed:
            extend((*text, token), total + distribution[token] - normaliser)

    extend((), 0.0)
    return found


def test_samples_follow_the_masked_distribution():
    """2,048 draws of each prompt. Chi-square at level 1e-3 for both."""
    prompt = Prompt(jnp.tile(PROMPT.tokens, (256, 1)), jnp.tile(PROMPT.length, 256))
    output = decoding_jax.sample(
        MODEL, prompt, jax.random.key(2), num_samples=8, transform=CONSTRAINT, **SETTINGS
    )
    tokens, length = np.asarray(output.tokens), np.asarray(output.length)
    assert output.finished.all()
    for row in range(2):
        known = masked(row)
        number = {text: i for i, text in enumerate(known)}
        counts = np.zeros(len(known), int)
        for b in range(row, 512, 2):
            for lane in range(8):
                counts[number[tuple(tokens[b, lane, : length[b, lane]].tolist())]] += 1
        assert np.exp(list(known.values())).sum() == pytest.approx(1)
        assert chi_square(counts, np.exp(list(known.values()))).p_value > 1e-3 / 2


def dense(constraint):
    """The automaton of the same language whose classes have a token each."""
    table, token_class = languages.tables(constraint)
    made = transforms.CompressedAutomaton.of_classes(table[:, token_class], np.arange(8))
    return transforms.prefix_allowed_tokens(made)


SPECULATIVE = {"drafter": TableLM.random(jax.random.key(8), 8), "num_draft_tokens": 3}
STRATEGIES = {
    "greedy": strategies.Greedy(**SETTINGS),
    "sample": strategies.Sample(num_samples=3, **SETTINGS),
    "arithmetic_sample": strategies.ArithmeticSample(num_samples=3, **SETTINGS),
    "beam_search": strategies.BeamSearch(beam_size=3, **SETTINGS),
    "stochastic_beam_search": strategies.StochasticBeamSearch(beam_size=3, **SETTINGS),
    "best_k_search": strategies.BestKSearch(k=2, budget=12, **SETTINGS),
    "contrastive_search": strategies.ContrastiveSearch(penalty_alpha=0.5, top_k=3, **SETTINGS),
    "speculative_sample": strategies.SpeculativeSample(**SPECULATIVE, **SETTINGS),
    "a tree of drafts": strategies.SpeculativeSample(num_drafts=2, **SPECULATIVE, **SETTINGS),
}


def test_forced_tokens_are_those_without_a_choice(monkeypatch):
    """Of "abcd", "ab" and "a" are only beginnings; nothing is proposed where texts differ."""
    tokenizer = Pieces(["a", "b", "ab", "abc", "c", "d", "cd"])
    flat = constraints.regex("abcd(a|bb)", tokenizer)
    monkeypatch.setattr("decoding_jax.constraints.made._MOST_UNROLLED", 0)
    nested = constraints.grammar('start: "a" start "b" | "cd"', tokenizer, max_depth=3)
    for constraint, texts in (
        (flat, {(): [3, 5, -1, -1], (3, 5): [-1] * 4, (3, 5, 1): [1, 7, -1, -1], (4,): [-1] * 4}),
        (nested, {(): [-1] * 4, (0, 0): [6, 1, 1, 7], (0, 6): [1, 7, -1, -1]}),
    ):
        tokens = np.zeros((1, len(texts), 4), np.int32)
        for row, text in zip(tokens[0], texts, strict=True):
            row[: len(text)] = text
        length = np.array([[len(text) for text in texts]], np.int32)
        path = TextsBefore(
            Prompt(*map(jnp.asarray, ([[1]], [1]))), jnp.array(tokens), jnp.array(length)
        )
        guess = jax.jit(constraints.forced(constraint, tokenizer).guess, static_argnums=2)
        np.testing.assert_array_equal(guess((), path, 4)[0], [*texts.values()])
    with pytest.raises(
        ValueError, match="constraint: expected one that was made for the tokenizer"
    ):
        constraints.forced(flat, TOKENIZER)


@pytest.mark.exhaustive
def test_forced_tokens_make_speculation_faster_and_change_nothing():
    drafter = constraints.forced(CONSTRAINT, TOKENIZER)
    want = decoding_jax.greedy(MODEL, PROMPT, transform=CONSTRAINT, **SETTINGS)
    got = decoding_jax.speculative_sample(
        MODEL,
        drafter,
        PROMPT,
        jax.random.key(0),
        verifier="greedy",
        num_draft_tokens=3,
        transform=CONSTRAINT,
        **SETTINGS,
    )
    np.testing.assert_array_equal(got.tokens, want.tokens)
    assert got.info.accepted.sum() > 0
    assert got.info.target_calls < want.length.max()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("greedy", "beam_search")
        else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in STRATEGIES
    ],
)
def test_every_strategy_keeps_to_the_language(name):
    """Its texts match, and are those of an automaton with a column for each token, in bits."""
    strategy = STRATEGIES[name]
    key = [jax.random.key(1)] if strategy.draws else []
    both = [
        dataclasses.replace(strategy, transform=made)(MODEL, PROMPT, *key)
        for made in (CONSTRAINT, dense(CONSTRAINT))
    ]
    for one, other in zip(*(jax.tree.leaves(output[:5]) for output in both), strict=True):
        np.testing.assert_array_equal(one, other)
    output = both[0]
    exists = np.asarray(output.score) > -np.inf
    assert exists.any(1).all()
    for b, n in zip(*np.nonzero(exists & np.asarray(output.finished)), strict=True):
        text = TOKENIZER.decode(np.asarray(output.tokens[b, n, : output.length[b, n]]))
        assert re.fullmatch(PATTERN, text)
    assert np.asarray(output.finished)[exists].any()


@pytest.mark.exhaustive
def test_a_constraint_for_each_row_and_no_second_compilation():
    other = constraints.choice(["é", "ba", "bbb"], TOKENIZER)
    program = jax.jit(
        lambda transform: strategies.greedy(MODEL, PROMPT, transform=transform, **SETTINGS)
    )
    rows = program(constraints.by_row([CONSTRAINT, other]))
    swapped = program(constraints.by_row([other, CONSTRAINT]))
    third = constraints.regex("(b|é){1,2}a?|ab", TOKENIZER)
    third = program(constraints.by_row([third, CONSTRAINT]))
    assert program._cache_size() == 1
    for b, made in enumerate([CONSTRAINT, other]):
        alone = program(made)
        for one, whole in zip(jax.tree.leaves(alone[:5]), jax.tree.leaves(rows[:5]), strict=True):
            np.testing.assert_array_equal(one[b], whole[b])
        np.testing.assert_array_equal(program(made).tokens[1 - b], swapped.tokens[1 - b])
    [text] = third.tokens[0].tolist()
    assert re.fullmatch("(b|é){1,2}a?|ab", TOKENIZER.decode(text[: third.length[0, 0]]))


@functools.cache
def networks():
    """The embedded model of code, and a random network and mixture with the tokens of bytes."""
    code = decoding_jax.load("python-code-draft-wide")
    config = GPT2Config(
        vocab_size=272, emb_dim=16, num_heads=2, num_layers=1, mlp_dim=32, max_positions=256
    )
    mixture = dataclasses.replace(fixture("qwen3_moe").config, vocab_size=272, max_positions=256)
    drawn_ones = {"random": drawn(GPT2, config, spread=0.3), "mixture": drawn(Llama, mixture)}
    return {"python-code": code, **{name: (model, TEXTS) for name, model in drawn_ones.items()}}


def check(schema, text):
    validator = jsonschema.Draft202012Validator
    validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(text))


@pytest.mark.parametrize(
    ("network", "count"),
    [
        pytest.param("random", 3, marks=pytest.mark.exhaustive),
        pytest.param("mixture", 3, marks=pytest.mark.release),
        pytest.param("random", 500, marks=pytest.mark.release),
        pytest.param("python-code", 20, marks=pytest.mark.exhaustive),
        pytest.param("python-code", 500, marks=pytest.mark.release),
    ],
)
def test_finished_texts_are_valid(network, count):
    """Another schema for each text of a call: 30 texts of ten, or 300 or 7,500 of 15."""
    model, tokenizer = networks()[network]
    given = SCHEMAS if count < 10 else {**SCHEMAS, **NESTED}
    names = [name for name in given for _ in range(count)]
    made = {
        name: constraints.json_schema(schema, tokenizer, max_depth=3 if name in NESTED else None)
        for name, schema in given.items()
    }
    rows = decoding_jax.generate(
        model,
        tokenizer,
        ["x = "] * len(names),
        strategy="sample",
        key=jax.random.key(0),
        transform=constraints.by_row([made[name] for name in names]),
        max_new_tokens=48,
    )
    finished = [(n, c.text) for n, row in zip(names, rows, strict=True) for c in row if c.finished]
    for name, text in finished:
        check(given[name], text)
    assert len(finished) > len(names) / 4


@pytest.mark.release
def test_first_words_of_translations_have_no_space():
    """The text of an encoder-decoder begins; that of a decoder continues its prompt."""
    model, tokenizer = decoding_jax.load("translation-en-fr-draft")
    made = constraints.regex("(Le|La) [a-z]{2,4}", tokenizer)
    key = jax.random.key(0)
    [texts] = decoding_jax.generate(
        model, tokenizer, ["The cat."], strategy="sample", num_samples=4, key=key, transform=made
    )
    for text in texts:
        assert text.finished
        assert re.fullmatch("(Le|La) [a-z]{2,4}", text.text)
    assert made.first is not None
    tokenizer = languages.byte_fallback()
    config = GPT2Config(
        vocab_size=tokenizer.vocab_size, emb_dim=8, num_heads=1, num_layers=1, mlp_dim=8
    )
    model = drawn(GPT2, config, spread=0)
    for strict in ("true", " true"):
        made = constraints.choice([strict], tokenizer)
        [[text]] = decoding_jax.generate(model, tokenizer, ["is it"], transform=made)
        assert text.text == strict


@pytest.mark.release
def test_a_stream_gives_what_generate_gives_and_marks_a_cut():
    model, tokenizer = networks()["random"]
    settings = {"transform": constraints.json_schema(PERSON, tokenizer), "strategy": "sample"}
    settings["key"] = jax.random.key(1)
    for length in (4, 48):
        [[want]] = decoding_jax.generate(model, tokenizer, ["x"], max_new_tokens=length, **settings)
        *_, [last] = decoding_jax.stream(model, tokenizer, ["x"], max_new_tokens=length, **settings)
        assert (last[0].text, last[0].finished) == (want.text, want.finished)
        assert want.finished == (length == 48)


def job(**options):
    """The records of a batch job of six inputs."""
    made = []
    strategy = functools.partial(
        decoding_jax.sample, max_new_tokens=48, transform=transforms.temperature(0.8)
    )
    items = [infer.Item(f"x{i}") for i in range(6)]
    options = {"batch_size": 2, "max_input_length": 16, **options}
    infer.run(networks()["random"], items, strategy, report=made.append, **options)
    return made


FOREIGN = {
    "other texts": Pieces(["b", "a", "ab", b"\xc3", b"\xa9", "é", ""]),
    "fewer tokens": Pieces(["a", "b", "c"]),
    "more tokens": Pieces(["a", "b", "ab", b"\xc3", b"\xa9", "é", "", "c"]),
}
DOORS = {
    "generate": lambda transform: decoding_jax.generate(
        MODEL, TOKENIZER, ["a"], transform=transform, max_new_tokens=4
    ),
    "chain": lambda transform: decoding_jax.generate(
        MODEL, TOKENIZER, ["a"], transform=transforms.chain(transform), max_new_tokens=4
    ),
    "language": lambda transform: decoding_jax.generate(
        MODEL,
        TOKENIZER,
        ["a"],
        strategy="conditional_sample",
        language=transform,
        key=jax.random.key(0),
        max_new_tokens=4,
    ),
    "stream": lambda transform: list(
        decoding_jax.stream(MODEL, TOKENIZER, ["a"], transform=transform, max_new_tokens=4)
    ),
    "stream_text": lambda transform: list(
        decoding_jax.stream_text(MODEL, TOKENIZER, ["a"], transform=transform, max_new_tokens=4)
    ),
    "batches": lambda transform: infer.BatchDecoder(
        (MODEL, TOKENIZER),
        functools.partial(decoding_jax.greedy, transform=transform, max_new_tokens=4),
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_a_constraint_for_another_tokenizer_gets_one_line(door):
    for foreign in FOREIGN.values():
        with pytest.raises(
            ValueError, match="expected a constraint that was made for the tok"
        ) as e:
            DOORS[door](constraints.choice(["ab"], foreign))
        assert "\n" not in str(e.value)


def test_a_constraint_fits_a_tokenizer_with_the_same_texts_and_a_larger_table():
    """The tokenizer is made again, and the model's table is padded beyond its tokens."""
    model, again = TableLM.random(jax.random.key(3), 11), Pieces(TOKENIZER.texts)
    made = constraints.choice(["abab"], TOKENIZER)
    ((found,),) = decoding_jax.generate(
        model, again, ["a"], transform=made, max_new_tokens=6, with_scores=False
    )
    assert found.text == "abab"
    assert constraints.by_row([made, CONSTRAINT]).digest == made.digest
    # A tokenizer that does not say what its tokens add may be the same one.
    silent = dataclasses.make_dataclass("Silent", ["eos_ids"], frozen=True)((7,))
    check_constraint("transform", made, silent, 8)
    with pytest.raises(ValueError, match="got one for other texts of 8 tokens"):
        check_constraint("transform", made, silent, 11)


@pytest.mark.release
def test_the_batch_job_reads_a_schema(tmp_path):
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    found = job(json_schema=str(tmp_path / "person.json"))
    outputs = [record["outputs"][0] for record in found]
    for output in outputs:
        assert ("parsed" in output) == output["finished"]
        if output["finished"]:
            check(PERSON, output["text"])
            assert output["parsed"] == json.loads(output["text"])
    assert sum(output["finished"] for output in outputs) > 1
    with pytest.raises(ValueError, match="regex: expected none beside json_schema, got"):
        job(json_schema=PERSON, regex="a")
    (tmp_path / "person.json").write_text("{")
    with pytest.raises(ValueError, match="json_schema: expected a schema as JSON, got Expecting"):
        job(json_schema=str(tmp_path / "person.json"))
    with pytest.raises(ValueError, match="json_schema: expected a schema as JSON, got Object of"):
        job(json_schema={"const": object()})


class Answer:
    """A class as those of pydantic, whose validator refuses what its schema allows."""

    @classmethod
    def model_json_schema(cls):
        return {"enum": ["yes", "no"]}

    @classmethod
    def model_validate_json(cls, text):
        if json.loads(text) == "no":
            raise ValueError(text)
        return cls()


def test_response_formats_are_constraints_and_completions_have_values():
    model, tokenizer = networks()["random"]
    rows = decoding_jax.generate(
        *(model, tokenizer, ["x"] * 8),
        strategy="sample",
        key=jax.random.key(1),
        response_format=Answer,
        max_new_tokens=8,
    )
    assert {row[0].text for row in rows if row[0].finished} == {'"yes"', '"no"'}
    for [one] in rows:
        assert isinstance(one.parsed, Answer) == (one.finished and one.text == '"yes"')


def test_response_formats_are_those_of_clients():
    schema = {"enum": [1, "é"]}
    wrapped = {
        "type": "json_schema",
        "json_schema": {"name": "a", "strict": True, "schema": schema},
    }
    made = [response_formats.of(asked, TEXTS, 259) for asked in (schema, wrapped)]
    same = jax.tree.map(np.array_equal, *(one.constraint for one in made))
    assert all(jax.tree.leaves(same))
    assert [one.parsed('"é"') for one in made] == ["é", "é"]
    assert response_formats.of({"type": "text"}, TEXTS, 259).constraint is None
    for bad, words in (
        (3, "response_format: expected a class of pydantic"),
        ({"type": "json_object", "schema": {}}, "expected nothing beside type, got"),
        ({"type": "json_schema"}, "json_schema: expected an object with a schema, got None"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "x": 1}}, "alone, got"),
        ({"type": "teddy"}, "schema.type: expected one of null"),
    ):
        with pytest.raises(ValueError, match=words):
            response_formats.of(bad, TEXTS, 259)


def template(call, between, *, begin="", end=""):
    """A chat template that writes calls; ``call`` is the name of their arguments."""
    return (
        (
            "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
            "{{ '<' + m.role + '>' + m.content }}{% for c in m.tool_calls or [] %}"
            "{% if loop.first %}{{ BEGIN }}{% else %}{{ BETWEEN }}{% endif %}"
            '{{ \'{"name": "\' + c.function.name + \'", "KEY": \' }}'
            "{{ c.function.arguments | tojson }}}{% if loop.last %}{{ END }}{% endif %}"
            "{% endfor %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
        )
        .replace("KEY", call)
        .replace("BEGIN", repr(begin))
        .replace("END", repr(end))
        .replace("BETWEEN", repr(between))
    )


TEMPLATES = {
    "Qwen": template(
        "arguments",
        "\n</tool_call>\n<tool_call>\n",
        begin="<tool_call>\n",
        end="\n</tool_call>",
    ),
    "Llama": template("parameters", ", "),
    "Mistral": template("arguments", ", ", begin="[TOOL_CALLS] [", end="]"),
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {"n": {"$ref": "#/$defs/n"}},
                "required": ["n"],
                "$defs": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]
LOOK, STOP = {"name": "look", "arguments": {"n": 7}}, {"name": "stop", "arguments": {}}
FIRST, SECOND = '{"name": "look", "arguments": {"n": 7}}', '{"name": "stop", "arguments": {}}'


def caller(family, marks=()):
    """A tokenizer of bytes and some special tokens, with the template of a family."""
    made = ByteTokenizer()
    made.library.add_special_tokens(list(marks))
    made.chat = chat.ChatTemplate({"default": TEMPLATES[family]})
    return made


@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize("family", TEMPLATES)
def test_calls_of_tools_are_written_as_the_template_does(family, is_special):
    mark = {"Qwen": "<tool_call>", "Mistral": "[TOOL_CALLS]", "Llama": "<call>"}[family]
    tokenizer = caller(family, [mark] if is_special else [])
    size = tokenizer.vocab_size
    texts = {
        "Qwen": [
            f"<tool_call>\n{FIRST}\n</tool_call>",
            f"<tool_call>\n{FIRST}\n</tool_call>\n<tool_call>\n{SECOND}\n</tool_call>",
        ],
        "Llama": [FIRST.replace("arguments", "parameters")],
        "Mistral": [f"[TOOL_CALLS] [{FIRST}]", f"[TOOL_CALLS] [{FIRST}, {SECOND}]"],
    }[family]
    bad = [texts[0].replace("7", "700"), texts[0].replace("look", "lock"), texts[0][:-1]]
    for choice in ("auto", "required", "none"):
        made = response_formats.of(None, tokenizer, size, TOOLS, choice)
        table, token_class = languages.tables(made.constraint)

        def allows(ids, made=made, table=table, token_class=token_class):
            state = int(made.constraint.start)
            for token in (*ids, 1):
                state = table[state, token_class[token]] if state >= 0 else -1
            return state >= 0

        calls = [[LOOK], [LOOK, STOP]][: len(texts)]
        for text, known in zip(texts, calls, strict=True):
            ids = tokenizer.pieces(text)
            assert allows(ids) == (choice != "none")
            if is_special and family != "Llama":
                assert len(ids) < len(text)
                spelt = [byte + 3 for byte in text.encode()]
                assert allows(spelt) == (choice != "required")
                assert made.parsed(text, spelt) is None
            assert made.parsed(tokenizer.decode(ids), ids) == known
        assert not any(allows(tokenizer.pieces(text)) for text in bad)
        ids = tokenizer.pieces(f"First.\n{texts[0]}")
        assert allows(ids) == (choice != "required" if family == "Llama" else choice == "auto")
        assert allows(tokenizer.pieces("No, é.")) == (choice != "required")
        assert made.parsed("No, é.", ()) is None


@pytest.mark.exhaustive
def test_answers_call_tools():
    """A random network calls them and says nothing else."""
    rows = decoding_jax.generate(
        *(networks()["random"][0], caller("Llama"), ["x"]),
        strategy="sample",
        num_samples=4,
        key=jax.random.key(1),
        tools=TOOLS,
        tool_choice="required",
        max_new_tokens=64,
    )
    for one in rows[0]:
        [call] = one.parsed
        assert call["name"] == "stop" or 0 <= call["arguments"]["n"] <= 99


def test_conversations_have_tools_and_wrong_ones_get_one_line():
    model, tokenizer = networks()["random"][0], caller("Llama")
    messages = [{"role": "user", "content": "x"}]
    [ids] = inputs.encode_texts(tokenizer, [messages], model, TOOLS)
    assert tokenizer.decode(ids) == f"{json.dumps(TOOLS)}<user>x<assistant>"
    for given, words in (
        ({"tools": []}, "tools: expected a list of"),
        ({"tools": [TOOLS[0]["function"]]}, r"tools\[0\]: expected a list of"),
        (
            {"tools": TOOLS[:1] * 2},
            r"tools\[1\]: expected functions of different names, got 'look'",
        ),
        ({"tools": TOOLS, "tool_choice": "all"}, "tool_choice: expected auto, required, none, or"),
        (
            {"tools": TOOLS, "response_format": PERSON},
            "response_format: expected None beside tools",
        ),
        ({"tool_choice": "auto"}, "tool_choice: expected None without tools, got 'auto'"),
    ):
        with pytest.raises(ValueError, match=words):
            decoding_jax.generate(model, tokenizer, ["x"], **given)
    tokenizer.chat = chat.ChatTemplate({"default": TEMPLATES["Llama"].replace("name", "function")})
    with pytest.raises(ValueError, match="tools: expected a template that writes calls as that of"):
        decoding_jax.generate(model, tokenizer, ["x"], tools=TOOLS)


def test_a_constraint_needs_a_strategy_with_a_transform():
    def without(model, prompt):
        raise NotImplementedError

    with pytest.raises(ValueError, match="regex: expected none for a strategy that takes no tran"):
        infer.run(networks()["random"], [infer.Item("x")], without, report=print, regex="a")


def test_a_class_of_pydantic_is_the_schema_of_a_job():
    pydantic = pytest.importorskip("pydantic")

    class Person(pydantic.BaseModel):
        name: str

    options = infer.settings.JobSettings(json_schema=Person)
    assert options.json_schema == Person.model_json_schema()


@pytest.mark.release
def test_the_batch_job_takes_a_dict_or_a_pattern(tmp_path):
    (tmp_path / "person.json").write_text(json.dumps(PERSON))
    assert job(json_schema=PERSON) == job(json_schema=str(tmp_path / "person.json"))
    for record in job(regex="[0-9]{3}"):
        assert re.fullmatch("[0-9]{3}", record["outputs"][0]["text"])


@pytest.fixture
def shell(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "load", lambda *args, **kwargs: networks()["random"])
    (tmp_path / "schema.json").write_text('{"enum": ["left", "right"]}')
    return str(tmp_path / "schema.json")


def test_the_shell_takes_a_schema(shell, capsys):
    assert command.main(["x", "y", "--json", "--json_schema", shell]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {record["outputs"][0]["text"] for record in records} <= {'"left"', '"right"'}
    assert command.main(["x", "--regex", "("]) == 1
    assert "decoding_jax: regex: expected a regular" in capsys.readouterr().err
    assert command.main(["x", "--json_schema", f"{shell}.none"]) == 1
    assert command.main(["x", "--regex", "a", "--json_schema", shell]) == 2


@pytest.mark.release
def test_the_shell_takes_a_pattern(shell, capsys):
    argv = ["x", "--strategy", "sample", "--top_k", "3", "--regex", "[0-9]{2}"]
    assert command.main(argv) == 0
    assert re.fullmatch("[0-9]{2}", capsys.readouterr().out.splitlines()[1])


def test_a_gin_file_for_t5x_makes_a_constraint(tmp_path, monkeypatch):
    """The one of docs/t5x.md; ``tests/t5x/test_gin.py`` reads it with T5X."""
    package = Path(decoding_jax.__file__).parent
    source = package / "models" / "embedded" / "translation-en-fr-draft" / "spiece.model"
    (tmp_path / "spiece.model").symlink_to(source)
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "t5x.md").read_text()
    [block] = [text for text in page.split("```") if "@constraints.regex()" in text]
    with gin.unlock_config():
        gin.clear_config()
        gin.parse_config(block)
        name = "decoding_jax.t5x.decode_fns.temperature_sample.transform"
        transform = gin.query_parameter(name).scoped_configurable_fn()
        gin.clear_config()
    want = constraints.regex("[0-9]{4}", decoding_jax.load("translation-en-fr-draft")[1])
    for one, other in zip(jax.tree.leaves(transform), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(one, other)


TREE = {
    "type": "object",
    "properties": {
        "v": {"type": "integer", "minimum": 0, "maximum": 9},
        "kids": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2},
    },
    "required": ["v", "kids"],
}
SWITCH = {"type": "boolean"}
SUMS = 'start: part (("+" | "-") part)*\npart: /[0-9]/ | "(" start ")"\n'


@pytest.mark.exhaustive
def test_inputs_have_schemas_of_their_own(tmp_path):
    """Records do not depend on the schemas of others; the schema of an input wins over the job's.

    Other schemas of the same padded sizes compile nothing.
    """
    kept = [TREE, SWITCH, None, TREE, {"enum": ["a"]}, {"type": "text"}, "{"]
    lines = [{"inputs": f"x{i}", "schema": schema} for i, schema in enumerate(kept)]
    lines.append({"inputs": "x7", "schema": 5})
    path = tmp_path / "inputs.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    traced = []

    def counted(logits, prefix):
        traced.append(logits.shape)
        return logits

    strategy = functools.partial(decoding_jax.sample, max_new_tokens=32, transform=counted)
    options = {"batch_size": 2, "max_input_length": 16, "max_depth": 3, "regex": "[0-9]{3}"}

    def run(source):
        found = []
        infer.run(networks()["random"], source, strategy, report=found.append, **options)
        return found

    found = run(infer.JsonLines(str(path), json_schema="schema"))
    texts = [record["outputs"][0] for record in found[:5]]
    for schema, output in zip(kept[:5], texts, strict=True):
        if schema is None:
            assert re.fullmatch("[0-9]{3}", output["text"])
        elif output["finished"]:
            check(schema, output["text"])
    assert sum(output["finished"] for output in texts) > 2
    assert [record["error"].partition(",")[0] for record in found[5:]] == [
        "json_schema.type: expected one of null",
        "json_schema: expected a schema as JSON",
        "not a JSON Schema: 'schema' is 5",
    ]
    others = [{"enum": ["b", "c"]}, SWITCH, None, TREE, {"enum": ["b", "c"]}]
    count = len(traced)
    items = [infer.Item(f"x{i}", json_schema=schema) for i, schema in enumerate(others)]
    assert run(items)[1:4] == found[1:4]
    assert len(traced) == count


@pytest.mark.release
def test_the_shell_and_the_job_read_a_grammar(shell, capsys, tmp_path):
    (tmp_path / "sums.lark").write_text(SUMS)
    (tmp_path / "tree.json").write_text(json.dumps(TREE))
    argv = ["x", "--strategy", "sample", "--max_depth", "2", "--json", "--max_new_tokens", "32"]
    for name in ("grammar", "json_schema"):
        file = tmp_path / {"grammar": "sums.lark", "json_schema": "tree.json"}[name]
        assert command.main([*argv, f"--{name}", str(file)]) == 0
        output = json.loads(capsys.readouterr().out)["outputs"][0]
        records = job(**{name: str(file)}, max_depth=2)
        for text in [r["outputs"][0]["text"] for r in [*records, {"outputs": [output]}]]:
            if name == "grammar":
                assert set(text) <= set("0123456789+-()")
        with pytest.raises(ValueError, match=f"{name}.*: expected max_depth, since it refers"):
            job(**{name: str(file)})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"json_schema": '{"type": "null"}'}, "json_schema: expected the path of a file, or a d"),
        ({"json_schema": "none.json"}, "json_schema: expected a text file, got 'none.json' (No"),
        ({"grammar": 3}, "grammar: expected the path of a file, got 3"),
        ({"regex": "("}, "regex: expected a regular expression of Python's re"),
        ({"regex": "a", "grammar": __file__}, "grammar: expected none beside regex, got"),
        ({"max_depth": 0}, "max_depth: expected an int of 1 or more"),
        ({"max_depth": 2}, "max_depth: expected a json_schema or a grammar beside it, got 2"),
    ],
)
def test_bad_settings_of_a_job_get_one_line(options, words):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        job(**options)
    assert "\n" not in str(caught.value)


def test_a_suffix_without_a_file_gets_one_line(shell, capsys):
    for drafter in ("suffix:", f"suffix:{shell}.none"):
        assert command.main(["x", "--strategy", "speculative_sample", "--drafter", drafter])
        [line] = capsys.readouterr().err.splitlines()
        assert re.search("--drafter: expected suffix, or suffix:FILE|path: expected a text", line)
