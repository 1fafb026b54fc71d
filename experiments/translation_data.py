"""The English-French pairs of Tatoeba: read, split by English sentence, tokenised, in batches.

The data are tab-separated pairs from tatoeba.org through manythings.org/anki (CC-BY 2.0 FR).
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece

EOS_ID = 1
BUCKETS = (8, 12, 16, 24, 40)


class Pairs(NamedTuple):
    """Sentence pairs, one list a language."""

    english: list[str]
    french: list[str]


def read_pairs(path: Path) -> Pairs:
    """Reads ``english <tab> french`` lines, gzipped."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t")[:2] for line in lines]
    return Pairs(
        [r[0] for r in rows], [r[1].replace("\u202f", " ").replace("\xa0", " ") for r in rows]
    )


def split(pairs: Pairs, *, held_out: int, seed: int) -> tuple[Pairs, Pairs]:
    """Training pairs and at most ``held_out`` test pairs that share no English sentence.

    English sentences that differ only in case and punctuation count as one, so that all French
    renderings of a sentence fall on one side.
    """
    groups: dict[str, list[int]] = {}
    for i, sentence in enumerate(pairs.english):
        groups.setdefault(re.sub(r"\W+", " ", sentence.lower()).strip(), []).append(i)
    keys = sorted(groups)
    test: list[int] = []
    for k in np.random.default_rng(seed).permutation(len(keys)):
        if len(test) + len(groups[keys[k]]) > held_out:
            break
        test += groups[keys[k]]
    chosen = set(test)
    train = [i for i in range(len(pairs.english)) if i not in chosen]

    def take(index: list[int]) -> Pairs:
        return Pairs([pairs.english[i] for i in index], [pairs.french[i] for i in index])

    return take(train), take(sorted(test))


def train_tokenizer(pairs: Pairs, path: Path, vocab_size: int) -> None:
    """One SentencePiece unigram vocabulary for both languages, with T5's special ids."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(pairs.english + pairs.french),
        model_prefix=str(path.with_suffix("")),
        vocab_size=vocab_size,
        model_type="unigram",
        character_coverage=1.0,
        pad_id=0,
        eos_id=EOS_ID,
        unk_id=2,
        bos_id=-1,
        num_threads=2,
        minloglevel=2,
    )


class Batch(NamedTuple):
    """int32 ``[B, T]``, right-padded with 0: inputs and targets, both with their end token."""

    source: np.ndarray
    target: np.ndarray


class Batches:
    """Endless passes over the pairs in an order fixed by the seed, from any step.

    Sentences are shuffled, sorted by length within wide windows so that little is padding, cut
    into batches of about ``tokens`` tokens a side, and the batches are shuffled again.
    """

    def __init__(self, source: list[list[int]], target: list[list[int]], tokens: int, seed: int):
        longest = BUCKETS[-1]
        fits = [
            i for i in range(len(source)) if len(source[i]) < longest and len(target[i]) < longest
        ]
        self.source, self.target = source, target
        self.tokens, self.seed = tokens, seed
        self.fits = np.asarray(fits)
        self.bucket = np.asarray(
            [min(b for b in BUCKETS if b > max(len(source[i]), len(target[i]))) for i in fits]
        )
        self.steps_per_epoch = len(self._plan(0))

    def _plan(self, epoch: int) -> list[np.ndarray]:
        rng = np.random.default_rng((self.seed, epoch))
        plan: list[np.ndarray] = []
        for bucket in BUCKETS:
            members = rng.permutation(self.fits[self.bucket == bucket])
            size = self.tokens // bucket
            # Batches are all of one shape: those left over wait for the next pass.
            plan += [members[i : i + size] for i in range(0, len(members) - size + 1, size)]
        return [plan[i] for i in rng.permutation(len(plan))]

    def __call__(self, first_step: int) -> Iterator[Batch]:
        epoch, skip = divmod(first_step, self.steps_per_epoch)
        while True:
            for members in self._plan(epoch)[skip:]:
                width = max(max(len(self.source[i]), len(self.target[i])) for i in members) + 1
                width = min(b for b in BUCKETS if b >= width)
                yield Batch(
                    pad([self.source[i] for i in members], width),
                    pad([self.target[i] for i in members], width),
                )
            epoch, skip = epoch + 1, 0


def pad(sequences: list[list[int]], width: int) -> np.ndarray:
    """Token lists as int32 ``[B, width]``, each with its end token, padded with 0."""
    out = np.zeros((len(sequences), width), np.int32)
    for row, ids in zip(out, sequences, strict=True):
        row[: len(ids)] = ids
        row[len(ids)] = EOS_ID
    return out
