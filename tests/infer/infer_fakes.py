"""What several files of these tests use; the tokenizer and the strategy are quick to compile."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp

from decoding_jax import DecodeOutput

HERE = Path(__file__).parent
LINES = ["1 2 3", "4", "5 6 1 2 3 4 5", "2 2", "6 5 4 3 2 1", "3 3 3"]
INFER = ["models/directory.gin", "strategies/greedy.gin", "runs/infer.gin"]


class Digits:
    """A tokenizer whose tokens are digits; token 0 ends a text."""

    eos_ids = (0,)

    def encode(self, text):
        return [int(c) for c in text.replace(" ", "")]

    def decode(self, ids):
        return "".join(str(i) for i in ids if i)


def draw(model, prompt, key, *, stop, lanes=3):
    """A strategy that compiles quickly: its four tokens depend on the prompt and key of the row."""
    real = jnp.arange(prompt.tokens.shape[1])[None] < prompt.length[:, None]
    sums = jnp.where(real, prompt.tokens, 0).sum(1).astype(jnp.uint32)
    words = jax.random.key_data(key)[:, 0] + sums
    odd = 2 * jnp.arange(4 * lanes, dtype=jnp.uint32).reshape(1, lanes, 4) + 1
    bits = words[:, None, None] * (odd * jnp.uint32(0x9E3779B1)) >> 8
    length = bits[..., 0].astype(jnp.int32) % 4 + 1
    log_prob = -bits[..., 1].astype(jnp.float32) / 2.0**24
    tokens = jnp.where(jnp.arange(4)[None, None] < length[..., None], bits % 6 + 1, 0)
    return DecodeOutput(tokens.astype(jnp.int32), length, log_prob, log_prob, length < 4)


def files_of(directory):
    """The files of a job's directory, without summaries, which contain times."""
    paths = [p for p in sorted(directory.iterdir()) if not p.name.startswith("summary")]
    return {p.name: p.read_bytes() for p in paths}


def broken(model, prompt, *, stop):
    """A strategy with a bug."""
    return None + prompt


def records_of(files):
    """The records in the shards of a job's directory, without their checksums."""
    names = sorted(n for n in files if n.endswith(".jsonl"))
    return [record_of(line) for n in names for line in files[n].decode().splitlines()]


def record_of(line):
    """The record of a line of a shard, without its checksum."""
    record = json.loads(line)
    assert len(record.pop("crc32")) == 8
    return record


def records():
    """The records that the fixture ``command`` has written."""
    text = Path("out/decodes-00000-of-00001.jsonl").read_text(encoding="utf-8")
    return [record_of(line) for line in text.splitlines()]


def check(got, capsys, status, message):
    """Checks the exit status of the command, and that it reported the message in one line."""
    printed = capsys.readouterr()
    assert got == status
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.startswith("decoding_jax.infer: ")
    assert printed.err.count("\n") == 1


OWN = (
    "from __gin__ import dynamic_registration\n"
    "import infer_fakes\n"
    "from decoding_jax import infer\n"
    'include "models/directory.gin"\n'
    'include "runs/infer.gin"\n'
    "STRATEGY = @infer_fakes.draw\n"
)
