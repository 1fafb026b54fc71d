"""outlines: a ``Generator`` of texts that match a pattern, on a model that is a table."""

import outlines
import torch
from harness import Case, letters, main, settings, table, vocab_size
from table_model import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    """A letter for each token but the last, which ends a text."""
    vocabulary = {letter: i for i, letter in enumerate(letters(range(size - 1)))}
    made = Tokenizer(models.WordLevel({**vocabulary, "</s>": size - 1}, unk_token="a"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="</s>")


def generate(case: Case, samples: int) -> list[str]:
    torch.manual_seed(case["seed"])
    model = outlines.from_transformers(Table(table(case)), tokenizer(vocab_size(case)))
    generator = outlines.Generator(model, outlines.regex("|".join(case["texts"])))
    options = {"max_new_tokens": 4, "do_sample": True, "top_k": 0, **settings(case)}
    return generator.batch(["a"] * samples, eos_token_id=vocab_size(case) - 1, **options)


main({"Generator": generate})
