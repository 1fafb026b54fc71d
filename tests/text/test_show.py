"""``show``: the page parses, refers to nothing outside, escapes texts, and has the tree."""

import html.parser
import json
import math
import re
import shutil
import subprocess
import types

import jax
import numpy as np
import pytest
from text_fakes import TABLE, Digits

import decoding_jax
from decoding_jax.loop.search_trace import SearchTrace
from decoding_jax.strategies.speculative.stages import BlockTrace
from decoding_jax.strategies.token_by_token import CodesTrace
from decoding_jax.text import Completion, TokenScores
from decoding_jax.text.show.blocks import blocks_view
from decoding_jax.text.show.codes import codes_view
from decoding_jax.text.show.prefix_tree import prefix_tree
from decoding_jax.text.show.search_tree import search_tree
from decoding_jax.text.show.tokens import Token, tokens_of

NASTY = "<script>alert('&amp;')</script>\" onfocus=\"x"
VOID = ("meta", "br", "img", "link")


class Words(Digits):
    """A tokenizer of a few words, one of which is a piece of HTML."""

    words = ("", "a", "b", " c", NASTY, "\n", "é", " f")

    def decode(self, ids):
        return "".join(self.words[i] for i in ids)


class Parsed(html.parser.HTMLParser):
    """The elements of a page: tag, attributes and the text within, if all are closed."""

    def __init__(self, page):
        super().__init__()
        self.found, self.open = [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        element = types.SimpleNamespace(tag=tag, text="", **{"attrs": dict(attrs)})
        self.found.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag):
        assert self.open.pop().tag == tag

    def handle_data(self, data):
        for element in self.open:
            element.text += data

    def of(self, name):
        """The elements of a class."""
        return [e for e in self.found if name in (e.attrs.get("class") or "").split()]


def completion(tokens, scored=True):
    size = len(tokens)
    draws = np.random.default_rng(sum(tokens))
    drawn = np.log(draws.uniform(0.2, 1, size))
    top = np.sort(draws.dirichlet(np.ones(8), size), -1)[:, :-4:-1]
    scores = TokenScores(
        drawn - 0.1, draws.uniform(0, 2, size), np.tile([4, 5, 6], (size, 1)), np.log(top), drawn
    )
    total = float(drawn.sum())
    text = Words().decode(tokens)
    if not scored:
        return Completion(text, tokens, total, total, tokens[-1] == 0)
    return Completion(text, tokens, total, total, tokens[-1] == 0, None, scores, drawn)


SAMPLES = [[1, 2, 3, 0], [1, 2, 4, 0], [1, 2, 3, 0], [5, 6, 0], [1, 2], [5, 6, 7, 1, 0]]
ROWS = [[completion(tokens) for tokens in SAMPLES], [completion([4, 1, 0], scored=False)]]


def test_the_page_parses_and_loads_nothing():
    page = decoding_jax.show(ROWS, Words(), texts=[NASTY, "one"], title=NASTY)
    parsed = Parsed(page.html)
    tags = {element.tag for element in parsed.found}
    assert not tags & {"script", "link", "img", "iframe", "object", "image", "use"}
    names = {name for element in parsed.found for name in element.attrs}
    assert not names & {"src", "href", "srcset", "onclick", "onfocus", "xlink:href"}
    assert not re.search(r"@import|url\(|https?:", page.html)
    assert [e.text for e in parsed.found if e.tag == "title"] == [NASTY]
    assert [e.text for e in parsed.found if e.tag == "h2"] == [NASTY, "one"]
    assert parsed.of("text")[-1].text == NASTY + "a"
    assert page.html.count("<!doctype html>") == 1
    assert "<!doctype" not in page._repr_html_()
    Parsed(page._repr_html_())


def test_each_token_says_its_probabilities():
    parsed = Parsed(decoding_jax.show(ROWS[0][1], Words()).html)
    tokens = [e for e in parsed.of("token") if "tabindex" in e.attrs]
    scores = ROWS[0][1].scores
    assert len(tokens) == 4
    for token, label, log_prob in zip(tokens, "ab", scores.log_prob, strict=False):
        assert token.attrs["aria-label"].startswith(f"token {label}, probability ")
        assert token.attrs["role"] == "group"
        strength = float(token.attrs["style"].removeprefix("--surprise:"))
        assert strength == pytest.approx(min(-log_prob / math.log(2) / 7, 1), abs=0.006)
    assert len(parsed.of("other")) == 4 * 3
    assert tokens[-1].text.startswith("#0")  # An end token has no text.


def nodes(branches, path=()):
    """The tokens from the root to the end of each branch, and the branch."""
    for branch in branches:
        whole = (*path, *(token.id for token in branch.tokens))
        yield whole, len(path), branch
        yield from nodes(branch.branches, whole)


def test_the_tree_has_all_prefixes_and_their_numbers():
    draws = np.random.default_rng(0)
    sizes = draws.integers(0, 7, 40)
    sequences = [draws.integers(0, 3, size).tolist() for size in sizes]
    drawn = [[Token(i, "x", drawn=0.5) for i in tokens] for tokens in sequences]
    want = {tuple(s[: i + 1]) for s in sequences for i in range(len(s))}
    found = set()
    for whole, begin, branch in nodes(prefix_tree(drawn)):
        prefixes = {whole[: i + 1] for i in range(begin, len(whole))}
        assert not found & prefixes
        found |= prefixes
        for prefix in prefixes:
            size = len(prefix)
            members = [i for i, s in enumerate(sequences) if tuple(s[:size]) == prefix]
            assert list(branch.members) == members
        assert branch.ended == sum(tuple(s) == whole for s in sequences)
        assert branch.share == len(branch.members) / 40
        assert branch.mark == 0.5 ** len(whole)
        assert branch.note.startswith(f"{len(branch.members)} of 40, expected ")
    assert found == want


def test_the_page_has_the_nodes_of_the_tree():
    parsed = Parsed(decoding_jax.show(ROWS, Words()).html)
    want = list(nodes(prefix_tree([tokens_of(one, Words()) for one in ROWS[0]])))
    assert len(parsed.of("branch")) == len(want) == 6
    for element, (_, _, branch) in zip(parsed.of("branch"), want, strict=True):
        assert branch.note in element.text
        assert "".join(token.shown for token in branch.tokens) in element.text


def test_texts_of_tokens_make_the_text():
    """A space that a tokenizer drops without its prompt is of the first token."""
    [one] = ROWS[1]
    assert [token.text for token in tokens_of(one, Words())] == [NASTY, "a", ""]
    spaced = one._replace(text=" " + one.text)
    assert tokens_of(spaced, Words())[0].text == " " + NASTY


def test_codes_are_intervals_with_their_samples():
    half = [2**31, 0]
    point, offset = np.array([[0, 9], [2**31, 9]], np.uint32), np.array([0, 9], np.uint32)
    whole, carried = np.array([2**31 - 1, 2**32 - 1], np.uint32), np.array([True, False])
    traces = [
        CodesTrace(p, np.tile(offset, (2, 1)), np.tile(whole, (2, 1)), carried) for p in point
    ]
    tokens = [[Token(1, "a"), Token(2, "b")], [Token(2, "b"), Token(2, "b")]]
    view = codes_view(traces, tokens)
    [level] = view.levels
    assert [(i.begin, i.width, i.text, i.members) for i in level] == [
        (0.0, 0.5, "a", [0]),
        (0.5, 0.5, "b", [1]),
    ]
    assert view.points[1] - view.points[0] == pytest.approx(half[0] / 2**32)
    assert codes_view([t._replace(carried=~carried) for t in traces], tokens) is None


def test_blocks_have_what_was_rejected():
    tokens = [Token(i, Words.words[i]) for i in (1, 2, 3, 2, 7)]
    trace = BlockTrace(
        np.array([[2, 6, 4], [7, 1, -1], [-1, -1, -1]]),
        np.array([3, 2, 0]),
        np.array([1, 0, 0]),
        np.array([2, 1, 1]),
    )
    view = blocks_view(trace, tokens, Words())
    assert [[t.text for t in block.accepted] for block in view.blocks] == [["b"], [], []]
    assert [block.own.text for block in view.blocks] == [" c", "b", " f"]
    assert [block.rejected for block in view.blocks] == [["é", NASTY], [" f", "a"], []]
    assert view.saved == 1


def test_a_search_is_a_tree_of_its_nodes():
    paths = [[1, 0], [1, 2], [1, 3], [7, 0]]
    trace = SearchTrace(
        np.array(paths),
        np.array([1, 2, 2, 1]),
        np.log([0.5, 0.3, 0.2, 0.4]),
        np.array([5, 3, 1, 1]),
    )
    [a, f] = search_tree(trace, Words())
    assert a.note == "expanded 1, log-probability -0.69"
    assert [branch.state for branch in a.branches] == ["finished", "open"]
    assert f.note == "open, log-probability -0.92"


@pytest.mark.exhaustive
def test_what_strategies_record_is_shown():
    settings = {"max_new_tokens": 5, "with_trace": True}
    for strategy, name, more in (
        ("arithmetic_sample", "codes", {"num_samples": 4, "key": jax.random.key(0)}),
        ("speculative_sample", "blocks", {"drafter": TABLE, "key": jax.random.key(0)}),
        ("best_k_search", "tree", {}),
    ):
        rows = decoding_jax.generate(
            TABLE, Digits(), ["12", "3"], strategy=strategy, **settings, **more
        )
        parsed = Parsed(decoding_jax.show(rows, Digits()).html)
        assert len(parsed.of(name)) >= 2, strategy
        assert len(parsed.of("text")) == sum(map(len, rows))


def test_a_notebook_shows_a_completion_without_a_tokenizer():
    text, ids = (e.text for e in Parsed(ROWS[0][0]._repr_html_()).of("text"))
    assert text == "ab c"
    assert ids.startswith("#1")
    [plain] = Parsed(ROWS[1][0]._repr_html_()).of("text")
    assert plain.text == NASTY + "a"


def test_mistakes_are_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"^completions: expected what generate returns, or"):
        decoding_jax.show(["text"], Words())
    with pytest.raises(ValueError, match=r"^tokenizer: expected one with decode"):
        decoding_jax.show(ROWS, None)
    with pytest.raises(ValueError, match=r"^texts: expected 2 strings, one for each text, got"):
        decoding_jax.show(ROWS, Words(), texts="ab")
    page = decoding_jax.show([[]], Words())
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == page.html
    assert "No completion." in page.html


SIZES = """<script>addEventListener("load", () => {
const frame = document.querySelector("iframe"), page = frame.contentDocument;
const wide = [...page.querySelectorAll(".decoding-jax *")].filter((e) =>
  !e.closest(".tree") && getComputedStyle(e).display !== "none"
  && e.getBoundingClientRect().right > frame.clientWidth + 1);
const token = page.querySelector(".text .token");
token.focus();
const detail = token.querySelector(".detail");
document.title = JSON.stringify({width: page.documentElement.scrollWidth, wide: wide.length,
  nodes: page.querySelectorAll(".branch").length, shown: getComputedStyle(detail).display,
  right: detail.getBoundingClientRect().right, focused: page.activeElement === token});
});</script>"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", [400, 1280])
def test_a_browser_shows_it_within_its_width(width, tmp_path):
    """In headless Chromium: nothing is wider than the page, and a token with the focus opens."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    page = decoding_jax.show(ROWS, Words(), texts=["One text " * 12, "two"])
    frame = f'<iframe width="{width}" height="700" style="border:0" srcdoc="{{}}"></iframe>'
    (tmp_path / "frame.html").write_text(
        "<!doctype html>" + frame.format(html_attribute(page.html)) + SIZES, "utf-8"
    )
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", str(tmp_path / "frame.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    title = re.search("<title>(.*?)</title>", done.stdout)
    found = json.loads(html.unescape(title[1]))
    assert found["width"] <= width
    assert found["wide"] == 0
    assert found["nodes"] == 6
    assert (found["focused"], found["shown"]) == (True, "block")
    assert found["right"] <= width


def html_attribute(text):
    return text.replace("&", "&amp;").replace('"', "&quot;")
