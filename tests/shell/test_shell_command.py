"""``python -m decoding_jax`` on a table model whose texts are digits."""

import importlib.util
import inspect
import io
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiers

import decoding_jax
from decoding_jax.adapters import from_logits
from decoding_jax.ops.jit import keep_programs
from decoding_jax.registry import DEFAULTS, STRATEGIES, defaults_of
from decoding_jax.shell import command
from decoding_jax.shell.options import settings_of
from decoding_jax.testing import TableLM
from decoding_jax.text import limits
from decoding_jax.text.generation_config import DirectoryConfig
from decoding_jax.text.token_texts import concatenated

V = 7
NORMAL = np.random.default_rng(0).normal
TABLE = TableLM(
    jnp.asarray(NORMAL(size=(11, V + 1, V, V)), jnp.float32),
    jnp.asarray(NORMAL(size=(11, V, 4)), jnp.float32),
)


class Digits:
    """A tokenizer whose tokens are digits; 0 is the end token."""

    eos_ids = (0,)

    def encode(self, text):
        return self.pieces(text)

    def pieces(self, text):
        return [int(c) for c in text]

    def decode(self, ids):
        return "".join(str(i) for i in ids if i)

    def token_texts(self, size):
        return concatenated([str(i).encode() if i else b"" for i in range(size)])


@pytest.fixture(autouse=True)
def table(monkeypatch):
    monkeypatch.setattr(command, "load", lambda *args, **kwargs: (TABLE, Digits()))


def run(capsys, *argv):
    status = command.main(["12", *argv, "--max_new_tokens", "5"])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.exhaustive
def test_one_completion_is_printed_once_as_it_grows(capsys):
    status, out, err = run(capsys)
    assert (status, err) == (0, "")
    [[want]] = decoding_jax.generate(TABLE, Digits(), ["12"], max_new_tokens=5)
    ending = "" if want.finished else ", not finished"
    assert out == f"[1] 12\n{want.text}\n    log-prob {want.log_prob:.2f}{ending}\n\n"


@pytest.mark.exhaustive
def test_a_page_is_written_beside_what_is_printed(capsys, tmp_path):
    """With all that the strategy records, and for one text that grows as for several."""
    file = str(tmp_path / "page.html")
    for argv, view in (
        (["--strategy", "sample", "--num_samples", "2"], "expected"),
        (["--strategy", "arithmetic_sample", "--num_samples", "2"], "codes"),
        ([], "probability"),
    ):
        want = run(capsys, *argv)[1]
        assert run(capsys, *argv, "--html", file)[1] == want
        assert view in (tmp_path / "page.html").read_text("utf-8").partition("</style>")[2]


@pytest.mark.release
def test_beams_are_not_counted_as_draws(capsys):
    assert "drawn" not in run(capsys, "--strategy", "beam_search")[1]
    assert " drawn " in run(capsys, "--strategy", "sample", "--num_samples", "2")[1]


@pytest.mark.exhaustive
def test_standard_input_gives_texts_and_json_comes_out(capsys, monkeypatch):
    """One line for each text; ``-`` stands for the lines of a pipe, which needs no ``-`` alone."""
    want = decoding_jax.generate(TABLE, Digits(), ["12", "3"], max_new_tokens=5)
    for argv, texts in ([], ["12", "3"]), (["-", "12"], ["12", "3", "12"]):
        monkeypatch.setattr("sys.stdin", io.StringIO("12\r\n3\n"))
        assert command.main([*argv, "--json", "--max_new_tokens", "5"]) == 0
        records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [record["inputs"] for record in records] == texts
        for record, [completion] in zip(records, want, strict=False):
            [output] = record["outputs"]
            assert list(output) == ["rank", "text", "log_prob", "score", "finished"]
            assert output["text"] == completion.text
            assert output["log_prob"] == pytest.approx(completion.log_prob)


def test_blank_lines_and_a_byte_order_mark_are_left_out(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeff12\n\n  \n3\n"))
    assert command.main(["--json", "--max_new_tokens", "5"]) == 0
    out, err = capsys.readouterr()
    assert [json.loads(line)["inputs"] for line in out.splitlines()] == ["12", "3"]
    assert "decoding_jax: 2 blank lines are left out" in err


class Accented(Digits):
    def decode(self, ids):
        return "\u00e9" * len(ids)


def test_an_output_that_has_few_characters_gets_the_others_as_escapes(monkeypatch):
    monkeypatch.setattr(command, "load", lambda *args, **kwargs: (TABLE, Accented()))
    for options, want in ([], r"\xe9\xe9"), (["--json"], r"\u00e9\u00e9"):
        out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        monkeypatch.setattr("sys.stdout", out)
        assert command.main(["12", *options, "--max_new_tokens", "5"]) == 0
        out.flush()
        assert want in out.buffer.getvalue().decode("ascii")
        assert out.errors == "strict"


@pytest.mark.release
@pytest.mark.parametrize(
    ("name", "platform"), [("decoding_jax", "cuda"), ("decoding_jax.infer", "nowhere")]
)
def test_a_platform_that_is_not_there_is_one_line(name, platform):
    """Before JAX has a platform, so in a process of its own; JAX knows the name, or does not."""
    if platform == "cuda" and importlib.util.find_spec("jax_cuda12_plugin"):
        pytest.skip("the plugin for CUDA is installed")
    arguments = ["Hi"] if name == "decoding_jax" else ["--gin_file=runs/demo.gin"]
    done = subprocess.run(
        [sys.executable, "-m", name, *arguments],
        env={**os.environ, "JAX_PLATFORMS": platform},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"{name}: JAX_PLATFORMS: expected a platform that JAX finds here")
    assert done.stderr.count("\n") == 1


@pytest.mark.release
def test_stop_strings_and_lookups(capsys, tmp_path):
    settings = {"max_new_tokens": 5, "stop_strings": ["2", "5"]}
    [[want]] = decoding_jax.generate(TABLE, Digits(), ["12"], **settings)
    argv = ["--stop_strings", "2", "--stop_strings", "5"]
    (tmp_path / "corpus").write_text("123\n231\n")
    speculate = ["--strategy", "speculative_sample", "--verifier", "greedy", "--drafter"]
    lookups = ["prompt_lookup", f"suffix:{tmp_path / 'corpus'}"]
    for more in ([], *([*speculate, lookup] for lookup in lookups)):
        assert run(capsys, *argv, *more)[1].splitlines()[1] == want.text


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--temperature", "5"], "temperature: no effect with greedy, which draws nothing; sample"),
        (["--top_k", "3", "--top_p", "0.5"], "top_k, top_p: no effect with greedy"),
        (["--seed", "3"], "seed: greedy draws nothing and does not use it"),
    ],
)
def test_what_has_no_effect_is_said(argv, line, capsys):
    status, _, err = run(capsys, *argv)
    assert status == 0
    assert err.startswith(f"decoding_jax: {line}")
    assert err.count("\n") == 1


def test_a_text_that_the_default_length_cuts_is_said(capsys, monkeypatch):
    monkeypatch.setattr(limits, "DEFAULT_LENGTH", 1)
    assert command.main(["12"]) == 0
    line = "decoding_jax: max_new_tokens: got none, and the default of 1 cut 1 of 1 texts; a larger"
    assert capsys.readouterr().err.startswith(line)
    assert command.main(["12", "--max_new_tokens", "1"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.exhaustive
def test_a_text_that_is_too_long_is_named_or_cut(capsys, monkeypatch):
    short = from_logits(lambda tokens, length: jax.nn.one_hot(tokens, V), V, max_positions=9)
    monkeypatch.setattr(command, "load", lambda *args, **kwargs: (short, Digits()))
    argv = ["1" * 12, "--max_new_tokens", "3"]
    assert command.main(argv) == 1
    line = "decoding_jax: texts: expected at most 9 tokens, the positions of the model, got 12"
    assert capsys.readouterr().err.startswith(line)
    assert command.main([*argv, "--truncate"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "111"


def test_the_shell_has_the_defaults_of_python(capsys, monkeypatch):
    """What a strategy is called with when its name alone is given, by both doors."""
    for name in STRATEGIES:
        signature = inspect.signature(STRATEGIES[name].function).parameters
        for setting, value in settings_of(name).items():
            default = signature[setting].default
            assert value == (DEFAULTS[setting] if default is inspect.Parameter.empty else default)
        assert settings_of(name).items() >= defaults_of(name).items()
    assert settings_of("sample")["num_samples"] == 1
    rows = decoding_jax.generate(TABLE, Digits(), ["12"], strategy="beam_search", max_new_tokens=5)
    assert len(rows[0]) == DEFAULTS["beam_size"] == 4
    records = run(capsys, "--strategy", "beam_search", "--json")[1]
    assert [o["text"] for o in json.loads(records)["outputs"]] == [c.text for c in rows[0]]


EXHAUSTIVE = ("speculative_sample", "constrained_beam_search")  # They need more than a name.
RELEASE = (
    *("arithmetic_sample", "beam_sample", "best_first_search", "best_k_search"),
    *("conditional_sample", "contrastive_search", "diverse_beam_search", "greedy"),
    *("metropolis_sample", "power_sample", "smc_sample", "stochastic_beam_search"),
)


@pytest.mark.release
@pytest.mark.parametrize(
    "name",
    tiers.of_table(STRATEGIES, exhaustive=EXHAUSTIVE, release=RELEASE),
)
def test_every_strategy_runs_with_its_name_alone(name, capsys):
    needs = {
        "speculative_sample": ["--drafter", "DIR"],
        "constrained_beam_search": ["--phrase", "3"],
    }
    status, out, err = run(capsys, "--strategy", name, *needs.get(name, ()))
    assert (status, err) == (0, "")
    assert out.startswith("[1] 12\n")
    assert "log-prob" in out


def test_settings_transforms_and_seed_reach_the_strategy(capsys, monkeypatch):
    seen = {}

    def generate(model, tokenizer, texts, **settings):
        seen.update(settings)
        return [[] for _ in texts]

    monkeypatch.setattr(command, "generate", generate)
    argv = ["--strategy", "arithmetic_sample", "--points", "stratified", "--num_samples", "3"]
    argv += ["--top_p", "0.9", "--temperature", "0.5", "--seed", "7"]
    assert run(capsys, *argv)[0] == 0
    assert jnp.array_equal(jax.random.key_data(seen.pop("key")), jnp.array([0, 7], jnp.uint32))
    names = [type(transform).__name__ for transform in seen.pop("transform").transforms]
    assert names == ["TopP", "Temperature"]
    want = {"strategy": "arithmetic_sample", "points": "stratified", "num_samples": 3}
    want |= {"order": "id", "after": "independent", "max_texts": None}
    assert seen == want | {"max_new_tokens": 5}


def test_the_list_names_every_strategy_and_setting(capsys):
    assert command.main(["--list"]) == 0
    listed = capsys.readouterr().out
    for name in STRATEGIES:
        (line,) = [line for line in listed.splitlines() if line.startswith(f"{name} ")]
        assert all(f"--{setting} " in line for setting in settings_of(name))
    assert command.main(["--list", "--strategy=beam_search"]) == 0
    assert "length_penalty:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        ([], 2, "decoding_jax: texts: expected one or more, such as"),
        (["1", "--beams", "3"], 2, "decoding_jax: unrecognized arguments: --beams 3; --help"),
        (["1", "--beam_size", "3"], 1, "decoding_jax: beam_size: greedy expected no such"),
        (["1", "--strategy", "bean_search"], 1, "decoding_jax: strategy: expected one of arith"),
        (["--list", "--strategy", "b"], 1, "decoding_jax: strategy: expected one of"),
        (
            ["1", "--strategy", "speculative_sample"],
            2,
            "decoding_jax: --drafter: expected a direct",
        ),
        (
            ["1", "--strategy", "constrained_beam_search"],
            2,
            "decoding_jax: --phrase: expected one or",
        ),
        (["1", "--phrase", "2"], 1, "decoding_jax: constraints: greedy expected"),
        (["1", "--drafter", "DIR"], 1, "decoding_jax: drafter: expected none for this strategy, g"),
        (["1", "--max_new_tokens", "few"], 1, "decoding_jax: max_new_tokens: expected an int of"),
    ],
)
def test_a_mistake_is_one_line(argv, status, message, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert command.main(argv) == status
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1


def test_programs_are_kept_unless_the_user_says_where(monkeypatch, tmp_path):
    before = jax.config.jax_compilation_cache_dir
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        keep_programs()
        assert jax.config.jax_compilation_cache_dir == before
        jax.config.update("jax_compilation_cache_dir", None)
        keep_programs()
        want = str(tmp_path / "decoding_jax" / "programs")
        assert jax.config.jax_compilation_cache_dir == want
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.exhaustive
def test_the_file_of_the_directory_chooses_the_strategy(capsys, monkeypatch):
    tokenizer = Digits()
    tokenizer.generation_config = DirectoryConfig(
        "digits/generation_config.json", '{"num_beams": 3, "num_return_sequences": 2}'
    )
    monkeypatch.setattr(command, "load", lambda *args, **kwargs: (TABLE, tokenizer))
    status, out, err = run(capsys)
    assert status == 0
    assert err == (
        "decoding_jax: GenerationConfig(num_beams=3, num_return_sequences=2), from "
        "digits/generation_config.json; --strategy chooses another\n"
    )
    assert [line.split()[0] for line in out.splitlines() if line][2:4] == ["1", "2"]
    assert "seed: beam_search draws nothing" in run(capsys, "--seed", "1")[2]
    assert run(capsys, "--strategy", "greedy")[2] == ""
    status, _, err = run(capsys, "--beam_size", "2")
    assert (status, err) == (
        2,
        "decoding_jax: --beam_size: needs --strategy, since digits/generation_config.json chooses "
        "one\n",
    )
