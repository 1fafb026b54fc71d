"""Batches of columns are decoded as the job decodes their inputs, by engines too."""

import functools
import os
import signal
from pathlib import Path

import jax
import numpy as np
import pytest
from infer_fakes import Digits

import decoding_jax
from decoding_jax import Stop, infer
from decoding_jax.infer import BatchDecoder
from decoding_jax.testing import TableLM

TEXTS = ["1 2 3", "4", "5 6 1 2", "", "2 2", "6 5 4 3 2 1", "3 3 3", "1 x", "9 9 1 1 1 1 1 1 1 1"]
STRATEGY = functools.partial(decoding_jax.sample, num_samples=2, max_new_tokens=4)
SETTINGS = {"seed": 3, "batch_size": 2, "max_input_length": 8}
SETTINGS["stop"] = Stop(eos_ids=(0,))


def make_model():
    return TableLM.random(jax.random.key(0), 10, sharpness=2.0), Digits()


def of_job():
    """The outputs and the error of each input, as the job gives them."""
    found = []
    items = [infer.Item(text) for text in TEXTS]
    infer.run(make_model(), items, STRATEGY, report=found.append, **SETTINGS)
    return [(record["outputs"], record.get("error")) for record in found]


def columns(index):
    return {"inputs": [TEXTS[i] for i in index], "index": index, "note": list(map(str, index))}


@pytest.mark.exhaustive
def test_a_batch_is_decoded_as_in_the_job():
    expected = of_job()
    decoder = BatchDecoder(make_model, STRATEGY, **SETTINGS)
    for index in ([5, 0, 3, 8, 1], [7, 2], [6, 4]):
        batch = decoder({k: np.array(v) for k, v in columns(index).items()})
        assert batch["note"].tolist() == [str(i) for i in index]
        made = zip(batch["outputs"], batch["error"], strict=True)
        assert list(made) == [expected[i] for i in index]


@pytest.mark.release
def test_outputs_have_the_figures_that_the_job_gives():
    wanted = {"with_num_tokens": True, "with_token_log_probs": True, "with_top_tokens": 2}
    expected = []
    items = [infer.Item(text) for text in TEXTS[:4]]
    infer.run(make_model(), items, STRATEGY, report=expected.append, **SETTINGS, **wanted)
    decoder = BatchDecoder(make_model, STRATEGY, **SETTINGS, **wanted)
    made = decoder(columns([2, 0, 3, 1]))["outputs"]
    for i, outputs in zip([2, 0, 3, 1], made, strict=True):
        assert outputs == expected[i]["outputs"]
        for output in outputs:
            assert output["num_tokens"] == len(output["top_tokens"]) > 0
            assert sum(output["token_log_probs"]) == pytest.approx(output["log_prob"], abs=1e-5)
            assert "tokens" not in output


@pytest.mark.release
def test_outputs_have_the_info_of_the_strategy():
    drafts = functools.partial(
        decoding_jax.speculative_sample, num_draft_tokens=2, max_new_tokens=4
    )
    decoder = BatchDecoder(
        make_model, drafts, **SETTINGS, drafter=make_model()[0], with_info=True, with_tokens=True
    )
    for (output,) in decoder(columns([0, 1]))["outputs"]:
        assert output["info"]["emitted"] == len(output["tokens"]) - 1


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"index": [0]}, "batch: expected a column 'inputs', got ['index']"),
        (
            {"index": [-1], "inputs": ["1"]},
            "batch: expected indices that are whole numbers from 0 to 4294967295, got -1",
        ),
        ({"index": [0], "inputs": ["1"], "error": [1]}, "batch: expected no column 'error'"),
        (
            {"index": [0, 1], "inputs": ["1"]},
            "batch: expected as many indices as texts, got 2 for 1",
        ),
    ],
)
def test_a_wrong_batch_is_one_line(batch, message):
    decoder = BatchDecoder(make_model(), STRATEGY, **SETTINGS)
    with pytest.raises(ValueError) as error:
        decoder(batch)
    assert message in str(error.value)


def test_a_table_of_arrow_has_columns_of_one_type():
    """Of batches without a fault, and of nothing but faults."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (extra parquet)")
    decoder = BatchDecoder(make_model(), STRATEGY, **SETTINGS, with_num_tokens=True)
    found = [decoder(arrow.table(columns(index))) for index in ([0, 1], [3], [2, 3])]
    assert len({str(table.schema) for table in found}) == 1
    joined = arrow.concat_tables(found)
    assert joined["error"].to_pylist() == [None, None, "empty: no tokens", None, "empty: no tokens"]
    of_arrays = decoder(columns([0, 1]))
    assert joined["outputs"].to_pylist()[:2] == list(of_arrays["outputs"])


@pytest.mark.exhaustive
def test_a_blank_text_of_an_encoder_decoder_is_a_fault():
    """As in the job, though the tokenizer adds an end token to it; nothing is decoded."""
    greedy = functools.partial(decoding_jax.greedy, max_new_tokens=2)
    decoder = BatchDecoder(
        decoding_jax.load("translation-en-fr-draft"), greedy, batch_size=2, max_input_length=8
    )
    found = decoder({"inputs": ["", "  ", "\n"], "index": [0, 1, 2]})
    assert found["error"].tolist() == ["empty: no tokens"] * 3


def test_a_child_of_fork_is_refused(monkeypatch):
    decoder = BatchDecoder(make_model(), STRATEGY, **SETTINGS)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(ValueError, match="expected a call in the process that made it, got one in"):
        decoder(columns([0]))


def test_settings_of_single_inputs_are_refused():
    changed = functools.partial(
        STRATEGY, transform=decoding_jax.transforms.temperature(np.ones(3, np.float32))
    )
    with pytest.raises(
        ValueError,
        match=r"strategy: expected .* got one value for each input in transform",
    ):
        BatchDecoder(make_model(), changed, **SETTINGS)


def test_a_stop_bound_to_the_strategy_is_refused():
    bound = functools.partial(STRATEGY, stop=Stop(eos_ids=(1,)))
    with pytest.raises(ValueError, match="strategy: expected one without a stop"):
        BatchDecoder(make_model(), bound, **SETTINGS)


class Fragile(BatchDecoder):
    """A decoder whose process is killed once, when it first meets an input."""

    def __init__(self, mark, *args, **settings):
        super().__init__(*args, **settings)
        self._mark = Path(mark)

    def __call__(self, batch):
        if 4 in batch["index"] and not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # Ray emits warnings about its own settings.
def test_ray_decodes_every_input_once_though_a_worker_is_killed(tmp_path):
    import ray

    paths = os.pathsep.join(str(p) for p in (Path(__file__).parent, Path.cwd()))
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": paths}})
    try:
        items = [{"index": i, "inputs": text} for i, text in enumerate(TEXTS)]
        decoded = (
            ray.data.from_items(items, override_num_blocks=4)
            .map_batches(
                Fragile,
                fn_constructor_args=(str(tmp_path / "mark"), make_model, STRATEGY),
                fn_constructor_kwargs=SETTINGS,
                batch_size=2,
                compute=ray.data.ActorPoolStrategy(size=2),
            )
            .take_all()
        )
    finally:
        ray.shutdown()
    assert (tmp_path / "mark").exists()
    assert sorted(row["index"] for row in decoded) == list(range(len(TEXTS)))
    by_index = sorted(decoded, key=lambda row: row["index"])
    for row, (outputs, error) in zip(by_index, of_job(), strict=True):
        assert row["error"] == error
        assert [o["text"] for o in row["outputs"]] == [o["text"] for o in outputs]
        # The workers compile with all optimizations, which this process does not.
        scores = [[o["score"] for o in made] for made in (row["outputs"], outputs)]
        np.testing.assert_allclose(*scores, rtol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_beam_decodes_every_input_once():
    import apache_beam as beam
    from apache_beam.ml.inference.base import RunInference
    from apache_beam.testing.util import assert_that

    from decoding_jax.infer.beam import DecodingHandler

    expected = of_job()

    def check(rows):
        by_index = sorted(rows, key=lambda row: row["index"])
        assert [row["index"] for row in by_index] == list(range(len(TEXTS)))
        assert [(row["outputs"], row["error"]) for row in by_index] == expected

    make = functools.partial(BatchDecoder, make_model, STRATEGY, **SETTINGS)
    with beam.Pipeline(runner="DirectRunner") as pipeline:
        items = [{"index": i, "inputs": text} for i, text in enumerate(TEXTS)]
        handler = DecodingHandler(make, min_batch_size=2, max_batch_size=4)
        decoded = pipeline | beam.Create(items) | RunInference(handler)
        assert_that(decoded, check)
