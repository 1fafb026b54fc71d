"""Runs a batch job, which writes one record for every input, in the order of the inputs."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from decoding_jax.base import DecodeOutput, Stop
from decoding_jax.infer import buckets as bucketing
from decoding_jax.infer import gin_names, lock, manifest, progress, records, summaries
from decoding_jax.infer.arguments import (
    check_counts,
    check_flags,
    check_job,
    check_seed,
    with_tokenizer,
)
from decoding_jax.infer.decoder import Decoder
from decoding_jax.infer.describe import describe, digest
from decoding_jax.infer.input_encoder import InputEncoder
from decoding_jax.infer.item_decoder import ItemDecoder
from decoding_jax.infer.output import Output
from decoding_jax.infer.processes import processes_of
from decoding_jax.infer.records import Record
from decoding_jax.infer.scoring import make_scorer
from decoding_jax.infer.shard_decoder import Shard, decode_shards
from decoding_jax.infer.sources import Item
from decoding_jax.infer.summaries import Summary
from decoding_jax.storage import StoragePath, storage_path
from decoding_jax.text import Tokenizer, with_end_tokens
from decoding_jax.text.sizes import shared_size
from decoding_jax.text.stop_strings import shared_strings, strings_of_inputs

_LOGGER = logging.getLogger(__name__)


def run(
    model: tuple[Any, Tokenizer],
    source: Iterable[Item],
    strategy: Callable[..., DecodeOutput],
    output_dir: str | StoragePath | None = None,
    report: Callable[[Record], None] | None = None,
    seed: int = 0,
    batch_size: int = 32,
    shard_size: int = 1024,
    max_input_length: int = 512,
    truncate: bool = False,
    buckets: Sequence[int] | None = None,
    stop: Stop | None = None,
    with_tokens: bool = False,
    with_num_tokens: bool = False,
    with_info: bool = False,
    with_token_log_probs: bool = False,
    with_token_entropies: bool = False,
    with_top_tokens: int = 0,
    name: str = "decodes",
    drafter: Any = None,
    lock_seconds: float = lock.LEASE,
    refill: bool = True,
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
      strategy: a strategy such as ``decoding_jax.sample`` with its settings bound, by gin or
        ``functools.partial``. It is called with ``(model, prompt, stop=...)``, and also with one
        key for each row if it takes keys. A number in its settings, in ``stop`` or in ``drafter``
        may be an array with one value for each input, in their order (see ``decoding_jax.rows``).
      output_dir: the directory for ``NAME-00000-of-00012.jsonl``, ``job.json`` and
        ``summary.json``, or its URL, such as ``gs://bucket/out``. It must be empty or belong to
        this job.
      report: a function such as a ``Printer``. It is called with each record of a shard after the
        shard is finished.
      seed: the seed of the job; the key of input i is ``fold_in(key(seed), i)``.
      batch_size: the number of inputs that are decoded together. It is rounded up to a multiple of
        the number of devices.
      shard_size: the number of inputs of a shard. Where batches are refilled, as many shards as
        have 32 inputs for each row share a batch; they are decoded again as a whole, unless all of
        them are finished. Otherwise, shards are decoded one after another.
      max_input_length: the maximum number of tokens of an input, without a shared prefix. A longer
        input is recorded as a fault, or cut.
      truncate: whether longer inputs are cut, as ``decoding_jax.generate`` cuts texts: prompts keep
        their end, and the inputs of an encoder-decoder their beginning. The record has the number
        of tokens that were cut off, ``num_cut``.
      buckets: the widths that inputs are padded to. The default is the powers of two from 16.
      stop: the stop conditions. The default is to stop at the tokenizer's end tokens, which are
        also used if ``stop.eos_ids`` is None. Stop strings hold for all inputs but those with
        ``Item.stop_strings`` of their own.
      with_tokens: whether records contain token ids.
      with_num_tokens: whether each output has the number of its tokens, the end token included.
      with_info: whether each output has the ``info`` of the strategy, such as the drafted and
        accepted tokens of ``speculative_sample``, without what is about a whole batch.
      with_token_log_probs: whether records contain the log-probability of each token, which is
        computed by a pass of its own over each shard.
      with_token_entropies: whether records contain the entropy of the distribution that each token
        is from, which is computed by the same pass.
      with_top_tokens: how many of the most probable tokens at the place of each token records
        contain, with their log-probabilities, which are computed by the same pass.
      name: the prefix of the names of the shards.
      drafter: the drafter, for a strategy such as ``decoding_jax.speculative_sample``: a model, a
        model and its tokenizer, or a drafter, as for ``decoding_jax.generate``.
      lock_seconds: in a bucket, the time after which the lock of a job that does not renew it
        lapses. A job that is started again after it was killed waits as long. On a disk the lock
        ends with its process.
      refill: whether an input takes the place of one that has ended while the other rows of the
        batch go on. This needs a strategy that is made by a decorator of ``decoding_jax.loop``,
        with ``row_done``, and a model that is ``ragged``; without them, batches last as long as
        their longest row, and the job logs why.

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
    check_job(model, source, strategy, output_dir, buckets, stop)
    net, tokenizer = model
    processes = processes_of(net)
    directory = None if output_dir is None else storage_path("output_dir", output_dir)
    if output_dir is None and report is None:
        raise ValueError("output_dir: got None, and no report either; takes at least one of them")
    check_flags(
        truncate=truncate,
        with_tokens=with_tokens,
        with_num_tokens=with_num_tokens,
        with_info=with_info,
        with_token_log_probs=with_token_log_probs,
        with_token_entropies=with_token_entropies,
        refill=refill,
    )
    check_counts(batch_size=batch_size, shard_size=shard_size, max_input_length=max_input_length)
    check_seed(seed)
    stop = with_end_tokens(stop, tokenizer)
    widths = bucketing.widths(max_input_length, buckets, shared_size(net))
    decoder = Decoder(
        net,
        tokenizer,
        with_tokenizer(strategy, tokenizer),
        stop=shared_strings(stop, tokenizer, net),
        seed=seed,
        batch_size=batch_size,
        drafter=drafter,
        refill=refill,
        with_info=with_info,
    )
    decoder.check(widths[-1])
    together = -(-(decoder.together or 1) // shard_size)  # shards
    inputs = processes.each(lambda: manifest.survey(source, shard_size))
    if inputs.count == 0:
        raise ValueError("source: got no inputs; takes at least one")
    decoder.expect(inputs.count, strings_of_inputs(stop, inputs.stop_strings, tokenizer, net))
    encode = InputEncoder(net, tokenizer, widths[-1], truncate=truncate)
    scorer = make_scorer(
        net,
        encode,
        batch_size,
        widths,
        with_token_log_probs=with_token_log_probs,
        with_token_entropies=with_token_entropies,
        with_top_tokens=with_top_tokens,
    )
    settings: dict[str, Any] = {"inputs": {"count": inputs.count, "sha256": inputs.digest}}
    if inputs.files:
        settings["files"] = inputs.files
    if directory is not None:
        settings = {
            **manifest.environment(),
            **settings,
            "model": digest(net),
            "tokenizer": manifest.tokenizer_digest(tokenizer),
            "strategy": describe(strategy),
            "gin": gin_names.settings(),
            "seed": seed,
            "batch_size": decoder.batch_size,
            "group_size": decoder.group_size,
            "shards_together": together,
            "shard_size": shard_size,
            "buckets": widths,
            "stop": describe(stop),
            "with_tokens": with_tokens,
            "name": name,
        }
        settings |= {} if scorer is None else scorer.settings
        settings |= {"truncate": True} if truncate else {}
        settings |= {"with_info": True} if with_info else {}
        settings |= {"with_num_tokens": True} if with_num_tokens else {}
        if drafter is not None:
            settings["drafter"] = digest(drafter[0] if isinstance(drafter, tuple) else drafter)
    processes.check_same(settings)
    item_decoder = ItemDecoder(
        decoder,
        encode,
        widths,
        seed=seed,
        with_tokens=with_tokens or scorer is not None,
        with_num_tokens=with_num_tokens,
    )
    faults: Counter[str] = Counter()
    finished_before = 0
    assigned = processes.assigned(len(inputs.of_shards), together)
    output = None if directory is None else Output(directory, name, inputs, processes, assigned)
    num_inputs = sum(inputs.size_of(shard) for shard in assigned)
    with contextlib.ExitStack() as stack:
        if output is not None:
            stack.enter_context(output.claimed(settings, lock_seconds))
        bar = progress.Bar(num_inputs, compiling=decoder.compiling, shown=processes.writes)
        stack.enter_context(contextlib.closing(bar))
        existing = frozenset() if output is None else output.existing
        bar.skip(sum(inputs.size_of(shard) for shard in existing))

        def shards_of_process() -> Iterator[Shard]:
            nonlocal finished_before, faults
            mine = frozenset(assigned)
            for number, items in enumerate(manifest.unchanged(source, inputs)):
                if number not in mine:
                    continue
                shard = Shard(number, number * shard_size, items)
                if output is not None and number in existing:
                    found = output.faults_of_finished(number, items, shard.first)
                    if found is not None:
                        finished_before += 1
                        faults += found
                        yield shard._replace(is_finished=True)
                        continue
                    bar.skip(-len(items))
                yield shard

        for window in _unfinished(shards_of_process(), together):
            with bar.working:
                for shard, of_shard in decode_shards(item_decoder, window, bar):
                    if scorer is not None:
                        of_shard = scorer.add(of_shard, with_tokens=with_tokens)
                    if output is not None:
                        output.write(shard.number, of_shard)
                    faults += records.count_faults(of_shard)
                    if report is not None and processes.writes:
                        for record in of_shard:
                            report(record)
        summary = Summary(
            inputs=num_inputs,
            faults=dict(faults),
            finished_before=finished_before,
            batches=decoder.batches,
            compilations=decoder.compilations,
            tokens=decoder.tokens,
            seconds=max(0.0, bar.working.seconds() - decoder.compiling.seconds()),
            compilation_seconds=decoder.compiling.seconds(),
            waste=decoder.row_steps.waste,
        )
        if output is not None:
            output.write_summary(summary)
    _LOGGER.info("%s", summaries.to_text(summary, directory))
    if (faults_found := summaries.fault_line(summary)) is not None:
        _LOGGER.warning("%s", faults_found)
    return summary


def _unfinished(of_process: Iterable[Shard], together: int) -> Iterator[list[Shard]]:
    """Yields shards that are decoded together, unless all of them are finished.

    Args:
      of_process: the shards of this process.
      together: shards whose numbers have the same quotient by this number are decoded together.
    """
    for _, group in itertools.groupby(of_process, lambda shard: shard.number // together):
        shards = list(group)
        if not all(shard.is_finished for shard in shards):
            yield shards
