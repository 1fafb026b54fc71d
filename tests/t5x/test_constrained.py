"""Beam search over the texts that contain phrases, as a decode function."""

import itertools

import numpy as np
import pytest
from calls import EOS, arguments, beam_score, run, texts

from decoding_jax.t5x import decode_fns


class Letters:
    """A vocabulary with the one method that phrases need: a is token 2, b is token 3."""

    def encode(self, text):
        return [ord(letter) - ord("a") + 2 for letter in text]


def holds(text):
    """Whether a text contains "a", and "bc" or "d"."""
    pairs = set(itertools.pairwise(text))
    return 2 in text and (5 in text or (3, 4) in pairs)


@pytest.mark.parametrize(
    ("scanned", "prefilled"),
    [
        pytest.param(False, False, marks=pytest.mark.exhaustive),
        pytest.param(True, True, marks=pytest.mark.release),
    ],
)
def test_constrained_beams_find_the_best_text_with_the_phrase(scanned, prefilled):
    """Texts of 3 tokens with "a" (token 2), and "bc" (tokens 3, 4) or "d" (token 5)."""
    given = arguments(scanned, prefilled, sharpness=0.5)
    decodes, scores = run(
        decode_fns.constrained_beam_search,
        given,
        num_decodes=40,
        max_decode_steps=3,
        phrases=("a",),
        alternatives=(((3, 4), "d"),),
        vocabulary=Letters(),
    )
    for row in range(3):
        # The phrases need all three tokens, so an end token can only be the last one.
        ways = [t for t in itertools.product(range(7), repeat=3) if EOS not in t[:2] and holds(t)]
        score = {text: beam_score(given["tokens_to_logits"], row, text, 0.6) for text in ways}
        want = sorted(score, key=score.__getitem__)[-5:]
        found = [tuple(text[:3]) for text in texts(decodes, row)]
        assert found[-5:] == want
        np.testing.assert_allclose(scores[row, -5:], [score[text] for text in want], rtol=1e-4)
        met = [holds(text) for text in found]
        assert met == sorted(met)


def test_invalid_phrases_raise_errors_of_one_line():
    given = arguments()
    for settings, message in [
        ({"phrases": "ab"}, "phrases: expected a list of strings or of token"),
        ({"phrases": ["ab"]}, "vocabulary: expected an object"),
        ({"phrases": [()]}, "phrases: expected sequences of one token or more"),
        ({"alternatives": ["ab"]}, "alternatives: expected a list of strings or of token"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(decode_fns.constrained_beam_search, given, **settings)
