"""outlines: a ``Generator`` of texts of a pattern or a schema, on a model that is a table."""

import json

import outlines
import torch
from harness import Case, length, letters, main, settings, table, vocab_size
from table_model import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def tokenizer(case: Case) -> PreTrainedTokenizerFast:
    """A letter for each token but the last, which ends a text."""
    end = vocab_size(case) - 1
    vocabulary = {letter: i for i, letter in enumerate(letters(case, range(end)))}
    made = Tokenizer(models.WordLevel({**vocabulary, "</s>": end}, unk_token=letters(case, [0])))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", pad_token="</s>")


def generate(case: Case, samples: int) -> list[str]:
    torch.manual_seed(case["seed"])
    model = outlines.from_transformers(Table(table(case)), tokenizer(case))
    if "schema" in case:
        output_type = outlines.json_schema(json.dumps(case["schema"]))
    else:
        output_type = outlines.regex("|".join(case["texts"]))
    generator = outlines.Generator(model, output_type)
    options = {"max_new_tokens": length(case), "do_sample": True, "top_k": 0, **settings(case)}
    prompts = [letters(case, [0])] * samples
    return generator.batch(prompts, eos_token_id=vocab_size(case) - 1, **options)


main({"Generator": generate})
