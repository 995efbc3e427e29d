"""HTTP to a model's endpoint that cannot be led elsewhere, cannot fill the process, and leaves nothing behind."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import openai


class UnreadError(Exception):
    """Inside this package only: the answer has more bytes than one may have, or is compressed."""


class BoundedClient(openai.DefaultAsyncHttpxClient):
    """Reads at most *longest_answer* bytes of one answer, an error's included.

    It follows no redirect, for people's words stand in what it sends and go where the operator said, or not at
    all. It asks for answers as they are and takes no others: a thousand bytes of a compressed one can be a million.
    It keeps no cookies, which would join one person's calls to another's and pile up.
    """

    def __init__(self, longest_answer: int) -> None:
        nobodys = CookieJar(policy=DefaultCookiePolicy(allowed_domains=[]))
        super().__init__(follow_redirects=False, cookies=nobodys)
        self._longest_answer = longest_answer

    async def send(self, request: Any, **options: Any) -> Any:
        """The whole answer, or UnreadError, which passes through openai's client."""
        request.headers["accept-encoding"] = "identity"
        answer = await super().send(request, **{**options, "stream": True})
        try:
            if answer.headers.get("content-encoding", "identity").strip().lower() not in {"", "identity"}:
                raise UnreadError("the answer is compressed, which was not asked for")
            body = bytearray()
            async for part in answer.aiter_raw():
                body += part
                if len(body) > self._longest_answer:
                    raise UnreadError(f"an answer of more than {self._longest_answer} bytes")
        finally:
            await answer.aclose()
        whole = type(answer)
        return whole(answer.status_code, headers=answer.headers, content=bytes(body), request=request)
