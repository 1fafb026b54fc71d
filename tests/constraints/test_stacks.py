"""Nested texts by a stack on the device, beside the same texts unrolled into one automaton."""

import json
import random
import re

import jax
import jax.numpy as jnp
import jsonschema
import numpy as np
import pytest
import tiers
from languages import NESTED, TOKENIZERS, Pieces
from test_nested import JSON, LIST_GRAMMAR, LISTS, SUMS, lists, nesting

import decoding_jax
from decoding_jax import Prompt, Stop, constraints, strategies
from decoding_jax.constraints import (
    definitions,
    grammars,
    json_texts,
    made,
    pushdown,
    token_pushdown,
)
from decoding_jax.testing import TableLM, same_bits
from decoding_jax.transforms import CompressedAutomaton, StackAutomaton

BYTES = [bytes([byte]) for byte in range(256)]
CROSSING = [  # tokens that begin and end several values
    *("}}", "}]", "]]", "[[", "]]]", "[[[", "],[", "},{", "}, ", '"}', '":', '{"', "null}", "[]"),
    *('right":', ',"left', '{"name":"', '":[', '"replies":[{', '"}],', "[1]", "1]", "1,"),
    *("((", ")+", "))", "(1", "1)*(", "[1,[", '{"op":"+","parts":[', "]}]}"),
]
GRAMMARS = {
    "sums": SUMS,
    "json": JSON,
    "lists": LIST_GRAMMAR,
    "ends with itself": 'start: "a" start | "(" start ")" | "1"',
    "around": 'start: "a" start? "b" | start "c"',
    "may be empty after it": 'start: "(" start ")" tail | "1"\ntail: "x"?',
    "two that nest": 'start: "a" other "b" | "1"\nother: "c" start "d" | "e" other "f" | start',
    "four that nest": (
        'start: w x y z\nw: "(" w ")" | "1"\nx: "[" x? "]"\ny: "{" y? "}"\nz: "a" z? "b"'
    ),
    "not within itself": 'start: a_s "b" a_s\na_s: "a" a_s |',
    "no frame is asked for": 'start: "b" | "b" start | start | "c"',
    "one of two frames": (
        'start: x | y\nx: "<" z ">" x?\ny: "<" z "]" y?\nz: "(" z ")" | "[" z "]" | "[" z ")" | "1"'
    ),
    "a keyword that is a name": (
        'start: sum ("or" sum)*\nsum: value ("+" value)*\n'
        'value: /[aor]+/ | "(" start ")" | value "(" start ")" | value "[" start "]"'
    ),
}
EITHER = {
    "$defs": {
        "x": {"type": "array", "items": {"$ref": "#/$defs/x"}},
        "y": {"type": "object", "additionalProperties": {"$ref": "#/$defs/y"}},
    },
    "type": "array",
    "items": {"anyOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}]},
    "minItems": 1,
}
CASES = {
    **{f"schema: {name}": x for name, x in {**NESTED, "either": EITHER, "lists": LISTS}.items()},
    **{f"grammar: {name}": text for name, text in GRAMMARS.items()},
}


def both(monkeypatch, kind, value, tokenizer, depth):
    """The constraint with a stack, and unrolled."""
    make = constraints.json_schema if kind == "schema" else constraints.grammar
    found = []
    for most in (0, 1 << 20):
        monkeypatch.setattr(made, "_MOST_UNROLLED", most)
        found.append(make(value, tokenizer, max_depth=depth))
    stacked, unrolled = found
    assert isinstance(stacked.language, StackAutomaton)
    assert isinstance(unrolled.language, CompressedAutomaton)
    return stacked, unrolled


def starts(constraint, begun, count):
    """The states before ``count`` texts."""
    state = constraint.start if begun or constraint.first is None else constraint.first
    state = jnp.full(count, int(state), jnp.int32)
    language = constraint.language
    return language.begin(state) if isinstance(language, StackAutomaton) else state


def check_equal(stacked, unrolled, tokenizer, *, begun, walks=256, length=40):
    """Whether random texts may go on with the same tokens, however they are begun."""
    vocab_size, rng = tokenizer.vocab_size, np.random.default_rng(0)
    languages_ = stacked.language, unrolled.language
    allowed = jax.jit(
        lambda x: [y.allowed(z, vocab_size) for y, z in zip(languages_, x, strict=True)]
    )
    advance = jax.jit(
        lambda x, token: [y.advance(z, token) for y, z in zip(languages_, x, strict=True)]
    )
    states = [starts(one, begun, walks) for one in (stacked, unrolled)]
    # Some texts prefer to go deeper, and some to end.
    pieces = [*tokenizer.token_texts(vocab_size).begun]
    opens = np.array([sum(map(x.count, (b"[", b"{", b"("))) for x in pieces], float)
    closes = np.array([sum(map(x.count, (b"]", b"}", b")"))) for x in pieces], float)
    taste = (
        rng.choice([0.0, 1.0, 3.0], (walks, 1)) * opens
        + rng.choice([0.0, 2.0], (walks, 1)) * closes
    )
    for _ in range(length):
        found, known = map(np.asarray, allowed(states))
        np.testing.assert_array_equal(found, known)
        scores = np.where(known, taste + rng.gumbel(size=known.shape), -np.inf)
        token = scores.argmax(1)
        ended = ~known.any(1) | np.isin(token, tokenizer.eos_ids)
        going = np.flatnonzero(~ended)
        if not len(going):
            break
        after = advance(states, jnp.asarray(token))
        taken = np.where(ended, rng.choice(going, walks), np.arange(walks))
        states = jax.tree.map(lambda x, taken=taken: x[taken], after)
    _, known = map(np.asarray, allowed(states))
    refused = advance(states, jnp.asarray((~known).argmax(1)))
    for state, language in zip(refused, languages_, strict=True):
        # A token that is not allowed leads nowhere, and nothing follows there.
        assert not np.asarray(language.allowed(state, vocab_size))[(~known).any(1)].any()


DEFAULT = ("schema: any value", "grammar: two that nest")


@pytest.mark.release
@pytest.mark.parametrize(
    "case",
    tiers.values(*DEFAULT, exhaustive=[case for case in CASES if case not in DEFAULT]),
)
def test_texts_are_those_that_are_unrolled(monkeypatch, case):
    """Random beginnings of texts may go on alike, at every depth; tokens cross several values."""
    tokenizer = Pieces([*BYTES, *CROSSING])
    for depth in (1, 2, 3):
        pair = both(monkeypatch, case.split(":")[0], CASES[case], tokenizer, depth)
        check_equal(*pair, tokenizer, begun=True)


def random_grammar(rng):
    """Rules that nest, of few brackets, so that a text may often be read in several ways."""
    names, rules = ["start", "a", "b", "c"][: rng.randint(2, 4)], []
    for name in names:
        parts = [rng.choice(('"x"', '"y"', '"x"', '"y"', '"x" "x"', ""))]
        for _ in range(rng.randint(1, 3)):
            others = [one for one in names if one != name]
            begin, end, one = f'"{rng.choice("([<")}"', f'"{rng.choice(")]>")}"', rng.choice(names)
            form = rng.choice(
                ("begin one end",) * 3 + ("begin one", "begin one end other", "other end")
            )
            words = {"begin": begin, "end": end, "one": one, "other": rng.choice(others)}
            parts.append(" ".join(words[word] for word in form.split()))
        rules.append(f"{name}: {' | '.join(parts)}")
    return "\n".join(rules)


def bytes_after(machine, state, stack, depth):
    """What each byte leads to from a state of a machine and a stack, without those it does not."""
    choices, of_byte = machine.choices(state)
    room, found = tuple(depth - n for n in machine.opens(stack)), {}
    least = machine.least_needed(state, choices)
    assert all(have >= n for have, n in zip(room, least, strict=True))
    for byte, number in enumerate(of_byte.tolist()):
        after = machine.after(choices[number], room) if number >= 0 else None
        if after is not None:
            state, frames = after
            frames += stack
            while state is not None and machine.is_waiting(state) and frames:
                state, frames = machine.resolved(state, frames[0]), frames[1:]
            if state is not None:
                found[byte] = state, frames
    return found


def opens_unlike(machine, frames):
    """Whether a frame stands for some that open other numbers of definitions."""
    opens = {tuple(sum(d in one for one, _ in word) for d in machine.counted) for word in frames}
    return len(opens) > 1


@pytest.mark.parametrize("count", [30, pytest.param(300, marks=pytest.mark.exhaustive)])
def test_bytes_that_may_follow_are_those_that_are_unrolled(count):
    """Of machines of random grammars, after random bytes.

    Where frames are one that open other numbers, there may be fewer, but there is always one.
    """
    made_of = 0
    for seed in range(count):
        rng = random.Random(seed)
        depth, text = rng.randint(1, 3), random_grammar(rng)
        network = definitions.network_of(*grammars.automata_of(text), depth, "grammar")
        try:
            machine = pushdown.Machine(network)
            known = network.automaton()
            for _ in range(16):
                at, stack, one = machine.start, (), 0
                for _ in range(24):
                    ends = machine.is_waiting(at)  # and nothing is on the stack
                    found = {} if ends else bytes_after(machine, at, stack, depth)
                    after = known.table[one, known.column(np.arange(256))]
                    if any(opens_unlike(machine, frames) for frames in machine.frames):
                        assert (after[[*found]] >= 0).all(), text
                        assert found or machine.may_end(at), text
                        assert known.accepting[one] or not machine.may_end(at), text
                    else:
                        assert [*found] == np.flatnonzero(after >= 0).tolist(), text
                        assert machine.may_end(at) == known.accepting[one], text
                    if not found:
                        break
                    byte = rng.choice([*found])
                    (at, stack), one = found[byte], after[byte]
            made_of += 1
        except pushdown.AmbiguousError:
            continue
    assert made_of >= count // 2


def test_what_nothing_that_nests_is_around_has_all_room():
    """So that it has no tables for less of it."""
    text = 'start: "<" a ">"\na: "(" a ")" | "1"'
    network = definitions.network_of(*grammars.automata_of(text), 3, "grammar")
    machine, least = pushdown.Machine(network), []
    state, stack = machine.start, ()
    for byte in b"<(":
        state, stack = bytes_after(machine, state, stack, 3)[byte]
        least += machine.least_needed(state, machine.choices(state)[0])
    assert least[0] == 3 > least[1]


@pytest.mark.release
@pytest.mark.parametrize("kind", ["bytes", "byte-level", "byte fallback", "python-code"])
def test_texts_are_those_that_are_unrolled_for_tokenizers(monkeypatch, kind):
    """One drops a space before the first word."""
    tokenizer = TOKENIZERS[kind]()
    for schema in NESTED.values():
        pair = both(monkeypatch, "schema", schema, tokenizer, 3)
        assert (pair[0].first is None) == (pair[1].first is None)
        for begun in {True, pair[0].first is None}:
            check_equal(*pair, tokenizer, begun=begun)


STRINGS = {  # with tokens of several characters, and of several strings
    "length": {"type": ["string", "null"], "minLength": 2, "maxLength": 7},
    "list": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 3},
    "object": {
        "type": "object",
        "properties": {
            "a": {"type": "string", "minLength": 4, "maxLength": 4},
            "b": {"type": "string", "maxLength": 9},
            "c": {"type": "string", "pattern": "^ab|x$", "minLength": 1, "maxLength": 5},
        },
    },
    "comments": NESTED["comments"],
    "tree": NESTED["tree"],
}
PARTS_OF_STRINGS = [
    *("ab", "abab", "xxxxxxx", '"a', '","', '": "', '"ab": "x', '","b":"', 'x"', '","x","', '""'),
    *(r"\"", r"\na", r"\u00", "\xe9a", b"\xc3", b"\xa9a", b"a\xe2\x82", b'\xac"', '"}', '"]'),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", STRINGS)
def test_characters_are_counted_as_states_would_do_it(monkeypatch, name):
    """The same tokens are allowed after random texts, by a counter and by states."""
    tokenizer, found = Pieces([*BYTES, *CROSSING, *PARTS_OF_STRINGS]), []
    monkeypatch.setattr(json_texts, "_FEW", 0)
    monkeypatch.setattr(made, "_MOST_UNROLLED", 0)
    for most in (0, 1000):
        monkeypatch.setattr(json_texts, "_MOST_SPELLED", most)
        found.append(constraints.json_schema(STRINGS[name], tokenizer, max_depth=2))
    counted, spelled = found
    assert counted.language.count.any()
    assert not isinstance(spelled.language, StackAutomaton) or not spelled.language.count.any()
    check_equal(counted, spelled, tokenizer, begun=True)


@pytest.mark.exhaustive
def test_all_short_texts_are_those_of_the_depth(monkeypatch):
    """By a schema and by a grammar, without an automaton beside them."""
    tokenizer = Pieces(["[", "]", ",", "1", " ", "[[", "]]", "],[", ",1]"])
    for depth in (1, 2, 3):
        for kind, value in (("schema", LISTS), ("grammar", LIST_GRAMMAR)):
            stacked, _ = both(monkeypatch, kind, value, tokenizer, depth)
            language = stacked.language
            allowed = jax.jit(lambda x, of=language: of.allowed(x, 10))
            advance = jax.jit(lambda x, token, of=language: of.advance(x, token))
            texts, found, states = [""], set(), starts(stacked, True, 512)
            while texts:
                may = np.asarray(allowed(states))[: len(texts)]
                found |= {text for text, row in zip(texts, may, strict=True) if row[-1]}
                both_ = [
                    (i, token)
                    for i, token in zip(*np.nonzero(may[:, :-1]), strict=True)
                    if len(texts[i] + tokenizer.texts[token].decode()) <= 9
                ]
                texts = [texts[i] + tokenizer.texts[token].decode() for i, token in both_]
                padded = np.resize(
                    np.array(both_ or [(0, 0)]), (-(-len(texts) // 512) * 512 or 1, 2)
                )
                taken = jax.tree.map(lambda x, at=padded[:, 0]: np.asarray(x)[at], states)
                states = advance(taken, padded[:, 1])
            assert {text for text in found if " " not in text} == lists(depth, 9)


def test_alternatives_that_go_on_elsewhere_have_a_stack(monkeypatch):
    """One frame stands for those of all of them; a keyword may be a name, too."""
    lists = {"type": "object", "properties": {"a": {"type": "array"}}, "additionalProperties": {}}
    objects = {"anyOf": [lists, {"type": "object"}]}
    for kind, value in (
        ("schema", objects),
        ("schema", EITHER),
        ("grammar", GRAMMARS["one of two frames"]),
        ("grammar", GRAMMARS["a keyword that is a name"]),
    ):
        both(monkeypatch, kind, value, Pieces(BYTES), 2)


TREE = {
    "type": "object",
    "properties": {
        "v": {"type": "integer", "minimum": 0, "maximum": 9},
        "left": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        "right": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    },
    "required": ["v", "left", "right"],
}


def levels(tree):
    return 0 if tree is None else 1 + max(levels(tree["left"]), levels(tree["right"]))


def test_trees_may_be_deeper_than_can_be_unrolled():
    """A binary tree of 24 levels has 2^24 states; the deepest level has no further one."""
    import jsonschema

    tokenizer = Pieces([*BYTES, *CROSSING])
    made = constraints.json_schema(TREE, tokenizer, max_depth=24)
    language, rng = made.language, np.random.default_rng(0)
    allowed = jax.jit(lambda state: language.allowed(state, tokenizer.vocab_size))
    advance = jax.jit(language.advance)
    found = []
    for deepest in (24, 24, 24, 3):
        states, text = starts(made, True, 1), b""
        for _ in range(3000):
            choices = np.flatnonzero(np.asarray(allowed(states))[0])
            if list(choices) == [tokenizer.vocab_size - 1]:
                break
            pieces = [tokenizer.texts[i] for i in choices]
            value = text.endswith((b'"left":', b'"right":'))
            depth = text.count(b"{") - text.count(b"}")
            often = 0.95 if text.endswith(b'"left":') else 0.05
            if value and depth < deepest and b"{" in pieces and rng.random() < often:
                token = choices[pieces.index(b"{")]
            elif value and b"n" in pieces:
                token = choices[pieces.index(b"n")]
            else:
                dense = [i for i, piece in zip(choices, pieces, strict=True) if b" " not in piece]
                token = rng.choice([i for i in dense if b"{" not in tokenizer.texts[i]] or dense)
            if value and depth == 24:
                assert b"{" not in pieces
            text += tokenizer.texts[token]
            states = advance(states, jnp.array([token]))
        tree = json.loads(text)
        jsonschema.validate(tree, TREE)
        found.append(levels(tree))
    assert max(found) == 24


# Pieces of several levels, each byte that a text may have among them.
SMALL = Pieces(["(", ")", "1", "+", "((", "))", ")+("])
NEST = 'start: "(" start ")" ("+" start)? | "1"'
OTHER = 'start: "1" | "(" start "+" start ")"'
MODEL = TableLM.random(jax.random.key(3), 8)
PROMPT = Prompt(jnp.array([[1, 2, 3], [4, 0, 0], [2, 2, 0]], jnp.int32), jnp.array([3, 1, 2]))
SETTINGS = {"max_new_tokens": 7, "stop": Stop(eos_ids=(7,))}


@pytest.mark.release
def test_rows_have_constraints_of_all_kinds(monkeypatch):
    """A pattern and two stacks in one call: each row is as alone, and nothing is compiled again."""
    nest, _ = both(monkeypatch, "grammar", NEST, SMALL, 3)
    other, _ = both(monkeypatch, "grammar", OTHER, SMALL, 2)
    plain = constraints.regex(r"\(1\)|1(\+1)*", SMALL)
    program = jax.jit(
        lambda transform, key: decoding_jax.sample(
            MODEL, PROMPT, key, num_samples=4, transform=transform, **SETTINGS
        )
    )
    key = jax.random.key(0)
    for order in ([plain, nest, other], [other, plain, nest]):
        whole = program(constraints.by_row(order), key)
        for row, one in enumerate(order):
            alone = strategies.Sample(num_samples=4, transform=one, **SETTINGS)(MODEL, PROMPT, key)
            for x, y in zip(jax.tree.leaves(whole[:5]), jax.tree.leaves(alone[:5]), strict=True):
                np.testing.assert_array_equal(x[row], y[row])
    assert program._cache_size() == 1
    joined = constraints.by_row([plain, plain, plain], least=constraints.by_row([nest, other]))
    assert isinstance(joined.language, StackAutomaton)
    want = strategies.Sample(num_samples=4, transform=plain, **SETTINGS)(MODEL, PROMPT, key)
    assert same_bits(program(joined, key)[:5], want[:5])


@pytest.mark.exhaustive
def test_joined_texts_go_on_as_those_of_their_automata(monkeypatch):
    """A pattern and two stacks of other sizes, beside the tables of the same texts, unrolled."""
    pairs = [both(monkeypatch, "grammar", *x) for x in ((NEST, SMALL, 3), (OTHER, SMALL, 2))]
    plain = constraints.regex(r"\(1\)|1(\+1)*", SMALL)
    joined = constraints.by_row([plain, *(stacked for stacked, _ in pairs)])
    alone = [plain, *(unrolled for _, unrolled in pairs)]

    def table(automaton):
        """The state after each state and piece; state -1 is the last."""
        after = np.asarray(automaton.transitions)[0][:, np.asarray(automaton.token_class)[0, :7]]
        return np.pad(after, [(0, 1), (0, 0)], constant_values=-1)

    @jax.jit
    def advanced(states, token):
        states = joined.language.advance(states, token)
        return states, joined.language.allowed(states, 8)

    rng, walks = np.random.default_rng(0), 64
    tables = [table(x.language) for x in alone]
    after = lambda known: np.stack([t[k] for t, k in zip(tables, known, strict=True)])  # noqa: E731
    known = np.array([[int(x.start)] * walks for x in alone])
    states = joined.language.begin(jnp.asarray(np.repeat(joined.start[:, None], walks, 1)))
    for _ in range(6):
        follows = after(known)
        token = (rng.random(follows.shape) + (follows >= 0)).argmax(-1).astype(np.int32)
        known = np.take_along_axis(follows, token[..., None], 2)[..., 0]
        states, allowed = advanced(states, token)
        np.testing.assert_array_equal(np.asarray(allowed)[..., :7], after(known) >= 0)


def test_the_program_of_a_deep_stack_is_no_longer(monkeypatch):
    """Frames are taken out of their words together, however many there are."""
    monkeypatch.setattr(made, "_MOST_UNROLLED", 0)
    sizes = []
    for depth in (16, 256):
        language = constraints.grammar(NEST, SMALL, max_depth=depth).language
        program = jax.make_jaxpr(lambda x, language=language: language.allowed(x, 8))
        sizes.append(len(program(language.begin(jnp.zeros(1, jnp.int32))).eqns))
    assert sizes[1] < sizes[0] + 64


def test_what_another_call_of_by_row_is_to_be_padded_like():
    plain = constraints.regex("1+", SMALL)
    other = constraints.regex("1+", Pieces(["1"]))
    for least in ("x", other):
        with pytest.raises(ValueError, match="least: expected what by_row has returned, for one"):
            constraints.by_row([plain], least=least)


def test_one_program_is_compiled_for_several_schemas(monkeypatch):
    """Their arrays have the same padded sizes."""
    monkeypatch.setattr(made, "_MOST_UNROLLED", 0)
    program = jax.jit(lambda t: strategies.greedy(MODEL, PROMPT, transform=t, **SETTINGS).tokens)
    inner = '"(" start ")"'
    for text in (OTHER, f'start: {inner} | "1" "1"?', f'start: {inner} | "1" "+"?'):
        program(constraints.grammar(text, SMALL, max_depth=3))
    assert program._cache_size() == 1


def test_texts_that_no_stack_is_made_for_are_unrolled(monkeypatch):
    """Where the text does not determine the frames, and where a byte is no token.

    A stack would not count a rule that may be empty: "xz" has two levels.
    """
    monkeypatch.setattr(made, "_MOST_UNROLLED", 0)
    tokenizer = Pieces(["x", "y", "z", "xz"])
    empty = constraints.grammar('start: "x" start "z" | "x" "y" |', tokenizer, max_depth=1)
    assert not empty.language.allowed(jnp.full(1, int(empty.start), jnp.int32), 5)[0, 3]
    ambiguous = constraints.grammar('start: start start | "a"', Pieces(["a"]), max_depth=3)
    lacking = constraints.grammar(NEST, Pieces(["((", "1", "))", "+"]), max_depth=2)
    for found in (ambiguous, lacking, empty):
        assert isinstance(found.language, CompressedAutomaton)
    monkeypatch.setattr(definitions, "_MOST_STATES", 10)
    with pytest.raises(ValueError, match="grammar: expected a language of at most 10 states"):
        constraints.grammar(
            'start: start start | "a" | "b" start "b"', Pieces(["a", "b"]), max_depth=9
        )
    monkeypatch.setattr(token_pushdown, "_MOST_FRAMES", 2)
    with pytest.raises(ValueError, match="grammar: expected a language of at most 10 states"):
        constraints.grammar(NEST, SMALL, max_depth=9)


def test_texts_without_an_end_within_the_depth_are_one_line(monkeypatch):
    monkeypatch.setattr(made, "_MOST_UNROLLED", 0)
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    words = "max_depth: expected a depth at which some text ends, got 3"
    with pytest.raises(ValueError, match=re.escape(words)):
        constraints.json_schema(schema, Pieces(BYTES), max_depth=3)


@pytest.mark.release
def test_texts_of_a_network_are_valid(monkeypatch):
    """64 texts of each nested schema, through ``generate``, by a stack."""
    monkeypatch.setattr(made, "_MOST_UNROLLED", 0)
    model, tokenizer = decoding_jax.load("python-code-draft-wide")
    validator = jsonschema.Draft202012Validator
    for name, schema in NESTED.items():
        constraint = constraints.json_schema(schema, tokenizer, max_depth=3)
        assert isinstance(constraint.language, StackAutomaton)
        rows = decoding_jax.generate(
            model,
            tokenizer,
            ["x = "] * 16,
            strategy="sample",
            num_samples=4,
            key=jax.random.key(0),
            transform=constraint,
            max_new_tokens=48,
        )
        texts = [c.text for row in rows for c in row if c.finished]
        assert texts
        for text in texts:
            value = json.loads(text)
            validator(schema).validate(value)
            # Items of any type are within an array of an object.
            assert nesting(value) <= {"any value": 3, "any items": 2 + 3}.get(name, 6)
