"""How many tokens a prompt will be, before anybody has counted them. Pure.

From its bytes, by what the same account's prompts came to before: languages and tokenizers differ by
a factor of four. Too low lets the engine's cache overflow and too high only makes somebody wait, so
that an estimate rises at once and falls slowly.
"""

from collections import OrderedDict
from math import ceil

START_TOKENS_PER_BYTE = 1 / 3
LEAST_TOKENS_PER_BYTE = 1 / 6

# Byte-level vocabularies give a byte one token at the very most, and a template that escapes what is
# not ASCII doubles its characters. More than that is not the prompt's: a template's own text.
MOST_TOKENS_PER_BYTE = 2.0

_ABSURD_TOKENS_PER_BYTE = 10.0

# Below, the template's own tokens would pass for the prompt's: "hi" comes to thirty tokens, or to
# five hundred where the template brings a system prompt of its own.
_TELLING_BYTES = 1_000

_FALL = 1 / 16


class Estimates:
    """What each account's bytes have come to, of the accounts that were answered last.

    Args:
        media_tokens: What one image or sound is taken to need (``PROXY_MEDIA_TOKENS``).
        max_accounts: How many are remembered; any other starts anew.
    """

    def __init__(self, *, media_tokens: int, max_accounts: int = 10_000) -> None:
        self._media_tokens = media_tokens
        self._max_accounts = max_accounts
        self._tokens_per_byte: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """How many accounts are remembered."""
        return len(self._tokens_per_byte)

    def prompt_tokens(self, account: str, text_bytes: int, media_parts: int) -> int:
        """What a prompt of that many bytes and media will probably need."""
        ratio = self._tokens_per_byte.get(account, START_TOKENS_PER_BYTE)
        return ceil(text_bytes * ratio) + media_parts * self._media_tokens

    @staticmethod
    def least_tokens(text_bytes: int) -> int:
        """What a prompt of that many bytes will need even where we know nothing."""
        return ceil(text_bytes * LEAST_TOKENS_PER_BYTE)

    def learn(self, account: str, text_bytes: int, media_parts: int, prompt_tokens: int) -> None:
        """The engine has counted.

        A prompt with media teaches nothing: its tokens are mostly theirs, and how many of them were
        nobody says.
        """
        if media_parts or text_bytes < _TELLING_BYTES or prompt_tokens <= 0:
            return
        seen = prompt_tokens / text_bytes
        if seen > _ABSURD_TOKENS_PER_BYTE:
            return
        ratios = self._tokens_per_byte
        ratio = ratios.pop(account, START_TOKENS_PER_BYTE)
        ratio = seen if seen > ratio else ratio + (seen - ratio) * _FALL
        if ratio < LEAST_TOKENS_PER_BYTE:
            ratio = LEAST_TOKENS_PER_BYTE
        elif ratio > MOST_TOKENS_PER_BYTE:
            ratio = MOST_TOKENS_PER_BYTE
        ratios[account] = ratio
        if len(ratios) > self._max_accounts:
            ratios.popitem(last=False)
