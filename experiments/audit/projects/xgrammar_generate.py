"""xgrammar: its logits processor in ``generate`` of transformers, on a model that is a table."""

import json

import numpy as np
import torch
import xgrammar
from harness import Case, letters, main, table, vocab_size
from table_model import Table, texts
from xgrammar.contrib.hf import LogitsProcessor


def generate(case: Case, samples: int) -> np.ndarray:
    torch.manual_seed(case["seed"])
    end = vocab_size(case) - 1
    vocabulary = [*letters(case, range(end)), "</s>"]
    info = xgrammar.TokenizerInfo(
        vocabulary, vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[end]
    )
    compiler = xgrammar.GrammarCompiler(info)
    if "schema" in case:
        compiled = compiler.compile_json_schema(json.dumps(case["schema"]))
    else:
        compiled = compiler.compile_regex("|".join(case["texts"]))
    return texts(case, Table(table(case)), samples, lambda: LogitsProcessor(compiled))


main({"contrib.hf.LogitsProcessor": generate})
