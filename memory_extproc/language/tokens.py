"""How many tokens a text costs, estimated without any model's tokenizer.

Byte-pair encodings of today's models take about four characters of English or three of other alphabetic
scripts to a token, and about one token for each ideograph, syllable or emoji. The estimate errs upwards:
it decides what fits, and too much would be refused by the provider.
"""

from __future__ import annotations


def estimate_tokens(text: str) -> int:
    """Estimated tokens, at least 1 for any text that is not empty; never falls as the text grows."""
    if not text:
        return 0
    encoded = len(text.encode("utf-8", "surrogatepass"))
    if encoded == len(text):
        return (encoded + 3) // 4
    wide = sum(1 for char in text if ord(char) >= WIDE)
    narrow = len(text) - wide
    return (narrow + 2) // 3 + wide


WIDE = 0x2E80  # from here on, by and large, one character is one token or more (CJK, Hangul, emoji)
