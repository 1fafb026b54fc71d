"""Diversity and quality of texts, compared with values computed by hand."""

import pytest

from decoding_jax.estimators import diversity, quality


def test_distinct_n_divides_distinct_ngrams_by_words():
    texts = ["Le chat dort", "le chat mange", "oui"]
    assert diversity.distinct_n(texts, 1) == 5 / 7
    assert diversity.distinct_n(texts, 2) == 3 / 7
    assert diversity.distinct_n(texts, 3) == 2 / 7
    assert diversity.distinct_n(texts, 4) == 0
    assert diversity.distinct_n(["a b"] * 4, 1) == 2 / 8
    assert diversity.distinct_n([], 1) == diversity.distinct_n([""], 2) == 0
    assert diversity.num_unique(["a", "b", "a"]) == 2
    with pytest.raises(ValueError, match="n: expected 1 or more, got 0"):
        diversity.distinct_n(texts, 0)


@pytest.mark.exhaustive
def test_rouge_takes_the_best_reference_and_keeps_accents():
    # Longest common subsequence 2 of 3 words and 4: precision 2/3, recall 1/2.
    assert quality.rouge("un chat noir", ["un petit chat gris"]) == pytest.approx(100 * 4 / 7)
    assert quality.rouge("un chat noir", ["rien", "Un chat noir !"]) == pytest.approx(100)
    assert quality.rouge("été", ["ete"], "rouge1") == 0


def test_bleu_and_the_oracle():
    references = ["où est la gare ?", "où se trouve la gare ?"]
    texts = ["où est la gare ?", "la maison bleue est grande"]
    assert quality.bleu(texts[0], references) == pytest.approx(100)
    assert quality.bleu(texts[1], references) < 20
    assert quality.oracle(quality.bleu, texts, references) == pytest.approx(100)
    assert quality.mean(quality.bleu, texts, references) < 60


@pytest.mark.parametrize("references", [[], "a string"])
def test_bad_references_get_one_line(references):
    for metric in (quality.bleu, quality.rouge):
        with pytest.raises(
            ValueError, match="references: expected a list of one string or more, got"
        ):
            metric("text", references)
    with pytest.raises(ValueError, match="texts: expected one or more, got none"):
        quality.oracle(quality.bleu, [], ["a"])
