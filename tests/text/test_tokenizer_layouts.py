"""Every layout of tokenizer files beside ``transformers``: ids and texts, token by token."""

import json
import random
import shutil
from pathlib import Path

import pytest
import sentencepiece
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from decoding_jax.text import TokenizerError, load_tokenizer, stop_strings
from decoding_jax.text.tokenizer_settings import ADDED, CONFIG, TOKENS_MAP

DATA = Path(__file__).parents[3] / "shared" / "data"
GPT2 = [("gpt2_vocab.json", "vocab.json"), ("gpt2_merges.txt", "merges.txt")]
LINES = ["the cat sat on the mat", "un chat, deux chats", "café noir ### the dog ate"]
TOKENS = {
    "<tool>": {"special": False},
    "</tool>": {"special": False, "normalized": True},
    "<|end|>": {"special": True},
    "<mask>": {"special": True, "lstrip": True},
    "<sep>": {"special": True, "rstrip": True},
}
PARTS = [
    *(
        "the",
        "cat",
        " the",
        "un chat",
        "deux",
        "é",
        "e\u0301",
        "日本",
        "中文字",
        "😀",
        "👩‍👩‍👧",
        "###",
        "dog's",
    ),
    *(" ", "  ", "\n", "\n\n", "\t", "   ", "1234", "I'LL", "ﬁ", ",", ".", "?", "▁", "​", "x" * 30),
    *(
        "<s>",
        "</s>",
        "<unk>",
        "<pad>",
        "<|endoftext|>",
        "<extra_id_0>",
        "<extra_id_7>",
        "<extra_id_99>",
    ),
    *("<own>", *TOKENS),
    *(" .", " , ", " ' ", " n't", " 's", "n't"),
]


def flags(content, **given):
    kept = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized", "special"), False)
    return {"content": content, **kept, **given}


def write(directory, **files):
    """Writes files, each an object as JSON."""
    for name, value in files.items():
        (directory / f"{name}.json").write_text(json.dumps(value))


def json_tokenizer(directory):
    """A tokenizer.json with truncation and padding, whose inputs begin with a start token."""
    names = ["<unk>", "<s>", "</s>", "<pad>"]
    made = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=names,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    made.train_from_iterator(LINES, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    made.normalizer = normalizers.NFC()
    made.enable_truncation(4)
    made.enable_padding(length=12, pad_id=3, pad_token="<pad>")
    made.save(str(directory / "tokenizer.json"))
    return made.get_vocab_size()


def pieces(directory, name, **settings):
    """A SentencePiece model, and the number of its pieces."""
    settings = {"vocab_size": 400, "model_type": "bpe", "byte_fallback": True} | settings
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 20),
        model_prefix=str(directory / "trained"),
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    (directory / "trained.model").rename(directory / name)
    (directory / "trained.vocab").unlink()
    model = sentencepiece.SentencePieceProcessor(model_file=str(directory / name))
    return model.vocab_size()


def added(first, names=tuple(TOKENS)):
    return {str(first + i): flags(name, **TOKENS[name]) for i, name in enumerate(names)}


def of_json(directory):
    size = json_tokenizer(directory)
    write(directory, config={"model_type": "llama", "eos_token_id": 2})
    return size


def of_pieces(directory):
    """A Llama's SentencePiece model, whose spaces stay as they are."""
    size = pieces(
        directory,
        "tokenizer.model",
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )
    write(directory, config={"model_type": "llama", "eos_token_id": 2})
    return size


def of_other_pieces(directory):
    """A model with a normalization, and a token of its own, ``<own>``."""
    size = pieces(directory, "tokenizer.model", user_defined_symbols=["<own>"])
    write(directory, config={"model_type": "mistral", "eos_token_id": 2})
    return size


def of_unigram(directory):
    kind = {"model_type": "unigram", "byte_fallback": False, "vocab_size": 60}
    size = pieces(directory, "tokenizer.model", **kind)
    write(directory, config={"model_type": "llama", "eos_token_id": 2})
    return size


def of_t5(directory):
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    kind = {"model_type": "unigram", "byte_fallback": False, "vocab_size": 60}
    size = pieces(directory, "spiece.model", **ids, **kind)
    write(directory, config={"model_type": "t5", "vocab_size": 1000})
    return size


def of_real(directory, files, kind, size=None):
    for source, name in files:
        shutil.copy(DATA / source, directory / name)
    write(directory, config={"model_type": kind, "vocab_size": 60000})
    return size


def of_gpt2(directory):
    return of_real(directory, [(f"tokenizers/{a}", b) for a, b in GPT2], "gpt2", 50257)


def of_qwen2(directory):
    return of_real(directory, [(f"tokenizers/{a}", b) for a, b in GPT2], "qwen2", 50257)


def of_stories(directory):
    files = [("stories260K/tokenizer.model", "tokenizer.model")]
    return of_real(directory, files, "llama", 512)


def of_real_t5(directory):
    return of_real(directory, [("tokenizers/t5_spiece.model", "spiece.model")], "t5", 32000)


def of_bytes(directory):
    config = {"model_type": "t5", "vocab_size": 384, "tokenizer_class": "ByT5Tokenizer"}
    write(directory, config=config)
    return 259


BASES = {
    "tokenizer.json": of_json,
    "pieces": of_pieces,
    "other pieces": of_other_pieces,
    "unigram": of_unigram,
    "t5": of_t5,
    "gpt2": of_gpt2,
    "qwen2": of_qwen2,
    "stories": of_stories,
    "real t5": of_real_t5,
    "bytes": of_bytes,
}
LLAMA = {"tokenizer_class": "LlamaTokenizer"}
"""The class that reads a model as ``tokenizer.model`` where nothing else says so."""
CLEAN_UP = {"clean_up_tokenization_spaces": True}
FORCED = {"clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output": True}


def nothing(size):
    return {}


def decoder(size):
    return {CONFIG: {"added_tokens_decoder": added(size)}}


def named(size):
    """An end token that an added one is, and a pad token that no file has."""
    first = added(size)
    return {
        CONFIG: {
            "added_tokens_decoder": first,
            "eos_token": "<|end|>",
            "pad_token": {"__type": "AddedToken", **flags("<mine>", normalized=True)},
        },
        TOKENS_MAP: {"eos_token": "<never>"},
        ADDED: {"<never>": size},
    }


def legacy(size):
    """The two older files, without a ``tokenizer_config.json``."""
    return {
        ADDED: {name: size + i for i, name in enumerate(TOKENS)},
        TOKENS_MAP: {
            "eos_token": flags("<|end|>"),
            "additional_special_tokens": ["<extra>"],
        },
    }


FILES = {"nothing": nothing, "decoder": decoder, "named": named, "legacy": legacy}


def texts(seed, count=60):
    draw = random.Random(seed)
    return ["".join(draw.choices(PARTS, k=draw.randint(1, 8))) for _ in range(count)]


def case(directory, base, files, **settings):
    """The directory of a layout; skipped where the vocabulary is not beside the project."""
    if base in ("gpt2", "qwen2", "stories", "real t5") and not DATA.is_dir():
        pytest.skip("needs the vocabularies of shared/data")
    size = BASES[base](directory)
    size += 100 if base.endswith("t5") and files is not nothing else 0
    written = files(size)
    if settings:
        written[CONFIG] = {**written.get(CONFIG, {}), **settings}
    for name, value in written.items():
        (directory / name).write_text(json.dumps(value))
    return directory


def same_ids_and_texts(ours, theirs, inputs):
    """Compares the ids of texts, and the texts of these ids without special tokens."""
    for text in inputs:
        ids = theirs(text, add_special_tokens=False).input_ids
        assert ours.pieces(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text


LAYOUTS = [
    (base, name, {}) for base in BASES for name in FILES if (base, name) != ("bytes", "named")
]
LAYOUTS = [layout for layout in LAYOUTS if layout[0] != "bytes" or layout[1] == "nothing"]
LAYOUTS += [
    (base, name, {**LLAMA, **legacy})
    for base in ("pieces", "stories")
    for name in ("nothing", "decoder")
    for legacy in ({}, {"legacy": True})
]
LAYOUTS += [
    ("gpt2", "decoder", {"add_prefix_space": True, "add_bos_token": True, "add_eos_token": True}),
    ("qwen2", "nothing", {"tokenizer_class": "GPT2TokenizerFast"}),
    ("gpt2", "nothing", {"tokenizer_class": "Qwen2Tokenizer"}),
    ("t5", "nothing", {"extra_ids": 3}),
]
LAYOUTS += [(base, "nothing", CLEAN_UP) for base in BASES]
LAYOUTS += [(base, "nothing", CLEAN_UP | FORCED) for base in ("tokenizer.json", "pieces", "qwen2")]


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # those of transformers
@pytest.mark.parametrize(("base", "name", "settings"), LAYOUTS)
def test_ids_and_texts_are_those_of_transformers(tmp_path, base, name, settings):
    import transformers

    directory = case(tmp_path, base, FILES[name], **settings)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    ours = load_tokenizer(directory)
    inputs = texts(0)
    if base == "stories":  # To SentencePiece this character is a space, which ends no text.
        inputs = [text.replace("▁", "") for text in inputs]
    same_ids_and_texts(ours, theirs, inputs)
    assert [ours.encode(text) for text in inputs] == [theirs(text).input_ids for text in inputs]


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # those of transformers
@pytest.mark.parametrize("base", ["tokenizer.json", "other pieces", "t5", "bytes"])
def test_what_transformers_saves_is_read(tmp_path, base):
    import transformers

    directory = case(tmp_path, base, nothing if base == "bytes" else named)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    theirs.add_tokens(["<late>"])
    for name in (ADDED, TOKENS_MAP):
        (directory / name).unlink(missing_ok=True)
    theirs.save_pretrained(directory)
    theirs = transformers.AutoTokenizer.from_pretrained(directory)
    same_ids_and_texts(load_tokenizer(directory), theirs, [f"{text}<late>" for text in texts(1)])


def test_truncation_and_padding_of_a_file_are_turned_off(tmp_path):
    tokenizer = load_tokenizer(case(tmp_path, "tokenizer.json", nothing))
    assert len(tokenizer.encode(LINES[0])) > 4
    assert 3 not in tokenizer.encode("a")


@pytest.mark.parametrize("base", ["tokenizer.json", "pieces", "t5"])
@pytest.mark.parametrize("files", [decoder, legacy])
def test_added_tokens_are_tokens_of_texts_and_of_conversations(tmp_path, base, files):
    tokenizer = load_tokenizer(case(tmp_path, base, files))
    first = tokenizer.pieces("<tool>")
    assert len(first) == 1
    tool, end = first[0], first[0] + 2
    ids = tokenizer.pieces("the cat<|end|><tool>")
    assert ids[-2:] == [end, tool]
    assert tokenizer.decode(ids) == "the cat<tool>"
    assert tokenizer.chat_pieces("<|end|>")[-1:] == [end]
    template = "{% for m in messages %}<tool>{{ m.content }}<|end|>{% endfor %}"
    message = {"role": "user", "content": "the cat"}
    got = tokenizer.apply_chat_template([message], chat_template=template)
    assert (got[0], got[-1]) == (tool, end)
    assert tokenizer.vocab_size > end


def test_a_listed_special_token_of_added_tokens_json_is_left_out_of_texts(tmp_path):
    """As in transformers 4; transformers 5.24 reads the list too late, and shows the token."""
    directory = case(tmp_path, "tokenizer.json", legacy)
    write(directory, special_tokens_map={"additional_special_tokens": ["<|end|>"]})
    tokenizer = load_tokenizer(directory)
    assert tokenizer.decode(tokenizer.pieces("the<|end|> cat<sep>")) == "the cat<sep>"


def test_special_tokens_within_a_text_are_those_of_a_model_alone(tmp_path):
    tokenizer = load_tokenizer(case(tmp_path, "other pieces", nothing))
    ids = tokenizer.pieces("cat</s><own><unk>x")
    assert [i for i in ids if i < 4] == [2, 3, 0]
    assert tokenizer.decode(ids) == "cat <own> x"


def test_sentinels_of_a_t5_have_the_last_ids(tmp_path):
    directory = case(tmp_path, "t5", nothing)
    tokenizer = load_tokenizer(directory)
    size = tokenizer.vocab_size
    ids = tokenizer.encode("the <extra_id_0> sat<extra_id_99>")
    assert ids[-2:] == [size - 100, 1]
    assert size - 1 in ids
    assert tokenizer.decode(ids) == "the sat"
    write(directory, tokenizer_config={"extra_ids": 2})
    assert load_tokenizer(directory).vocab_size == size - 98
    write(directory, tokenizer_config={}, config={"model_type": "mt5", "vocab_size": size - 1})
    assert load_tokenizer(directory).vocab_size == size - 100  # No rows for sentinels.


def test_spaces_before_punctuation_are_removed_where_a_file_says_so(tmp_path):
    directory = case(tmp_path, "bytes", nothing, **CLEAN_UP)
    tokenizer = load_tokenizer(directory)
    ids = tokenizer.encode("I do n't , he 's .")
    assert tokenizer.decode(ids) == "I don't, he's."
    shown = [tokenizer.settled(ids[:count]) for count in range(len(ids))]
    assert all("I don't, he's.".startswith(text) for text in shown)
    assert shown[5] == "I do"
    message = (
        "stop_strings: expected .*, got one with clean_up_.*; tokenizer.clean_up = False keeps"
    )
    with pytest.raises(ValueError, match=message):
        stop_strings(tokenizer, "he 's", 384)
    tokenizer.clean_up = False
    assert tokenizer.decode(ids) == "I do n't , he 's ."


def test_the_end_tokens_and_sentinels_of_a_byt5(tmp_path):
    directory = case(tmp_path, "bytes", nothing)
    write(directory, generation_config={"eos_token_id": [1, 13]})
    tokenizer = load_tokenizer(directory)
    assert tokenizer.eos_ids == (1, 13)
    assert tokenizer.encode("a<extra_id_0></s>") == [100, 259, 1]
    assert tokenizer.decode([100, 259, 260, 1]) == "a"


MISTAKES = [
    ({TOKENS_MAP: ["</s>"]}, "special_tokens_map.json: expected a JSON object, got a list"),
    ({CONFIG: []}, "tokenizer_config.json: expected a JSON object, got a list"),
    ({CONFIG: {"eos_token": ["</s>"]}}, r"eos_token: expected a token, .*, got \['</s>'\]"),
    (
        {CONFIG: {"added_tokens_decoder": {"7": 5}}},
        r"added_tokens_decoder\[7\]: expected a token, .*, got 5",
    ),
    ({CONFIG: {"added_tokens_decoder": {"x": flags("a")}}}, "expected a token id, got 'x'"),
    (
        {CONFIG: {"added_tokens_decoder": {"9000": flags("<tool>")}}},
        "expected id .* for the token '<tool>', as by tokenizer.json, got 9000",
    ),
    ({ADDED: {"<s>": 2}}, "added_tokens.json: expected id 1 for the token '<s>', .*, got 2"),
    (
        {CONFIG: {"additional_special_tokens": "<a>"}},
        "additional_special_tokens: expected a list of tokens, got '<a>'",
    ),
    ({CONFIG: {"chat_template": [1]}}, "chat_template: expected a template, or a list of"),
    (
        {"generation_config.json": {"eos_token_id": "</s>"}},
        "generation_config.json: eos_token_id: expected a token id, or a list of them, got '</s>'",
    ),
]


@pytest.mark.parametrize(("files", "message"), MISTAKES, ids=[m for _, m in MISTAKES])
def test_what_is_not_followed_is_refused_in_one_line(tmp_path, files, message):
    of_json(tmp_path)
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    with pytest.raises(TokenizerError, match=message) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


OTHERS = [
    ("tekken.json", "{}", "llama", "got tekken.json, which AutoTokenizer"),
    ("qwen.tiktoken", "IQ== 0", "qwen2", "got qwen.tiktoken, which AutoTokenizer"),
    (
        "tokenizer.model",
        "IQ== 0\nIg== 1\n",
        "llama",
        "but one of tiktoken; expected tokenizer.json",
    ),
    ("spiece.model", "", "pegasus", "expected tokenizer.json for a pegasus, which AutoTokenizer"),
    ("sentencepiece.bpe.model", "", "mbart", "tokenizer.json for a mbart, which AutoTokenizer"),
]


@pytest.mark.parametrize(("name", "content", "kind", "message"), OTHERS)
def test_files_of_other_libraries_lead_to_what_converts_them(
    tmp_path, name, content, kind, message
):
    (tmp_path / name).write_text(content)
    write(tmp_path, config={"model_type": kind})
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path)
