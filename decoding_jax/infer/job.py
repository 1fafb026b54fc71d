"""The batch job: every input in, one record out, in order, whatever happens in between."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from decoding_jax.base import DecodeOutput, Stop
from decoding_jax.infer import buckets as bucketing
from decoding_jax.infer import gin_names, lock, manifest, progress, records, shards
from decoding_jax.infer.arguments import check_job
from decoding_jax.infer.decoder import Decoder
from decoding_jax.infer.describe import describe, digest
from decoding_jax.infer.records import Record
from decoding_jax.infer.shard_decoder import ShardDecoder
from decoding_jax.infer.sources import Item
from decoding_jax.models.checkpoint.files import local_path
from decoding_jax.text import Tokenizer, with_end_tokens

_LOGGER = logging.getLogger(__name__)


class Summary(NamedTuple):
    """What became of a job, or of this process's part of it.

    Attributes:
      inputs: how many there were.
      faults: how many of them were faulty, by kind.
      finished_before: shards that an earlier run had finished.
      batches: decoded in this run.
      compilations: of this run.
    """

    inputs: int
    faults: dict[str, int]
    finished_before: int
    batches: int
    compilations: int


def run(
    model: tuple[Any, Tokenizer],
    source: Iterable[Item],
    strategy: Callable[..., DecodeOutput],
    output_dir: str | Path | None = None,
    report: Callable[[Record], None] | None = None,
    seed: int = 0,
    batch_size: int = 32,
    shard_size: int = 1024,
    max_input_length: int = 512,
    buckets: Sequence[int] | None = None,
    stop: Stop | None = None,
    with_tokens: bool = False,
    name: str = "decodes",
    drafter: Any = None,
) -> Summary:
    """Decodes every input of a source, and writes or reports one record for each.

    Shards are written whole, by atomic rename, and are independent of each other: a job that was
    killed leaves finished shards, skips them when it is started again, and ends with the same
    files, byte for byte, as one that was not (on the same kind of device). Where several
    processes run (``jax.distributed``), each takes its shards in turn.

    Args:
      model: a model and its tokenizer, as ``decoding_jax.load`` gives them.
      source: ``TextLines``, ``JsonLines``, ``SeqioTask``, or any iterable of ``Item`` that can be
        iterated over again.
      strategy: such as ``decoding_jax.sample`` with its settings bound, by gin or
        ``functools.partial``. It is called with ``(model, prompt, stop=...)``, and with a key of
        each row where it takes one. A number in its settings, in ``stop`` or in ``drafter`` may be
        an array with one value for each input, in their order (see ``decoding_jax.rows``).
      output_dir: where ``NAME-00000-of-00012.jsonl`` and ``job.json`` go; an empty directory, or
        this same job's own.
      report: called with each record of a shard once the shard is finished, such as a ``Printer``.
      seed: the key of input i is ``fold_in(key(seed), i)``.
      batch_size: inputs decoded together; rounded up to a multiple of the devices.
      shard_size: inputs of a shard. A batch never spans two of them.
      max_input_length: the most tokens of an input; longer ones are recorded as faults.
      buckets: widths that inputs are padded to; by default the powers of two from 16.
      stop: when a text ends; by default at the tokenizer's end tokens, which are also used where
        ``stop.eos_ids`` is None.
      with_tokens: whether records hold token ids.
      name: of the shards.
      drafter: for a strategy that takes one, such as ``decoding_jax.speculative_sample``: a model,
        a model and its tokenizer, or a drafter, as for ``decoding_jax.generate``.

    Returns:
      A ``Summary``.

    Raises:
      ValueError: in one line, for settings or a directory that do not serve.

    Example:
      >>> import functools
      >>> import decoding_jax
      >>> from decoding_jax.infer import TextLines
      >>> summary = run(
      ...     decoding_jax.load("translation-en-fr-draft"),
      ...     TextLines("runs/demo_sentences.txt"),
      ...     functools.partial(decoding_jax.greedy, max_new_tokens=4),
      ...     report=lambda record: None,
      ...     max_input_length=32,
      ... )
      >>> summary.inputs, summary.faults
      (8, {})
    """
    check_job(model, source, strategy, output_dir, buckets, stop)
    net, tokenizer = model
    directory = None if output_dir is None else local_path("output_dir", output_dir)
    if output_dir is None and report is None:
        raise ValueError("output_dir: got None, and no report either; takes at least one of them")
    _check_counts(batch_size=batch_size, shard_size=shard_size, max_input_length=max_input_length)
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"seed: got {seed!r}; takes 0 to {2**32 - 1}")
    stop = with_end_tokens(stop, tokenizer)
    widths = bucketing.widths(max_input_length, buckets)
    bound = _with_tokenizer(strategy, tokenizer)
    decoder = Decoder(
        net, tokenizer, bound, stop=stop, seed=seed, batch_size=batch_size, drafter=drafter
    )
    decoder.check(widths[-1])
    inputs = manifest.survey(source, shard_size)
    if inputs.count == 0:
        raise ValueError("source: got no inputs; takes at least one")
    decoder.expect(inputs.count)
    settings: dict[str, Any] = {}
    if directory is not None:
        settings = {
            **manifest.environment(),
            "inputs": {"count": inputs.count, "sha256": inputs.digest},
            "model": digest(net),
            "tokenizer": manifest.tokenizer_digest(tokenizer),
            "strategy": describe(strategy),
            "gin": gin_names.settings(),
            "seed": seed,
            "batch_size": decoder.batch_size,
            "shard_size": shard_size,
            "buckets": widths,
            "stop": describe(stop),
            "with_tokens": with_tokens,
            "name": name,
        }
        if drafter is not None:
            settings["drafter"] = digest(drafter[0] if isinstance(drafter, tuple) else drafter)
    worker = ShardDecoder(decoder, tokenizer, widths, seed=seed, with_tokens=with_tokens)
    faults: Counter[str] = Counter()
    assigned = finished = 0
    process, processes = jax.process_index(), jax.process_count()
    count = len(inputs.of_shards)
    mine = range(process, count, processes)
    total = sum(inputs.size_of(shard) for shard in mine)
    with contextlib.ExitStack() as stack:
        if directory is not None:
            _make(directory)
            stack.enter_context(lock.hold(directory, process, processes))
            manifest.claim(directory, settings)
        bar = stack.enter_context(
            contextlib.closing(progress.Bar(total, compiling=decoder.compiling))
        )
        paths = {}
        if directory is not None:
            paths = {shard: directory / shards.shard_name(name, shard, count) for shard in mine}
        there = {shard for shard, path in paths.items() if path.exists()}
        bar.skip(sum(inputs.size_of(shard) for shard in there))
        for shard, items in enumerate(manifest.unchanged(source, inputs)):
            if shard not in mine:
                continue
            assigned += len(items)
            first = shard * shard_size
            made = _finished(paths[shard], items, first) if shard in there else None
            if made is not None:
                finished += 1
            else:
                if shard in there:
                    bar.skip(-len(items))
                with bar.working:
                    made = worker.decode(items, first, bar)
                    made = [
                        records.with_id(record, item.id)
                        for record, item in zip(made, items, strict=True)
                    ]
                    if shard in paths:
                        shards.write_records(paths[shard], made)
                    if report is not None:
                        for record in made:
                            report(record)
            faults += records.count_faults(made)
    summary = Summary(assigned, dict(faults), finished, decoder.batches, decoder.compilations)
    _LOGGER.info("%s", _in_words(summary, directory))
    return summary


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"{name}: got {count!r}; takes a whole number of 1 or more")


def _with_tokenizer(strategy: Callable[..., Any], tokenizer: Tokenizer) -> Callable[..., Any]:
    """The strategy, with the model's tokenizer if it takes one."""
    if "tokenizer" not in inspect.signature(strategy).parameters:
        return strategy
    return functools.partial(strategy, tokenizer=tokenizer)


def _make(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"output_dir: {directory} is a file; takes a directory")
    directory.mkdir(parents=True, exist_ok=True)


def _finished(path: Path, items: Sequence[Item], first: int) -> list[Record] | None:
    """The records of a shard that an earlier run has finished; None if it is to be decoded."""
    try:
        return shards.read_records(path, items, first)
    except ValueError as e:
        _LOGGER.warning("%s; the shard is decoded again", e)
        return None


def _in_words(summary: Summary, directory: Path | None) -> str:
    faulty = sum(summary.faults.values())
    kinds = ", ".join(f"{kind}: {n:,}" for kind, n in sorted(summary.faults.items()))
    parts = [
        f"inputs: {summary.inputs:,}",
        f"faulty: {faulty:,}" + (f" ({kinds})" if kinds else ""),
        f"batches: {summary.batches:,}",
        f"compilations: {summary.compilations}",
    ]
    if summary.finished_before:
        parts.append(f"shards finished before: {summary.finished_before:,}")
    if directory is not None:
        parts.append(f"output: {directory}")
    return ", ".join(parts)
