import json
import shutil
from pathlib import Path

import pytest
import sentencepiece
import tokenizers

from decoding_jax.text import (
    ByteTokenizer,
    HuggingFaceTokenizer,
    SentencePieceTokenizer,
    TokenizerError,
    WithSpecialTokens,
    load_tokenizer,
)

DATA = Path(__file__).parents[3] / "shared" / "data"
WORDS = ["the cat sat on the mat", "un chat, deux chats", "the dog ate the cat's hat"]


def write_config(directory, **values):
    (directory / "config.json").write_text(json.dumps(values))


@pytest.fixture
def pieces(tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS * 20),
        model_prefix=str(tmp_path / "spiece"),
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=3,
        minloglevel=2,
    )
    return tmp_path


def test_sentencepiece_ends_a_t5_input_and_adds_nothing_to_another(pieces):
    write_config(pieces, model_type="t5")
    t5 = load_tokenizer(pieces)
    assert isinstance(t5, SentencePieceTokenizer)
    ids = t5.encode(WORDS[0])
    assert ids[-1] == 1
    assert 3 not in ids
    assert t5.decode(ids) == WORDS[0]
    assert t5.eos_ids == (1,)
    write_config(pieces, model_type="llama", eos_token_id=[7, 8])
    llama = load_tokenizer(pieces)
    assert llama.encode(WORDS[0]) == ids[:-1]
    assert llama.eos_ids == (7, 8)


ADDED = {"__type": "AddedToken", "content": "</s>"}
SPECIALS = [
    {"add_bos_token": False, "add_eos_token": False},
    {"add_bos_token": True, "add_eos_token": True},
    {"add_bos_token": False, "add_eos_token": True, "eos_token": ADDED},
    {"add_bos_token": True, "bos_token": "</s>"},
    {},
]


@pytest.mark.parametrize("settings", SPECIALS)
def test_the_tokenizers_config_says_which_special_tokens_inputs_have(pieces, settings):
    write_config(pieces, model_type="llama")
    bare = load_tokenizer(pieces).pieces(WORDS[0])
    (pieces / "tokenizer_config.json").write_text(json.dumps(settings))
    start = [1 if "bos_token" in settings else 3] if settings.get("add_bos_token") else []
    end = [1] if settings.get("add_eos_token") else []
    assert load_tokenizer(pieces).encode(WORDS[0]) == [*start, *bare, *end]


def test_a_special_token_may_be_added_after_the_pieces(pieces):
    write_config(pieces, model_type="llama")
    added = {"99": {"content": "<begin>"}}
    settings = {"bos_token": "<begin>", "added_tokens_decoder": added, "add_bos_token": True}
    (pieces / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(pieces)
    assert tokenizer.encode(WORDS[0]) == [99, *tokenizer.pieces(WORDS[0])]


@pytest.mark.skipif(not (DATA / "stories260K").is_dir(), reason="no stories260K beside the project")
@pytest.mark.parametrize("settings", SPECIALS)
def test_special_tokens_of_a_sentencepiece_model_are_those_of_transformers(tmp_path, settings):
    import transformers

    for name in ("config.json", "tokenizer.model"):
        shutil.copy(DATA / "stories260K" / name, tmp_path)
    settings = {"tokenizer_class": "LlamaTokenizer", **settings}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    for text in ("Once upon a time", "She said: no!"):
        assert ours.encode(text) == theirs(text).input_ids


def test_ids_beyond_the_pieces_are_left_out(pieces):
    write_config(pieces, model_type="t5")
    tokenizer = load_tokenizer(pieces)
    assert tokenizer.decode([*tokenizer.encode("cat"), 4000]) == "cat"


def test_generation_config_goes_before_config(pieces):
    write_config(pieces, model_type="t5", eos_token_id=1)
    (pieces / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 5]}))
    assert load_tokenizer(pieces).eos_ids == (1, 5)


def test_tokenizer_json_goes_first(pieces):
    write_config(pieces, model_type="llama", eos_token_id=0)
    vocab = {"<end>": 0, "<unk>": 1, "cat": 2, "hat": 3}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.add_special_tokens(["<end>"])
    words.save(str(pieces / "tokenizer.json"))
    tokenizer = load_tokenizer(pieces)
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    assert tokenizer.encode("cat hat") == [2, 3]
    assert tokenizer.decode([2, 3, 0]) == "cat hat"
    assert tokenizer.eos_ids == (0,)


@pytest.mark.skipif(not DATA.exists(), reason="needs the GPT-2 vocabulary of shared/data")
def test_gpt2_vocabulary_and_merges(tmp_path):
    (tmp_path / "vocab.json").symlink_to(DATA / "tokenizers" / "gpt2_vocab.json")
    (tmp_path / "merges.txt").symlink_to(DATA / "tokenizers" / "gpt2_merges.txt")
    write_config(tmp_path, model_type="gpt2", eos_token_id=50256)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("Hello world") == [15496, 995]
    text = " Déjà vu, naïve\n\n  日本"
    assert tokenizer.decode([*tokenizer.encode(text), 50256]) == text


def test_bytes(tmp_path):
    write_config(tmp_path, model_type="t5", vocab_size=384)
    tokenizer = load_tokenizer(tmp_path)
    assert isinstance(tokenizer, ByteTokenizer)
    assert tokenizer.decode(tokenizer.encode("naïve 日本")) == "naïve 日本"
    assert tokenizer.decode([0, 2, 300, 107]) == "h"


@pytest.mark.parametrize("name", ["tokenizer.json", "spiece.model"])
def test_broken_and_missing_files_are_named_in_one_line(tmp_path, name):
    write_config(tmp_path, model_type="t5", vocab_size=100)
    with pytest.raises(TokenizerError, match="no tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / name).write_text("not a tokenizer")
    with pytest.raises(TokenizerError, match=name) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_other_special_tokens_around_inputs():
    bare = ByteTokenizer()
    bare.generation_config = "of the directory"
    tokenizer = WithSpecialTokens(bare, prefix=[300], suffix=[1, 301])
    assert tokenizer.generation_config == "of the directory"
    assert tokenizer.encode("hi") == [300, 107, 108, 1, 301]
    assert tokenizer.pieces("hi") == [107, 108]
    assert tokenizer.eos_ids == (1,)
    ids = [byte + 3 for byte in "né".encode()[:2]]
    assert (tokenizer.decode(ids), tokenizer.settled(ids)) == ("n\ufffd", "n")
    assert tokenizer.token_texts(384).begun[107] == b"h"

    class Bare:
        eos_ids = (1,)

    assert not hasattr(WithSpecialTokens(Bare()), "settled")
    with pytest.raises(AttributeError, match="WithSpecialTokens has no attribute vocab"):
        tokenizer.vocab  # noqa: B018
