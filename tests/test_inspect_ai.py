"""The provider for Inspect, beside ``generate``."""

import asyncio
import importlib
import tomllib
from pathlib import Path

import anyio
import inspect_ai
import jax
import pytest
from inspect_ai.dataset import Sample
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    ContentImage,
    ContentReasoning,
    GenerateConfig,
    get_model,
)
from inspect_ai.scorer import includes
from inspect_ai.tool import ToolInfo

import decoding_jax
from decoding_jax import transforms
from decoding_jax.batches.open_rows import OpenRows
from decoding_jax.text.chat import ChatTemplate

pytestmark = pytest.mark.release

NAME = "translation-en-fr-draft"
TEXTS = ["I am here.", "Thank you.", "Where is the station?", "Yes.", "I am at home."]
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"


@pytest.fixture(scope="module", autouse=True)
def provider():
    """The module that the entry point of the package names."""
    found = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    importlib.import_module(found["project"]["entry-points"]["inspect_ai"]["decoding_jax"])


@pytest.fixture
def model():
    return get_model(f"decoding_jax/{NAME}", batch_size=2, max_input_length=16)


def alone(text, count=1, key=0, temperature=0.0, **settings):
    chain = transforms.chain(
        transforms.temperature(temperature), transforms.top_k(settings.pop("top_k", 10**6))
    )
    given = {"strategy": "sample", "num_samples": count, "max_new_tokens": 12, "transform": chain}
    loaded = decoding_jax.load(NAME)
    return decoding_jax.generate(*loaded, [text], key=jax.random.key(key), **given, **settings)[0]


def test_an_evaluation_has_the_greedy_texts(tmp_path):
    """More requests than rows, each scored against the text that ``generate`` gives."""
    want = [alone(text)[0] for text in TEXTS]
    samples = [Sample(text, target=one.text.strip()) for text, one in zip(TEXTS, want, strict=True)]
    (log,) = inspect_ai.eval(
        inspect_ai.Task(samples, scorer=includes()),
        model=f"decoding_jax/{NAME}",
        model_args={"batch_size": 2, "max_input_length": 16},
        temperature=0,
        max_tokens=12,
        display="none",
        log_dir=str(tmp_path),
    )
    assert log.status == "success"
    assert log.results.scores[0].metrics["accuracy"].value == 1
    for sample, one in zip(log.samples, want, strict=True):
        assert sample.output.completion == one.text
        assert sample.output.stop_reason == ("stop" if one.finished else "max_tokens")
        assert sample.output.usage.output_tokens == len(one.tokens)
        read = decoding_jax.load(NAME)[1].encode(sample.input)
        assert sample.output.usage.input_tokens == len(read)


def test_a_request_has_its_own_numbers(model):
    """Two samples by the seed, the temperature and top-k, cut before a stop string."""
    stops = ["?", "gare"]
    numbers = {"temperature": 1.5, "top_k": 20}
    config = GenerateConfig(
        seed=3, num_choices=2, max_tokens=12, stop_seqs=stops, **numbers, top_p=1.0
    )
    found = asyncio.run(model.generate(TEXTS[2], config=config))
    want = alone(TEXTS[2], count=2, key=3, stop_strings=stops, **numbers)
    cut = [min((one.text.split(stop)[0] for stop in stops), key=len) for one in want]
    assert [choice.message.text for choice in found.choices] == cut
    assert len(set(cut)) == 2
    assert any(stop in one.text for one in want for stop in stops)


def test_a_conversation_is_that_of_the_template(model, monkeypatch):
    monkeypatch.setattr(model.api.tokenizer, "chat", ChatTemplate({"default": TEMPLATE}))
    messages = [ChatMessageSystem(content="I am"), ChatMessageUser(content="here.")]
    config = GenerateConfig(temperature=0, max_tokens=12)
    found = asyncio.run(model.generate(messages, config=config))
    assert found.completion == alone(" ".join(m.text for m in messages))[0].text


def test_a_batch_that_has_failed_is_replaced(model, monkeypatch):
    """The next request has a batch of its own, also where no thread of the default ones is free."""
    config = GenerateConfig(temperature=0, max_tokens=12)

    async def found():
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 1
        with anyio.fail_after(60):
            async with limiter:
                return await model.api.generate(
                    [ChatMessageUser(content=TEXTS[0])], [], "none", config
                )

    with monkeypatch.context() as patch:
        patch.setattr(OpenRows, "insert", raising(MemoryError("of the device")))
        with pytest.raises(MemoryError, match="of the device"):
            asyncio.run(found())
    assert asyncio.run(found()).completion == alone(TEXTS[0])[0].text


def raising(error):
    def function(*_):
        raise error

    return function


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"config": GenerateConfig(max_tokens=0)}, "max_tokens: expected .*, got 0"),
        ({"config": GenerateConfig(num_choices=0)}, "num_choices: expected .*, got 0"),
        ({"config": GenerateConfig(top_k=0)}, "top_k: expected .*, got 0"),
        ({"config": GenerateConfig(logprobs=True)}, "logprobs: expected None, got True"),
        ({"tools": [ToolInfo(name="f", description="f")]}, "tools: expected none, got 1"),
        (
            {
                "input": [
                    ChatMessageUser(
                        content=[ContentImage(image="data:image/png;base64,iVBORw0KGgo=")]
                    )
                ]
            },
            "input: expected messages of text, got one of image",
        ),
        (
            {"input": [ChatMessageAssistant(content=[ContentReasoning(reasoning="a")])]},
            "input: expected messages of text, got one of reasoning",
        ),
        (
            {"input": [ChatMessageSystem(content="a"), ChatMessageUser(content="b")]},
            "input: expected one message of the user .*, got 2 messages",
        ),
    ],
)
def test_mistakes(model, given, said):
    with pytest.raises(ValueError, match=said):
        asyncio.run(model.generate(**{"input": "Yes.", **given}))
