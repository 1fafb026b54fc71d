"""The tokenizers of Marian and M2M-100: a SentencePiece model, and the numbers of its pieces."""

import json

import pytest
import sentencepiece

from decoding_jax.text import NumberedPieces, TokenizerError, WithSpecialTokens, load_tokenizer

WORDS = ["the cat sat on the mat", "un chat, deux chats", "the dog ate the cat's hat"]
TEXTS = (*WORDS, "  the  cat 猫 ", "a >>fra<< cat", ">>xxx<< cat", ">>deu<<un chat", "cat </s")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The bytes of a SentencePiece model, and its pieces in reverse."""
    path = tmp_path_factory.mktemp("pieces") / "m"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS * 20),
        model_prefix=str(path),
        vocab_size=60,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    data = path.with_suffix(".model").read_bytes()
    pieces = sentencepiece.SentencePieceProcessor(model_proto=data)
    return data, [pieces.id_to_piece(i) for i in range(3, pieces.vocab_size())][::-1]


def write(directory, model, kind, **settings):
    """Writes the files of a tokenizer, and returns the directory and its numbers."""
    data, pieces = model
    if kind == "marian":
        names = ["</s>", "<unk>", *pieces, ">>fra<<", ">>deu<<", "<pad>"]
        (directory / "target.spm").write_bytes(data)
        (directory / "source.spm").write_bytes(data)
    else:
        names = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
        (directory / "sentencepiece.bpe.model").write_bytes(data)
    numbers = {name: i for i, name in enumerate(names)}
    (directory / "vocab.json").write_text(json.dumps(numbers))
    (directory / "config.json").write_text(json.dumps({"model_type": kind}))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory, numbers


def test_pieces_have_the_numbers_of_the_table(tmp_path, model):
    directory, numbers = write(tmp_path, model, "marian")
    tokenizer = load_tokenizer(directory)
    assert isinstance(tokenizer, NumberedPieces)
    ids = tokenizer.encode(">>fra<< the cat")
    assert (ids[0], ids[-1], tokenizer.eos_ids) == (numbers[">>fra<<"], 0, (0,))
    assert tokenizer.pieces("the cat") == ids[1:-1]
    assert tokenizer.decode([*ids, 4000]) == tokenizer.settled(ids) == "the cat"
    texts = tokenizer.token_texts(len(numbers) + 1)
    begun = b"".join(texts.begun[i] for i in ids)
    assert begun == b" the cat"
    assert texts.first[0] is None
    assert texts.first[ids[1]] == texts.begun[ids[1]].lstrip() or texts.first[ids[1]] is None


def test_m2m_100_has_languages_after_its_pieces(tmp_path, model):
    directory, numbers = write(tmp_path, model, "m2m_100", src_lang="fr")
    tokenizer = load_tokenizer(directory)
    french, german = len(numbers) + 24, len(numbers) + 16
    assert tokenizer.encode("un chat") == [french, *tokenizer.pieces("un chat"), 2]
    assert tokenizer.pieces("__de__") == [german]
    assert tokenizer.decode([german, *tokenizer.encode("un chat")]) == "un chat"


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("marian", {"separate_vocabs": True}, "target_vocab.json: has no </s>"),
        (
            "m2m_100",
            {"language_codes": "wmt21"},
            "language_codes: expected 'm2m100', got 'wmt21'",
        ),
        ("m2m_100", {"src_lang": "french"}, "src_lang: expected one of af, am, .*, got 'french'"),
    ],
)
def test_settings_that_are_not_followed_are_refused(tmp_path, model, kind, settings, message):
    directory, _ = write(tmp_path, model, kind, **settings)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(directory)


def test_missing_files_and_pieces_are_one_line(tmp_path, model):
    directory, numbers = write(tmp_path, model, "marian")
    (directory / "source.spm").write_text("broken")
    with pytest.raises(TokenizerError, match=r"source.spm: not a SentencePiece model$"):
        load_tokenizer(directory)
    del numbers["<unk>"]
    (directory / "vocab.json").write_text(json.dumps(numbers))
    with pytest.raises(TokenizerError, match=r"vocab.json: has no <unk>$"):
        load_tokenizer(directory)
    (directory / "vocab.json").unlink()
    with pytest.raises(TokenizerError, match=r"expected tokenizer.json for a marian$"):
        load_tokenizer(directory)


def write_separate(directory, model):
    """Writes the files of a Marian whose outputs have a vocabulary of their own."""
    _, source = write(directory, model, "marian", separate_vocabs=True)
    names = ["</s>", "<unk>", *model[1][::-1], ">>fra<<", "more", "<pad>"]
    target = {name: i for i, name in enumerate(names)}
    (directory / "target_vocab.json").write_text(json.dumps(target))
    return source, target


def test_inputs_and_outputs_have_vocabularies_of_their_own(tmp_path, model):
    source, target = write_separate(tmp_path, model)
    assert source["\u2581cat"] != target["\u2581cat"]
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode(">>deu<< cat") == [source[">>deu<<"], source["\u2581cat"], 0]
    assert tokenizer.pieces("cat") == [target["\u2581cat"]]
    assert tokenizer.decode([target["\u2581cat"], 0]) == "cat"
    between = WithSpecialTokens(tokenizer, prefix=[7], suffix=[0])
    assert between.encode("cat") == [7, source["\u2581cat"], 0]
    assert between.pieces("cat") == [target["\u2581cat"]]


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # those of transformers
def test_separate_vocabularies_are_those_of_transformers(tmp_path, model):
    import transformers

    write_separate(tmp_path, model)
    original = transformers.MarianTokenizer.from_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    for text in TEXTS:
        assert tokenizer.encode(text) == original(text).input_ids
        assert tokenizer.pieces(text) == original(text_target=text).input_ids[:-1]
        if not text.startswith(">>"):
            ids = tokenizer.pieces(text)
            theirs = original.decode(ids, skip_special_tokens=True)
            assert tokenizer.decode(ids).strip() == theirs.strip()


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")  # those of transformers
@pytest.mark.parametrize("kind", ["marian", "m2m_100"])
def test_ids_and_texts_are_those_of_transformers(tmp_path, model, kind):
    import transformers

    directory, _ = write(tmp_path, model, kind)
    name = "MarianTokenizer" if kind == "marian" else "M2M100Tokenizer"
    original = getattr(transformers, name).from_pretrained(directory)
    original.save_pretrained(directory)
    tokenizer = load_tokenizer(directory)
    for text in TEXTS:
        assert tokenizer.encode(text) == original(text).input_ids
        if not text.startswith(">>"):
            ids = tokenizer.pieces(text)
            theirs = original.decode(ids, skip_special_tokens=True)
            assert tokenizer.decode(ids).strip() == theirs.strip()
    if kind == "m2m_100":
        assert tokenizer.pieces("__zu__") == [original.get_lang_id("zu")]
