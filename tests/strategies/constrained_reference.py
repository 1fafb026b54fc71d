"""A plain constrained beam search: one row, lists of tuples, no state but the hypotheses."""

from typing import NamedTuple

import numpy as np

from decoding_jax.testing.certificate.enumeration import exact_log_softmax, path_logits


class Text(NamedTuple):
    tokens: tuple
    score: float
    finished: bool
    met: bool


def contains(tokens, sequence):
    return any(
        tokens[i : i + len(sequence)] == sequence for i in range(len(tokens) - len(sequence) + 1)
    )


def missing(tokens, sequence):
    """The fewest tokens after which the text contains the sequence."""
    if contains(tokens, sequence):
        return 0
    sizes = range(min(len(tokens), len(sequence) - 1) + 1)
    return len(sequence) - max(m for m in sizes if tokens[len(tokens) - m :] == sequence[:m])


def lacking(tokens, phrases, alternatives):
    total = sum(missing(tokens, phrase) for phrase in phrases)
    return total + sum(min(missing(tokens, one) for one in each) for each in alternatives)


def next_tokens(tokens, phrases, alternatives):
    """The tokens that continue a sequence that the text lacks."""
    for sequences in [*([phrase] for phrase in phrases), *alternatives]:
        left = [missing(tokens, one) for one in sequences]
        if min(left) > 0:
            yield from (one[len(one) - n] for one, n in zip(sequences, left, strict=True))


def search(
    model,
    prompt,
    rule,
    *,
    phrases=(),
    alternatives=(),
    beam_size,
    ways_to_end,
    penalty=0.0,
    early_stopping=False,
    banned=(),
):
    """All sequences that are returned for one row, in order.

    Args:
      model: a ``TableLM``.
      prompt: its tokens, without padding.
      rule: enumeration.RowStop.
      phrases, alternatives: tuples of tuples, and tuples of those.
      beam_size: K.
      ways_to_end: end tokens and stop sequences together, padding included.
      penalty: the exponent of the length.
      early_stopping: True, False or "never".
      banned: tokens that are never appended.
    """
    count = max(2, 1 + ways_to_end) * beam_size
    running, pool, rest = [((), 0.0)], [], []

    def retire(tokens, score, finished):
        met = lacking(tokens, phrases, alternatives) == 0
        text = Text(tokens, score / max(len(tokens), 1) ** penalty, finished, met)
        (pool if met else rest).append(text)

    def best(texts):
        return sorted(texts, key=lambda text: -text.score)[:beam_size]

    def ends(tokens):
        # A min_new_tokens below which a stop sequence does not count is in the rule.
        return rule.finishes(tokens)

    while running and len(running[0][0]) < rule.limit:
        continuations = {}
        for tokens, score in running:
            log_probs = exact_log_softmax(path_logits(model, [*prompt, *tokens]))
            log_probs[list(banned)] = -np.inf
            if len(tokens) < rule.min_new_tokens:
                log_probs[list(rule.eos_ids)] = -np.inf
            for token, more in enumerate(log_probs):
                longer = (*tokens, token)
                early = ends(longer) and lacking(longer, phrases, alternatives)
                if more > -np.inf and not early:
                    continuations[longer] = score + more
            if not any(longer[:-1] == tokens for longer in continuations):
                retire(tokens, score, False)
        by_score = sorted(continuations, key=lambda t: -continuations[t])
        candidates = by_score[:count]
        for tokens, _ in running:
            children = [longer for longer in by_score if longer[:-1] == tokens]
            candidates += children[:1]
            tokens_on = set(next_tokens(tokens, phrases, alternatives))
            candidates += [longer for longer in children if longer[-1] in tokens_on]
        banks = {}
        for longer in sorted(set(candidates), key=lambda t: -continuations[t]):
            banks.setdefault(lacking(longer, phrases, alternatives), []).append(longer)
        order = []
        while any(banks.values()):
            order += [banks[lack].pop(0) for lack in sorted(banks) if banks[lack]]
        limit = len(order[0]) >= rule.limit if order else True
        for longer in order[:beam_size]:
            if limit or ends(longer):
                retire(longer, continuations[longer], ends(longer))
        pool, rest = best(pool), best(rest)
        going = [longer for longer in order if not ends(longer)][:beam_size]
        running = [] if limit else [(longer, continuations[longer]) for longer in going]
        if len(pool) == beam_size and running:
            far = early_stopping == "never" and penalty > 0
            length = rule.limit if far else len(running[0][0])
            hope = max(score for _, score in running) / length**penalty
            if early_stopping is True or hope <= pool[-1].score:
                break
    if rule.limit == 0:
        retire((), 0.0, False)
    return (best(pool) + best(rest))[:beam_size]
