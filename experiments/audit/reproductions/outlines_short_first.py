"""outlines 1.3.3: of two alternatives, a longer one after its own beginning is never generated.

python outlines_short_first.py
"""

from outlines_core import Guide, Index, Vocabulary

vocabulary = Vocabulary(eos_token_id=2, map={b"a": [0], b"b": [1]})
for pattern in ("a|ab", "ab|a", "ab?"):
    guide = Guide(Index(pattern, vocabulary))
    guide.advance(0)
    print(pattern, sorted(guide.get_tokens()))
# After a, "ab|a" and "ab?" allow b (1) and the end (2). "a|ab" allows the end alone.
