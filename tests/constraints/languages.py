"""What these tests share: tokenizers, schemas, and texts that follow an automaton at random."""

import numpy as np
import tokenizers

import decoding_jax
from decoding_jax.text import ByteTokenizer
from decoding_jax.text.token_texts import concatenated
from decoding_jax.text.tokenizers import HuggingFaceTokenizer


class Pieces:
    """A tokenizer with the given texts, bytes or strings; the last id ends a text."""

    def __init__(self, texts):
        self.texts = [text if isinstance(text, bytes) else text.encode() for text in texts]
        self.vocab_size = len(texts) + 1
        self.eos_ids = (len(texts),)

    def encode(self, text):
        return [0]

    pieces = encode

    def decode(self, ids):
        return b"".join([*self.texts, b""][i] for i in ids).decode(errors="replace")

    def token_texts(self, size):
        return concatenated([*self.texts, b""])


def byte_level():
    """GPT-2's kind: tokens cut characters, and a space begins a word."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ġ", "t"), ("t", "r"), ("tr", "u"), ("tru", "e"), ("Ã", "©"), ('"', ":"), ("{", '"')]
    words = [*alphabet, *("".join(pair) for pair in merges), "<end>"]
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({word: i for i, word in enumerate(words)}, merges)
    )
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    return HuggingFaceTokenizer(made, eos_ids=[len(words) - 1])


def byte_fallback():
    """Llama's kind: a space before the first word is dropped, and bytes are tokens too."""
    words = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [
        *'▁{}[]":,0123456789-.eE+abcdefghijklmnopqrstuvwxyzé',
        "▁t",
        "▁{",
        "rue",
        '":',
        "日本",
    ]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(words))}
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True)
    )
    parts = tokenizers.decoders
    made.decoder = parts.Sequence(
        [parts.Replace("▁", " "), parts.ByteFallback(), parts.Fuse(), parts.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(["<unk>", "</s>"])
    return HuggingFaceTokenizer(made, eos_ids=[1])


TOKENIZERS = {
    "bytes": ByteTokenizer,
    "byte-level": byte_level,
    "byte fallback": byte_fallback,
    "python-code": lambda: decoding_jax.load("python-code-draft-wide")[1],
    "sentencepiece": lambda: decoding_jax.load("translation-en-fr-draft")[1],
}

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0},
        "née": {"type": ["boolean", "null"]},
    },
    "required": ["name"],
}
SCHEMAS = {
    "person": PERSON,
    "numbers": {"type": "array", "items": {"type": "number"}, "maxItems": 3},
    "empty object": {"type": "object", "additionalProperties": False},
    "escapes": {"enum": ['a"b\\c', "\u2028\x00\ud7ff", "日本", {"x": [1, 2.5, None, {}]}, ""]},
    "date": {"type": "string", "format": "date"},
    "tagged": {
        "oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
        "$defs": {
            "cat": {
                "type": "object",
                "properties": {"kind": {"const": "cat"}, "lives": {"$ref": "#/$defs/lives"}},
                "required": ["kind", "lives"],
            },
            "dog": {
                "type": "object",
                "properties": {"kind": {"const": "dog"}, "name": {"$ref": "#/$defs/name"}},
                "required": ["kind"],
            },
            "lives": {"type": "integer", "minimum": 1, "maximum": 9},
            "name": {"type": "string", "pattern": "^[a-zé]{1,4}$"},
        },
    },
    "pair": {
        "type": "array",
        "prefixItems": [{"type": "boolean"}, {"type": "string", "minLength": 1, "maxLength": 2}],
        "minItems": 2,
        "maxItems": 2,
    },
    "a dictionary": {"type": "object", "additionalProperties": {"type": "integer"}},
    "optional": {
        "type": "object",
        "properties": {'"q"': {"type": "null"}, "b.*": {"type": "null"}, "c": {"const": 1}},
    },
    "either": {"anyOf": [{"type": "null"}, {"type": "string", "format": "ipv4"}]},
}
NODE = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 3},
        "left": {"$ref": "#/$defs/node"},
        "right": {"$ref": "#/$defs/node"},
    },
    "required": ["name"],
}
EXPRESSION = {  # Two definitions within each other, by a tag.
    "oneOf": [
        {
            "type": "object",
            "properties": {"op": {"const": "number"}, "value": {"type": "integer"}},
            "required": ["op", "value"],
        },
        {"$ref": "#/$defs/sum"},
    ]
}
SUM = {
    "type": "object",
    "properties": {
        "op": {"const": "+"},
        "parts": {"type": "array", "items": {"$ref": "#"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["op", "parts"],
}
NESTED = {  # with a depth of 3
    "tree": {"$ref": "#/$defs/node", "$defs": {"node": NODE}},
    "expression": {**EXPRESSION, "$defs": {"sum": SUM}},
    "any value": {},
    "comments": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "maxLength": 4},
            "replies": {"type": "array", "items": {"$ref": "#"}},
        },
        "required": ["text", "replies"],
    },
    "any items": {"type": "object", "properties": {"a": {"type": "array"}, "o": True}},
}
PATTERNS = [
    r"[0-9]{4}-[0-9]{2}",
    r"(é|日本)+ ?x*",
    r" ?true| \{\}",
    r"([a-c]|€){2,3}",
    r"(a|ab)(c|bcd)?",
]


def tagged(tag):
    """The schema of an object that has a constant."""
    return {"type": "object", "properties": {"k": {"const": tag}}, "required": ["k"]}


def tables(made):
    """The transitions ``[N, C]`` and classes ``[V]`` of a constraint."""
    return made.language.transitions[0], made.language.token_class[0]


def walk(made, rng, *, begun, length=60):
    """The tokens of a text that follows a constraint at random, by its arrays; or None if cut.

    The last id that is allowed ends a text in the automata of these tests' tokenizers only if it is
    an end token, so a walk is over where nothing follows.
    """
    table, token_class = tables(made)
    distance = np.full(len(table), 10**6)
    distance[(table < 0).all(1)] = 0  # what nothing follows
    for _ in range(len(table)):
        after = np.where(table < 0, 10**6, distance[np.clip(table, 0, None)] + 1).min(1)
        if (distance <= after).all():
            break
        distance = np.minimum(distance, after)
    state = int(made.start if begun or made.first is None else made.first)
    tokens = []
    while True:
        after = table[state][token_class]
        choices = np.flatnonzero(after >= 0)
        if not len(choices):
            return tokens
        near = choices[distance[after[choices]] < distance[state]]
        chosen = near if len(tokens) > length or rng.random() < 0.5 else choices
        tokens.append(int(rng.choice(chosen)))
        state = after[tokens[-1]]
