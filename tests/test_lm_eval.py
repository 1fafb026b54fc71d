"""The model for lm-evaluation-harness, beside its own model ``hf`` on the same directories."""

import json

import lm_eval
import pytest
import tiers
import tokenizers
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from machine import need_devices
from tokenizers import decoders, models, pre_tokenizers, processors

from decoding_jax.lm_eval import DecodingJax

pytestmark = pytest.mark.exhaustive

LINES = ["once upon a time there was a small cat", "the cat and the dog sat on a mat"]
POSITIONS = 48
SHAPE = {"vocab_size": 300, "initializer_range": 0.3}
SMALL = {
    **SHAPE,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": POSITIONS,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


def network(family):
    import torch

    torch.manual_seed(0)
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    if family == "gpt2":
        shape = {"n_positions": POSITIONS, "n_embd": 16, "n_layer": 1, "n_head": 2}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SHAPE, **shape, **ids))
    if family == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    if family == "gemma2":
        caps = {"final_logit_softcapping": 5.0, "attn_logit_softcapping": 2.0}
        config = transformers.Gemma2Config(**SMALL, **caps, query_pre_attn_scalar=8)
        return transformers.Gemma2ForCausalLM(config)
    shape = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    ids = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    config = transformers.T5Config(vocab_size=300, **shape, **ids)
    return transformers.T5ForConditionalGeneration(config)


def tokenizer(family):
    """A trained tokenizer of bytes, which puts a token before or after a text."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    made.train_from_iterator(LINES * 4, trainer)
    form = {"gpt2": "$A", "t5": "$A </s>"}.get(family, "<s> $A")
    made.post_processor = processors.TemplateProcessing(
        single=form, special_tokens=[(token, i) for i, token in enumerate(special)]
    )
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token=None if family == "t5" else "<s>",
        eos_token="</s>",
        pad_token="<s>" if family == "t5" else "</s>",
        chat_template=None if family == "t5" else template,
    )


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    transformers.utils.logging.disable_progress_bar()
    root = tmp_path_factory.mktemp("checkpoints")
    for family in ("gpt2", "llama", "gemma2", "t5"):
        network(family).save_pretrained(root / family)
        tokenizer(family).save_pretrained(root / family)
    return root


CHOICES = {
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
    "doc_to_choice": "{{choices}}",
    "output_type": "multiple_choice",
}
CLOZE = {
    "doc_to_text": "{{question}} ",
    "doc_to_target": "{{choices[0]}}",
    "output_type": "loglikelihood",
}
ROLLING = {"doc_to_text": "", "doc_to_target": "{{text}}", "output_type": "loglikelihood_rolling"}
WRITING = {
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{choices[0]}}",
    "output_type": "generate_until",
    "generation_kwargs": {"until": ["\n", "cat", "~"], "max_gen_toks": 12, "do_sample": False},
}
METRICS = {
    "multiple_choice": "acc",
    "loglikelihood": "perplexity",
    "loglikelihood_rolling": "byte_perplexity",
    "generate_until": "exact_match",
}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """Four tasks on a local file, which the harness reads without a network."""
    folder = tmp_path_factory.mktemp("tasks")
    rows = [
        {
            "question": f"{line[: 6 + 5 * i]}",
            "choices": [f" {line[i : 9 + i]}", " a", "the mat and a small cat"],
            "answer": i % 3,
            "text": line * (1 + i),
        }
        for i in range(4)
        for line in LINES
    ]
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, task in (
        ("choices", CHOICES),
        ("cloze", CLOZE),
        ("rolling", ROLLING),
        ("w", WRITING),
    ):
        task = {
            "task": f"local_{name}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
            "metric_list": [{"metric": METRICS[task["output_type"]]}],
            **task,
        }
        (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML.
    return folder


def evaluated(lm, tasks, names=("choices", "cloze", "rolling", "w"), **settings):
    """The answers of a model to all requests of the tasks, in their order."""
    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = lm_eval.simple_evaluate(
        lm,
        tasks=[f"local_{name}" for name in names],
        task_manager=manager,
        log_samples=True,
        bootstrap_iters=0,
        verbosity="ERROR",
        **settings,
    )
    return [
        response
        for name in sorted(found["samples"])
        for sample in sorted(found["samples"][name], key=lambda sample: sample["doc_id"])
        for response in sample["resps"]
    ]


def compare(mine, theirs):
    """Log-likelihoods to 1e-4, and equal greedy flags and texts."""
    assert len(mine) == len(theirs) > 0
    for one, other in zip(mine, theirs, strict=True):
        one, other = one[0], other[0]
        if isinstance(other, str):
            assert one == other
        elif isinstance(other, float):
            assert one == pytest.approx(other, abs=1e-4)
        else:
            assert one[0] == pytest.approx(other[0], abs=1e-4)
            assert one[1] == other[1]


@pytest.mark.parametrize("family", tiers.values("gpt2", release=["llama", "gemma2", "t5"]))
def test_numbers_and_texts_are_those_of_hf(family, directories, tasks):
    """Texts of a seq2seq ``hf`` are longer: it adds the length of the inputs to their limit."""
    directory = str(directories / family)
    settings = {} if family == "t5" else {"max_length": POSITIONS}
    theirs = HFLM(directory, device="cpu", dtype="float32", batch_size=1 if family == "t5" else 4)
    mine = DecodingJax(directory, batch_size=4, dtype="float32", **settings)
    got, want = evaluated(mine, tasks), evaluated(theirs, tasks)
    if family == "t5":
        for one, other in zip(got, want, strict=True):
            if isinstance(one[0], str):
                assert other[0].startswith(one[0])
                other[0] = one[0]
    compare(got, want)


EDGES = [
    ("", "once upon a time"),
    ("", "<s>once upon"),
    ("<s>once", " upon"),
    ("once upon ", "a time"),
    ("the cat" * 30, " and the dog"),
    ("the cat", " and the dog" * 6),
]


def test_edges_are_those_of_hf(directories):
    """Empty contexts, spaces, beginning tokens in a text, and texts longer than the model.

    Two of them are one text, divided at two places, of which the logits cache of ``hf`` takes the
    scores of other tokens (0.4.13).
    """
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(EDGES)]
    directory = str(directories / "llama")
    theirs = HFLM(directory, device="cpu", dtype="float32", logits_cache=False)
    mine = DecodingJax(directory, dtype="float32").loglikelihood(requests)
    compare([[one] for one in mine], [[one] for one in theirs.loglikelihood(requests)])


@pytest.mark.release
def test_conversations_and_few_shots_are_those_of_hf(directories, tasks):
    directory = str(directories / "llama")
    settings = {"apply_chat_template": True, "num_fewshot": 1, "fewshot_as_multiturn": True}
    names = ("choices", "w")
    theirs = HFLM(directory, device="cpu", dtype="float32", max_length=200)
    mine = DecodingJax(directory, dtype="float32", max_length=200)
    assert mine.chat_template(True) == theirs.chat_template(True)
    history = [{"role": "user", "content": "a cat"}, {"role": "assistant", "content": "a"}]
    for add in (True, False):
        want = theirs.apply_chat_template(history, add_generation_prompt=add)
        assert mine.apply_chat_template(history, add_generation_prompt=add) == want
    short = {"max_length": POSITIONS}
    got = evaluated(DecodingJax(directory, dtype="float32", **short), tasks, names, **settings)
    want = evaluated(
        HFLM(directory, device="cpu", dtype="float32", **short), tasks, names, **settings
    )
    compare(got, want)


def test_samples_have_seeds(directories):
    """And requests of one text are samples of their own."""
    given = {"do_sample": True, "temperature": 0.9, "max_gen_toks": 8, "until": []}
    requests = [Instance("generate_until", {}, ("once upon", given), i) for i in range(3)]
    made = [
        DecodingJax(str(directories / "gpt2"), dtype="float32", seed=seed).generate_until(requests)
        for seed in (0, 0, 1)
    ]
    assert made[0] == made[1] != made[2]
    assert len(set(made[0])) > 1


@pytest.mark.release  # The command reads the list of all its tasks first, for a minute.
def test_the_command_of_the_harness(directories, tasks, tmp_path, capsys, monkeypatch):
    """Its cache of answers and its default device are taken; arguments of the model count."""
    from lm_eval.__main__ import cli_evaluate

    arguments = f"pretrained={directories / 'gpt2'},dtype=float32,batch_size=4"
    command = ["lm_eval", "run", "--model", "decoding_jax", "--model_args", arguments]
    command += ["--tasks", "local_cloze", "--include_path", str(tasks)]
    command += ["--use_cache", str(tmp_path / "cache"), "--output_path", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", command)
    cli_evaluate()
    assert "local_cloze" in capsys.readouterr().out
    assert list(tmp_path.glob("cache*"))


@pytest.mark.release
@pytest.mark.parametrize("mesh", [{"data": 2, "model": 1}, "data:1+model:2"], ids=str)
def test_a_mesh_of_devices(mesh, directories):
    need_devices(2)
    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(EDGES)]
    given = {"pretrained": str(directories / "llama"), "dtype": "float32", "batch_size": 4}
    alone = DecodingJax(**given).loglikelihood(requests)
    several = DecodingJax(**given, mesh=mesh).loglikelihood(requests)
    compare([[one] for one in several], [[one] for one in alone])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"batch_size": "auto"}, "batch_size: expected an int of 1 or more, got 'auto'"),
        ({"mesh": "data"}, 'mesh: expected axes and sizes such as "data:2\\+model:4", got'),
        ({"revision": "main"}, "revision: load expected"),
    ],
)
def test_mistakes(settings, said, directories):
    with pytest.raises(ValueError, match=said):
        DecodingJax(str(directories / "gpt2"), **settings)
