"""Page tokens: where a list goes on, readable and makeable by nobody else, for one user and one filter."""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from datetime import timedelta

import grpc

from memory_extproc.api.refusal import Reason, RefusedError
from memory_extproc.curate.catalogue import Cursor
from memory_extproc.ports import Now

LIFE = timedelta(hours=1)
_MAC_BYTES = 16
_LONGEST = 512  # characters


class PageTokens:
    def __init__(self, key: bytes, now: Now) -> None:
        self._key = key
        self._now = now

    def write(self, cursor: Cursor, bound_to: bytes) -> str:
        """*bound_to*: the user and the filter; the token counts for nothing else."""
        expires = int((self._now() + LIFE).timestamp())
        body = json.dumps([expires, cursor.newest_first, cursor.id], separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._mac(body, bound_to) + body).decode().rstrip("=")

    def read(self, token: str, bound_to: bytes) -> Cursor:
        """RefusedError for what we did not write, wrote for something else, or wrote too long ago."""
        try:
            if len(token) > _LONGEST:
                raise _refused()
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise _refused() from None
        mac, body = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(body, bound_to)):
            raise _refused()
        expires, newest_first, id_ = json.loads(body)
        if self._now().timestamp() >= expires:
            raise _refused()
        return Cursor(newest_first, id_)

    def _mac(self, body: bytes, bound_to: bytes) -> bytes:
        return hmac.digest(self._key, len(body).to_bytes(4, "big") + body + bound_to, "sha256")[:_MAC_BYTES]


def _refused() -> RefusedError:
    return RefusedError(
        grpc.StatusCode.INVALID_ARGUMENT,
        Reason.BAD_PAGE_TOKEN,
        "begin again from the first page",
        violations=[("page_token", "next_page_token of the page before, within an hour and with the same filters")],
    )
