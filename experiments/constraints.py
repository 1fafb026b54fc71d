"""What constraints cost: seconds to compile, megabytes, and the time of a constrained step.

Ten schemas, and some that are nested, are compiled for a tokenizer, and for a synthetic vocabulary
of 128,256 tokens: those of the tokenizer and random pairs and triples of them. A step of sampling,
of the embedded model of code with random embeddings of as many tokens, is then timed without a
constraint and with two of the schemas, after 64 and after 512 tokens of a text: CPU seconds of
the process, medians of interleaved runs. The part ``forced`` counts the calls of the embedded model
of code for texts of three schemas, whose forced tokens are drafts. ``masks`` times the masks of the
tokens of a text alone, beside those of xgrammar and of llguidance, which have to be installed.

    python -m experiments.constraints --out runs/constraints [--gpt2 DIRECTORY] [--parts NAME ...]

The directory has GPT-2's ``vocab.json`` and ``merges.txt``; without it, the tokenizer is that of
the embedded model. Each part has a file of its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.metadata
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tokenizers

import decoding_jax
from decoding_jax import Prompt, constraints, strategies
from decoding_jax.base import Prefix
from decoding_jax.models import Llama
from decoding_jax.text.token_texts import TokenTexts, concatenated, texts_of_decoder
from decoding_jax.transforms import StackAutomaton, carried
from experiments import quick
from experiments.results import write_json

WIDE = 128_256
TEXT = {"type": "string"}
WHOLE, NUMBER, SWITCH = {"type": "integer"}, {"type": "number"}, {"type": "boolean"}


def record(required: int = 99, **properties: Any) -> dict[str, Any]:
    """The schema of an object, of which the first properties are required."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties)[:required],
    }


def some(items: Any, **counts: int) -> dict[str, Any]:
    """The schema of an array."""
    return {"type": "array", "items": items, **counts}


def one_of(*values: str) -> dict[str, Any]:
    """The schema of some strings."""
    return {"enum": list(values)}


def matching(pattern: str) -> dict[str, Any]:
    """The schema of strings that match a pattern."""
    return {"type": "string", "pattern": pattern}


DATE = {"type": "string", "format": "date"}
ADDRESS = record(street=TEXT, city=TEXT, postal_code=matching("[0-9]{5}(-[0-9]{4})?"))
SCHEMAS = {
    "person": record(2, name=TEXT, age={**WHOLE, "minimum": 0}, email=TEXT, tags=some(TEXT)),
    "call of a tool": record(
        name=one_of("get_weather"),
        arguments=record(1, location=TEXT, unit=one_of("celsius", "fahrenheit"), days=WHOLE),
    ),
    "invoice": record(
        invoice_number=matching("INV-[0-9]{6}"),
        date=DATE,
        lines=some(record(description=TEXT, quantity=WHOLE, unit_price=NUMBER)),
        total=NUMBER,
        currency=one_of("EUR", "USD", "GBP", "JPY", "CHF"),
    ),
    "classification": record(
        label=one_of("positive", "negative", "neutral", "mixed"),
        score={"type": "integer", "minimum": 0, "maximum": 100},
        reason={"type": "string", "maxLength": 120},
    ),
    "entities": some(
        record(
            text=TEXT,
            kind=one_of("person", "organisation", "place", "date", "amount", "product"),
            start={**WHOLE, "minimum": 0},
            end={**WHOLE, "minimum": 0},
        )
    ),
    "customer": record(
        2,
        id={"type": "string", "format": "uuid"},
        name=TEXT,
        born=DATE,
        email={"type": "string", "format": "email"},
        billing=ADDRESS,
        delivery=ADDRESS,
        newsletter=SWITCH,
    ),
    "settings": record(
        0,
        **{f"{name}_enabled": SWITCH for name in ("cache", "debug", "metrics", "tracing")},
        **{f"{name}_limit": WHOLE for name in ("memory", "request", "retry", "time")},
        **{f"{name}_path": TEXT for name in ("config", "log", "data", "output")},
    ),
    "recipe": record(
        title={"type": "string", "maxLength": 80},
        servings={"type": "integer", "minimum": 1, "maximum": 12},
        ingredients=some(record(2, name=TEXT, amount=NUMBER, unit=one_of("g", "ml", "piece"))),
        steps=some(TEXT, minItems=1),
        vegetarian=SWITCH,
    ),
    "event": record(
        3,
        title=TEXT,
        begins={"type": "string", "format": "date-time"},
        ends={"type": "string", "format": "date-time"},
        place={"anyOf": [TEXT, {"type": "null"}]},
        guests=some(record(1, name=TEXT, accepted={"type": ["boolean", "null"]}), maxItems=20),
    ),
    "review": record(
        stars={"type": "integer", "minimum": 1, "maximum": 5},
        summary={"type": "string", "minLength": 10, "maxLength": 200},
        pros=some({"type": "string", "maxLength": 60}, maxItems=5),
        cons=some({"type": "string", "maxLength": 60}, maxItems=5),
    ),
}

NODE = record(1, value=WHOLE, left={"$ref": "#"}, right={"$ref": "#"})
COMMENT = record(text=TEXT, replies=some({"$ref": "#"}))
NESTED = {  # and their depths
    "comments with replies, 4 levels": (COMMENT, 4),
    "comments with replies, 16 levels": (COMMENT, 16),
    "binary tree, 4 levels": (NODE, 4),
    "binary tree, 8 levels": (NODE, 8),
    "binary tree, 32 levels": (NODE, 32),
    "any value, 4 levels": ({}, 4),
    "any value, 32 levels": ({}, 32),
}


CASES: dict[str, tuple[Any, int | None]] = {
    **{name: (schema, None) for name, schema in SCHEMAS.items()},
    **NESTED,
}
TIMED = ("recipe", "any value, 32 levels")  # whose texts have no longest one
DRAFTED = ("call of a tool", "invoice", "customer")


class Vocabulary:
    """A tokenizer of the texts of tokens alone, which constraints need; the last token ends."""

    def __init__(self, texts: Sequence[bytes]):
        self.texts = [*texts, b""]
        self.vocab_size, self.eos_ids = len(self.texts), (len(texts),)

    def token_texts(self, size: int) -> TokenTexts:
        """The text that each token adds."""
        return concatenated(self.texts)

    def widened(self, size: int) -> Vocabulary:
        """With random pairs and triples of the tokens, up to ``size`` tokens."""
        draw, made = np.random.default_rng(0), dict.fromkeys(self.texts[:-1])
        while len(made) < size - 1:
            parts = [
                self.texts[i] for i in draw.integers(self.vocab_size, size=draw.integers(2, 4))
            ]
            if len(text := b"".join(parts)) <= 16:
                made[text] = None
        return Vocabulary(list(made))


def vocabulary(gpt2: Path | None) -> Vocabulary:
    """The tokens of GPT-2, or of the embedded model of code."""
    if gpt2 is not None:
        model = tokenizers.models.BPE.from_file(str(gpt2 / "vocab.json"), str(gpt2 / "merges.txt"))
        made = tokenizers.Tokenizer(model)
        made.decoder = tokenizers.decoders.ByteLevel()
        made.add_special_tokens(["<|endoftext|>"])
        return Vocabulary(texts_of_decoder(made, made.get_vocab_size()).begun[:-1])
    tokenizer: Any = decoding_jax.load("python-code")[1]
    return Vocabulary(tokenizer.token_texts(tokenizer.vocab_size).begun[1:])


def compiled(tokens: Any, schema: Any, depth: int | None) -> tuple[Any, dict[str, Any]]:
    """The constraint of a schema, and what it took."""
    start = time.process_time()
    made = constraints.json_schema(schema, tokens, max_depth=depth)
    seconds = time.process_time() - start
    language = made.language
    table = language.table if has_stack(made) else language.transitions
    states, classes = language.num_states, table.shape[-1]
    size = sum(array.nbytes for array in jax.tree.leaves(language))
    found = {"states": states, "classes": classes, "MB": size / 1e6, "seconds": seconds}
    return made, {**found, "stack": has_stack(made)}


def has_stack(made: Any) -> bool:
    """Whether a constraint is not unrolled."""
    return isinstance(made.language, StackAutomaton)


def wide_model(size: int, positions: int) -> Any:
    """The embedded model of code with random embeddings of other tokens, and more positions."""
    model, _ = decoding_jax.load("python-code")
    config = dataclasses.replace(model.config, vocab_size=size, max_positions=positions)
    draw = jax.random.normal(jax.random.key(0), (size, config.emb_dim), jnp.float32)
    return Llama({**model.params, "token_embedder": {"embedding": 0.02 * draw}}, config)


def following(made: Any, count: int, size: int) -> np.ndarray:
    """Random tokens that follow a constraint for as long as ``count``, without its end."""
    walk: Any = dataclasses.replace(made, begun=True)

    @jax.jit
    def allowed(tokens: Any, length: Any) -> Any:
        path = Prefix(jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32), tokens, length)
        return walk(jnp.zeros((1, 1, 1, size)), path)[0, 0, 0] > -jnp.inf

    draw, tokens = np.random.default_rng(0), np.zeros((1, 1, 1, count + 1), np.int32)
    for i in range(count):
        choices = np.flatnonzero(np.asarray(allowed(tokens, np.full((1, 1, 1), i, np.int32))))
        for token in draw.permutation(choices):
            # The text goes on for one more token than the one that may end it.
            tokens[..., i] = token
            if np.asarray(allowed(tokens, np.full((1, 1, 1), i + 1, np.int32))).sum() > 1:
                break
    return tokens[0, 0, 0, :count]


def step_at(made: Any, model: Any, rows: int, tokens: np.ndarray) -> Callable[[], Any]:
    """One step of sampling after some tokens of a text, compiled."""
    made = jax.tree.map(jnp.asarray, made)
    strategy = strategies.Sample(max_new_tokens=len(tokens) + 1, transform=made)
    prompt = Prompt(jnp.ones((rows, 4), jnp.int32), jnp.full(rows, 4, jnp.int32))
    state = jax.jit(lambda s, m: s.init(m, prompt, jax.random.key(0)))(strategy, model)
    text = jnp.asarray(np.append(tokens, 0))[None, None]
    length = jnp.full((rows, 1), len(tokens), jnp.int32)
    old = state.sequences._replace(
        tokens=jnp.broadcast_to(text, (rows, 1, text.shape[-1])),
        length=length,
        done=jnp.zeros((rows, 1), bool),
        finished=jnp.zeros((rows, 1), bool),
    )
    path = Prefix(*prompt, old.tokens[:, :, None], length[..., None] - 1)
    states = carried.advance(made, path, state.carried, rest=len(tokens)).carried
    state = state._replace(sequences=old, step=jnp.int32(len(tokens)), carried=states)
    step = jax.jit(lambda s, m, x: s.step(m, prompt, x).token)
    return lambda: jax.block_until_ready(step(strategy, model, state))


def cpu_times(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """CPU seconds of every run, in turns, after one warm-up each."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for i in range(repeats + 1):
        for name, run in runs.items():
            start = time.process_time()
            run()
            if i:
                seconds[name].append(time.process_time() - start)
    return seconds


def measure_steps(made: Any, size: int, rows: int, lengths: Sequence[int], repeats: int) -> Any:
    """The times of steps without and with a constraint, and the medians of their ratios."""
    model, found = wide_model(size, max(lengths) + 8), []
    for length in lengths:
        step = functools.partial(
            step_at, model=model, rows=rows, tokens=following(made, length, size)
        )
        seconds = cpu_times({"free": step(None), "constrained": step(made)}, repeats)
        ratios = [a / b for a, b in zip(seconds["constrained"], seconds["free"], strict=True)]
        medians = {name: statistics.median(values) for name, values in seconds.items()}
        found.append(
            {"rows": rows, "tokens": length, **medians, "ratio": statistics.median(ratios)}
        )
    return found


def own_masks(made: Any, tokens: Any, rows: int) -> Callable[[Sequence[int]], Any]:
    """Gives the masks of a text in so many rows, token by token, in one compiled loop."""
    none = jnp.zeros((rows, 1), jnp.int32)
    walk: Any = dataclasses.replace(made, begun=True)
    begin = walk.states_after(Prefix(none, none[:, 0], none[..., None, None], none[..., None]))
    language = jax.tree.map(jnp.asarray, made.language)

    @jax.jit
    def masks(language: Any, begin: Any, text: Any) -> Any:
        def after(carry: Any, token: Any) -> Any:
            states = language.advance(carry[0], jnp.full((rows, 1, 1), token))
            return (states, language.allowed(states, tokens.vocab_size)), None

        before = begin, jnp.zeros((rows, 1, 1, tokens.vocab_size), bool)
        return jax.lax.scan(after, before, text)[0][1]

    return lambda text: masks(language, begin, jnp.array(text))[:, 0, 0].block_until_ready()


def xgrammar_masks(schema: Any, tokens: Any, rows: int) -> Callable[[Sequence[int]], Any]:
    """The same by xgrammar, row by row; its matchers go back to the beginning afterwards."""
    import xgrammar

    info = xgrammar.TokenizerInfo(tokens.texts, stop_token_ids=[*tokens.eos_ids])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    made = compiler.compile_json_schema(json.dumps(schema))
    matchers = [xgrammar.GrammarMatcher(made) for _ in range(rows)]
    mask = xgrammar.allocate_token_bitmask(rows, info.vocab_size)

    def run(text: Sequence[int]) -> Any:
        for token in text:
            for row, matcher in enumerate(matchers):
                if not matcher.accept_token(token):
                    raise ValueError(f"xgrammar refuses token {token} of {text}")
                matcher.fill_next_token_bitmask(mask, row)
        for matcher in matchers:
            matcher.reset()
        return mask.numpy()

    return run


class _OfTexts:
    """What llguidance asks of a tokenizer, which encodes nothing."""

    def __init__(self, tokens: Vocabulary):
        [self.eos_token_id] = self.special_token_ids = tokens.eos_ids
        self.bos_token_id = None
        self.tokens = [*tokens.texts[:-1], b"<|end|>"]

    def __call__(self, text: bytes) -> list[int]:
        return []


def llguidance_masks(schema: Any, tokens: Any, rows: int) -> Callable[[Sequence[int]], Any]:
    """The same by llguidance, row by row; its matchers go back to the beginning afterwards."""
    import llguidance
    import llguidance.numpy

    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_OfTexts(tokens)))
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema))
    matchers = [llguidance.LLMatcher(tokenizer, grammar) for _ in range(rows)]
    mask = llguidance.numpy.allocate_token_bitmask(rows, tokens.vocab_size)

    def run(text: Sequence[int]) -> Any:
        for token in text:
            for row, matcher in enumerate(matchers):
                if not matcher.consume_token(token):
                    raise ValueError(f"llguidance refuses token {token} of {text}")
                llguidance.numpy.fill_next_token_bitmask(matcher, mask, row)
        for matcher in matchers:
            matcher.reset()
        return mask

    return run


def measure_masks(args: argparse.Namespace, tokens: Vocabulary) -> dict[str, Any]:
    """CPU milliseconds of the masks after a token of a text, and how many tokens these allow."""
    wide, found = tokens.widened(args.wide), []
    for of in TIMED:
        schema, depth = CASES[of]
        made, _ = compiled(wide, schema, depth)
        text = following(made, min(args.lengths), args.wide).tolist()
        for rows in args.rows:
            runs = {
                "decoding_jax": own_masks(made, wide, rows),
                "xgrammar": xgrammar_masks(schema, wide, rows),
                "llguidance": llguidance_masks(schema, wide, rows),
            }
            each: dict[str, Callable[[], Any]] = {
                name: functools.partial(run, text) for name, run in runs.items()
            }
            for name, seconds in cpu_times(each, args.repeats).items():
                mask = np.asarray(runs[name](text)[0])
                if mask.dtype != bool:
                    mask = np.unpackbits(mask.view(np.uint8))
                ms = 1e3 * statistics.median(seconds) / len(text)
                row = {"schema": of, "rows": rows, "tokens": len(text), "by": name, "ms": ms}
                found.append({**row, "allowed": int(mask.sum())})
                print(found[-1])
    packages = ("jax", "xgrammar", "llguidance")
    versions = {one: importlib.metadata.version(one) for one in packages}
    return {"vocabulary": args.wide, "masks": found, "versions": versions}


def measure_forced(args: argparse.Namespace, _: Any) -> list[dict[str, Any]]:
    """The new tokens of texts and the model's calls for them, with forced tokens as drafts."""
    model, tokenizer = decoding_jax.load("python-code")
    found = []
    for of in DRAFTED:
        made = constraints.json_schema(SCHEMAS[of], tokenizer)
        texts = [
            decoding_jax.generate(
                model,
                tokenizer,
                [f"# {of} as JSON:\n"],
                strategy="speculative_sample",
                drafter=constraints.forced(made, tokenizer),
                num_draft_tokens=8,
                transform=made,
                max_new_tokens=3 * min(args.lengths),
                key=jax.random.key(i),
            )[0][0]
            for i in range(args.samples)
        ]
        tokens = [len(one.tokens) for one in texts]
        calls = [int(np.max(one.info.target_calls)) for one in texts]
        found.append({"schema": of, "tokens": tokens, "calls": calls})
        print(found[-1])
    return found


def measure_constraints(args: argparse.Namespace, tokens: Vocabulary) -> dict[str, Any]:
    """What all schemas take to compile, and the times of steps."""
    found: dict[str, Any] = {"compiled": [], "steps": []}
    timed: dict[str, Any] = {}
    label = "python-code" if args.gpt2 is None else "gpt2"
    for name, used in ((label, tokens), ("synthetic", tokens.widened(args.wide))):
        for of, (schema, depth) in CASES.items():
            made, figures = compiled(used, schema, depth)
            row = {"vocabulary": name, "tokens": used.vocab_size, "schema": of, **figures}
            found["compiled"].append(row)
            print("  ".join(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()))
            timed |= {of: made} if of in TIMED else {}
    for rows in args.rows:
        for of, made in timed.items():
            steps = measure_steps(made, args.wide, rows, args.lengths, args.repeats)
            found["steps"] += [{"schema": of, **row} for row in steps]
            for row in steps:
                print(of, "  ".join(f"{k} {v:.4g}" for k, v in row.items()))
    return found


PARTS: dict[str, Callable[[argparse.Namespace, Vocabulary], Any]] = {
    "constraints": measure_constraints,
    "forced": measure_forced,
    "masks": measure_masks,
}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for JSON")
    parser.add_argument("--gpt2", type=Path, help="folder with vocab.json and merges.txt")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument(
        "--wide", type=int, default=WIDE, help="the size of the synthetic vocabulary"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--samples", type=int, default=8, help="texts of each schema")
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], default=["constraints"])
    small = {"repeats": 1, "wide": 3000, "rows": [1], "lengths": [4], "samples": 2}
    args = quick.parse(parser, argv, small)
    args.out.mkdir(parents=True, exist_ok=True)
    tokens = vocabulary(args.gpt2)
    for part in args.parts:
        write_json(args.out / f"{part}.json", PARTS[part](args, tokens))


if __name__ == "__main__":
    main()
