"""The page: the views of all texts, put into one template."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoding_jax import fields, storage
from decoding_jax.loop.search_trace import SearchTrace
from decoding_jax.strategies.speculative.stages import BlockTrace
from decoding_jax.strategies.token_by_token import CodesTrace
from decoding_jax.text.completions import Completion
from decoding_jax.text.show.blocks import BlocksView, blocks_view
from decoding_jax.text.show.codes import CodesView, codes_view
from decoding_jax.text.show.prefix_tree import PrefixBranch, prefix_tree
from decoding_jax.text.show.search_tree import SearchBranch, search_tree
from decoding_jax.text.show.tokens import LEGEND, Token, percent, surprise, tokens_of
from decoding_jax.text.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of HTML: one file that loads nothing else. Notebooks show it as it is.

    Attributes:
      body: the page without its head, for a place in another page; it brings its own style.
      title: the title of the page.
    """

    body: str = dataclasses.field(repr=False)
    title: str

    @property
    def html(self) -> str:
        """The whole page."""
        return _template("page.html").render(body=self.body, title=self.title)

    def save(self, path: str | Path) -> None:
        """Writes the page to a file, on a disk or in a bucket."""
        storage.write(storage.storage_path("path", str(path)), [self.html])

    def _repr_html_(self) -> str:
        return self.body


@dataclasses.dataclass(frozen=True)
class _Shown:
    """What the page shows of one completion.

    Attributes:
      completion: the completion.
      tokens: its tokens.
      blocks: those of speculation, with its trace.
    """

    completion: Completion
    tokens: Sequence[Token]
    blocks: BlocksView | None = None

    @property
    def coloured(self) -> bool:
        """Whether probabilities of tokens are known."""
        return any(token.surprise is not None for token in self.tokens)

    @property
    def has_texts(self) -> bool:
        """Whether the texts of the tokens are known, and not their numbers alone."""
        return any(token.text for token in self.tokens)


@dataclasses.dataclass(frozen=True)
class _Text:
    """What the page shows of one input.

    Attributes:
      name: the input, or its number.
      completions: its completions.
      tree: the branches of all completions, if there are several.
      codes: the intervals of arithmetic sampling, with its trace.
      search: the nodes of a search, with its trace.
    """

    name: str
    completions: Sequence[_Shown]
    tree: Sequence[PrefixBranch] = ()
    codes: CodesView | None = None
    search: Sequence[SearchBranch] = ()


def show(
    completions: Sequence[Sequence[Completion]] | Sequence[Completion] | Completion,
    tokenizer: Tokenizer,
    *,
    texts: Sequence[str] | None = None,
    title: str = "Completions",
) -> Page:
    """Makes a page that shows completions.

    Several completions of a text are a tree of the beginnings that they share. With
    ``with_scores``, tokens are coloured by their probability under the model, and each shows its
    alternatives and the entropy when it has the focus. With ``with_sample_log_prob``, it shows the
    probability with which it was drawn, too, and each branch of the tree says beside the number of
    its samples how many are expected, N times the probability of the branch. With ``with_trace``,
    a setting of ``arithmetic_sample``, ``speculative_sample`` and the searches, the page shows how
    they came to their texts.

    Args:
      completions: what ``generate`` returned, or the completions of one text, or one of them.
      tokenizer: the tokenizer of the model.
      texts: the inputs, which the page then names.
      title: of the page.

    Raises:
      ValueError: in one line, for anything else in the place of completions, and for another number
        of texts.

    Example:
      >>> import decoding_jax
      >>> model, tokenizer = decoding_jax.load("translation-en-fr-draft")
      >>> rows = decoding_jax.generate(model, tokenizer, ["Good morning!"], with_scores=True)
      >>> page = show(rows, tokenizer)
      >>> page.html.splitlines()[0]
      '<!doctype html>'
    """
    rows = _rows(completions)
    if not hasattr(tokenizer, "decode") or isinstance(tokenizer, type):
        raise fields.error("tokenizer", "one with decode, such as load gives", tokenizer)
    if texts is None:
        texts = [f"Text {i + 1}" for i in range(len(rows))]
    if isinstance(texts, str) or len(texts) != len(rows):
        raise fields.error("texts", f"{len(rows)} strings, one for each text", texts)
    made = [_text(name, row, tokenizer) for name, row in zip(texts, rows, strict=True)]
    return Page(_body(made), title)


def of_completion(completion: Completion) -> str:
    """One completion as a part of a page, without a tokenizer: tokens are shown by their ids."""
    return _body([_Text("", [_Shown(completion, tokens_of(completion, None))])])


def _rows(completions: Any) -> list[Sequence[Completion]]:
    """The completions of each text."""
    if isinstance(completions, Completion):
        return [[completions]]
    if isinstance(completions, (list, tuple)):
        if completions and all(isinstance(one, Completion) for one in completions):
            return [completions]
        is_row = [isinstance(row, (list, tuple)) for row in completions]
        if all(is_row) and all(isinstance(one, Completion) for row in completions for one in row):
            return list(completions)
    expected = "what generate returns, or the completions of one text, or a completion"
    raise fields.error("completions", expected, completions)


def _text(name: Any, row: Sequence[Completion], tokenizer: Tokenizer) -> _Text:
    tokens = [tokens_of(one, tokenizer) for one in row]
    traces: list[Any] = [getattr(one.info, "trace", None) for one in row]
    shown = [
        _Shown(one, of_one, blocks_view(trace, of_one, tokenizer))
        if isinstance(trace, BlockTrace)
        else _Shown(one, of_one)
        for one, of_one, trace in zip(row, tokens, traces, strict=True)
    ]
    kinds = {type(trace) for trace in traces}
    return _Text(
        name=str(name),
        completions=shown,
        tree=prefix_tree(tokens) if len(row) > 1 else (),
        codes=codes_view(traces, tokens) if kinds == {CodesTrace} else None,
        search=search_tree(traces[0], tokenizer) if kinds == {SearchTrace} else (),
    )


def _body(texts: Sequence[_Text]) -> str:
    coloured = any(one.coloured for text in texts for one in text.completions)
    legend = [(p, surprise(p)) for p in LEGEND] if coloured else ()
    return _template("body.html").render(texts=texts, legend=legend, style=_style())


@functools.cache
def _style() -> str:
    return (Path(__file__).parent / "style.css").read_text("utf-8")


@functools.cache
def _template(name: str) -> Any:
    """A template of this folder, which escapes everything that is put into it."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["percent"] = percent
    return environment.get_template(name)
