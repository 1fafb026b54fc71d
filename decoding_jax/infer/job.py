"""Runs a batch job, which writes one record for every input, in the order of the inputs."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from decoding_jax import fields, gin_config
from decoding_jax.base import DecodeOutput
from decoding_jax.constraints import made as constraints
from decoding_jax.infer import manifest, progress, records, summaries
from decoding_jax.infer.decoding import ItemDecoder, Shard, decode_shards
from decoding_jax.infer.describe import describe, digest
from decoding_jax.infer.processes import processes_of
from decoding_jax.infer.settings import (
    JobSettings,
    call_of,
    check_model_and_tokenizer,
    check_source,
    with_fields,
)
from decoding_jax.infer.shards import Output
from decoding_jax.infer.sources import Item
from decoding_jax.infer.summaries import Summary
from decoding_jax.loop import Strategy
from decoding_jax.storage import CloudPath, StoragePath, storage_path
from decoding_jax.text import Tokenizer

_LOGGER = logging.getLogger(__name__)


@with_fields(JobSettings)
def run(
    model: tuple[Any, Tokenizer],
    source: Iterable[Item],
    strategy: Strategy | Callable[..., DecodeOutput],
    output_dir: str | StoragePath | None = None,
    report: Callable[[records.Record], None] | None = None,
    **options: Any,
) -> Summary:
    """Decodes every input of a source, and writes or reports one record for each.

    A shard is published as a whole (on a disk by a rename, in a bucket by one upload), and does not
    depend on other shards. A job that is killed leaves finished shards. When the job is started
    again, it skips these shards and ends with the same ``job.json`` and shards, byte for byte, as a
    job that was not interrupted (on the same kind of device). If several processes run
    (``jax.distributed``), shards, or groups of them that share a batch, are assigned to them in
    turn; or, if the model is on a mesh of the devices of all of them, they decode every shard
    together, and process 0 writes and reports.

    Args:
      model: a model and its tokenizer, as ``decoding_jax.load`` returns them.
      source: ``TextLines``, ``JsonLines``, ``CsvRows``, ``ParquetRows``, ``SeqioTask``, or any
        iterable of ``Item`` that can be iterated over more than once.
      strategy: a strategy with its settings: an object such as ``decoding_jax.Greedy(...)``, or a
        function such as ``decoding_jax.sample`` whose settings gin or ``functools.partial`` have
        bound. A function is called with ``(model, prompt, stop=...)``, and also with one key for
        each row if it takes keys. A number in its settings, in ``stop`` or in ``drafter`` may be an
        array with one value for each input, in their order (see ``decoding_jax.rows``).
      output_dir: the directory for ``NAME-00000-of-00012.jsonl``, ``job.json`` and
        ``summary.json``, or its URL, such as ``gs://bucket/out``. It must be empty or belong to
        this job.
      report: a function such as a ``Printer``. It is called with each record of a shard after the
        shard is finished.
      **options: the fields of ``infer.JobSettings``, such as ``seed``, ``batch_size``,
        ``max_input_length`` and ``stop``.

    Returns:
      A ``Summary``. Faulty inputs are logged in a warning of one line, and raise no error.

    Raises:
      ValueError: if a setting is invalid, or the directory cannot be used; the message is one line.

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
    settings = JobSettings(**options)
    check_model_and_tokenizer(model)
    check_source(source)
    directory = _directory(output_dir, report)
    processes = processes_of(model[0])
    call = call_of(model, strategy, settings)
    decoder = ItemDecoder(call, model[1], settings)
    inputs = processes.each(lambda: manifest.survey(source, settings.shard_size))
    if inputs.count == 0:
        raise ValueError("source: expected at least one input, got none")
    decoder.expect(inputs.stop_strings, inputs.json_schemas)
    together = -(-(decoder.rows.together or 1) // settings.shard_size)  # shards
    depends_on = _identity(inputs)
    if directory is not None:
        described = describe(strategy)
        depends_on = _dependencies(model, described, settings, inputs, decoder, together)
    processes.check_same(depends_on)
    assigned = processes.assigned(len(inputs.of_shards), together)
    output = Output(directory, settings.name, inputs, processes, assigned)
    num_inputs = sum(inputs.size_of(shard) for shard in assigned)
    watch = decoder.rows.compilations.watch
    found = _Found()
    with contextlib.ExitStack() as stack:
        stack.enter_context(output.claimed(depends_on))
        bar = progress.Bar(num_inputs, compiling=watch, shown=processes.writes)
        stack.enter_context(contextlib.closing(bar))
        bar.skip(sum(inputs.size_of(shard) for shard in output.existing))
        of_process = _shards(source, inputs, frozenset(assigned), output, found, bar)
        for window in _unfinished(of_process, together):
            with bar.working:
                for shard, of_shard in decode_shards(decoder, window, bar):
                    output.write(shard.number, of_shard)
                    found.faults += records.count_faults(of_shard)
                    if report is not None and processes.writes:
                        for record in of_shard:
                            report(record)
        summary = Summary(
            inputs=num_inputs,
            faults=dict(found.faults),
            finished_before=found.finished_before,
            batches=decoder.rows.batches,
            compilations=len(decoder.rows.compilations),
            tokens=decoder.num_tokens,
            seconds=max(0.0, bar.working.seconds() - watch.seconds()),
            compilation_seconds=watch.seconds(),
            waste=decoder.rows.row_steps.waste,
        )
        output.write_summary(summary)
    _LOGGER.info("%s", summaries.to_text(summary, directory))
    if (faults_found := summaries.fault_line(summary)) is not None:
        _LOGGER.warning("%s", faults_found)
    return summary


def _directory(output_dir: Any, report: Any) -> StoragePath | None:
    """The output directory, or None for a job that only reports."""
    if output_dir is None:
        if report is None:
            raise ValueError("output_dir: expected a path, or else a report, got neither")
        return None
    if not isinstance(output_dir, (str, Path, CloudPath)):
        raise fields.error("output_dir", "a path", output_dir)
    return storage_path("output_dir", output_dir)


def _identity(inputs: manifest.Inputs) -> dict[str, Any]:
    """What identifies the inputs of a job."""
    identity: dict[str, Any] = {"inputs": {"count": inputs.count, "sha256": inputs.digest}}
    return {**identity, "files": inputs.files} if inputs.files else identity


def _dependencies(
    model: tuple[Any, Tokenizer],
    strategy: str,
    settings: JobSettings,
    inputs: manifest.Inputs,
    decoder: ItemDecoder,
    together: int,
) -> dict[str, Any]:
    """What the results of a job depend on, as JSON values."""
    net, tokenizer = model
    depends_on = {
        **manifest.environment(),
        **_identity(inputs),
        "model": digest(net),
        "tokenizer": manifest.tokenizer_digest(tokenizer),
        "strategy": strategy,
        "gin": gin_config.settings(),
        "seed": settings.seed,
        "batch_size": decoder.rows.batch_size,
        "group_size": decoder.rows.group_size,
        "shards_together": together,
        "shard_size": settings.shard_size,
        "buckets": decoder.widths,
        "stop": describe(decoder.stop),
        "with_tokens": settings.with_tokens,
        "name": settings.name,
    }
    depends_on |= {} if decoder.scorer is None else decoder.scorer.settings
    for name in ("truncate", "with_info", "with_num_tokens"):
        depends_on |= {name: True} if getattr(settings, name) else {}
    for name in (*constraints.KINDS, "max_depth"):
        value = getattr(settings, name)
        depends_on |= {} if value is None else {name: value}
    if decoder.call.drafter is not None:
        depends_on["drafter"] = digest(decoder.call.drafter)
    return depends_on


@dataclasses.dataclass
class _Found:
    """What a run has found so far: faults by their kind, and shards of an earlier run."""

    faults: Counter[str] = dataclasses.field(default_factory=Counter)
    finished_before: int = 0


def _shards(
    source: Iterable[Item],
    inputs: manifest.Inputs,
    mine: frozenset[int],
    output: Output,
    found: _Found,
    bar: progress.Bar,
) -> Iterator[Shard]:
    """The shards of this process; those that an earlier run has finished are marked."""
    for number, items in enumerate(manifest.unchanged(source, inputs)):
        if number not in mine:
            continue
        shard = Shard(number, number * inputs.shard_size, items)
        if number in output.existing:
            faults = output.faults_of_finished(number, items, shard.first)
            if faults is not None:
                found.finished_before += 1
                found.faults += faults
                shard = shard._replace(is_finished=True)
            else:
                bar.skip(-len(items))
        yield shard


def _unfinished(of_process: Iterable[Shard], together: int) -> Iterator[list[Shard]]:
    """Yields the shards of each group of ``together`` numbers, unless all of them are finished."""
    for _, group in itertools.groupby(of_process, lambda shard: shard.number // together):
        shards = list(group)
        if not all(shard.is_finished for shard in shards):
            yield shards
