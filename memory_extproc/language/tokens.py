"""How many tokens a text costs, estimated without any model's tokenizer.

Byte-pair encodings of today's models take about four characters of English to a token, two of other alphabetic
scripts, and about one token for each ideograph, syllable or emoji. The estimate errs upwards: it decides what
fits, and too much would be refused by the provider.
"""

from __future__ import annotations

import re


def estimate_tokens(text: str) -> int:
    """Estimated tokens, at least 1 for any text that is not empty; never falls as the text grows, and never
    more for two texts joined than for the two apart."""
    plain = len(text.encode("ascii", "ignore"))
    if plain == len(text):
        return (plain + 3) // 4
    wide = len(text) - len(_WIDE_RUNS.sub("", text))  # runs, not characters: bodies of megabytes come by here
    alphabetic = len(text) - plain - wide
    return (plain + 2 * alphabetic + 4 * wide + 3) // 4


WIDE = 0x2E80  # from here on, by and large, one character is one token or more (CJK, Hangul, emoji)
_WIDE_RUNS = re.compile(f"[{chr(WIDE)}-\U0010ffff]+")
