"""One life of the sidecar as a gateway and people meet it: chats through ext_proc, the memory API, the numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.request import urlopen

import grpc
import grpc.aio

from memory_extproc.api.gen import memory_pb2 as api
from memory_extproc.cli.api_client import open_stub
from memory_extproc.extproc.gen import ext_proc_pb2 as pb

NAMESPACE = "verified"  # of Envoy's metadata, where a filter in front puts memberships
ROLES = "x-roles"
STATES = ["active", "superseded", "quarantined", "deleted"]
PATIENCE = 20.0  # seconds
ANSWERED = {":status": "200", "content-type": "application/json"}


@dataclass(frozen=True)
class Person:
    tenant: str
    user: str

    def __str__(self) -> str:
        return f"{self.tenant!r}/{self.user!r}"


@dataclass(frozen=True)
class Said:
    """What came of one exchange: the body as the upstream got it, and the outcome."""

    sent: dict[str, Any]
    upstream: dict[str, Any]
    outcome: str

    @property
    def added(self) -> str:
        """All text that the upstream got and the client did not send."""
        left = list(_texts(self.sent))
        told: list[str] = []
        for text in _texts(self.upstream):
            whole = text
            for one in sorted(left, key=len, reverse=True):
                if one and one in whole:
                    left.remove(one)
                    whole = whole.replace(one, " ", 1)
                    break
            told.append(whole)
        return "\n".join(told)


@dataclass
class Chat:
    """A conversation as its client holds it."""

    person: Person
    session: str = ""
    project: str = ""
    history: list[dict[str, str]] = field(default_factory=list)


class Front:
    """As many calls at once as one likes. A call raises AioRpcError where the life ends under it."""

    def __init__(self, addresses: dict[str, Any]) -> None:
        self.process = int(addresses["process"])
        self._http = addresses["http"]
        self._wire = grpc.aio.insecure_channel(addresses["ext_proc"])
        self._api = grpc.aio.insecure_channel(addresses["api"])
        self._stub: Any = open_stub(self._api)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._wire.close(None)
        await self._api.close(None)

    # --- chats ---------------------------------------------------------------------------------------
    async def chat(
        self,
        chat: Chat,
        words: str,
        answer: str,
        *,
        memberships: Sequence[str] = (),
        response: str = "",
        previous: str = "",
        **headers: str,
    ) -> Said:
        """One exchange. With *response*, the id of its response, in the dialect of responses."""
        messages = [*chat.history, {"role": "user", "content": words}]
        body: dict[str, Any] = {"model": "demo", "messages": messages}
        answered = _completion(answer)
        if response:
            body = {"model": "demo", "input": words, **({"previous_response_id": previous} if previous else {})}
            answered = _response(response, answer)
        path = "/v1/responses" if response else "/v1/chat/completions"
        pairs = {":method": "POST", ":path": path, "content-type": "application/json", ":authority": "gateway"}
        pairs |= {"x-authz-user-id": chat.person.user, "x-authz-tenant-id": chat.person.tenant}
        pairs |= {"x-session-id": chat.session, "x-memory-project": chat.project}
        pairs |= {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._exchange(pairs, memberships, body, answered)

    async def _exchange(
        self, pairs: dict[str, str], memberships: Sequence[str], body: dict[str, Any], answered: bytes
    ) -> Said:
        raw = json.dumps(body).encode()
        events = [
            _opening(pairs, memberships),
            pb.ProcessingRequest(request_body=pb.HttpBody(body=raw, end_of_stream=True)),
            pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=_headers(ANSWERED))),
            pb.ProcessingRequest(response_body=pb.HttpBody(body=answered, end_of_stream=True)),
        ]
        upstream, outcome = raw, "passed"
        for reply in await self._replies(events):
            if reply.request_body.response.body_mutation.WhichOneof("mutation"):
                upstream = reply.request_body.response.body_mutation.body
            # A second entry tells another filter of ours that this one has seen the request; it has no outcome.
            if "memory" in reply.dynamic_metadata and "outcome" in reply.dynamic_metadata["memory"]:
                outcome = reply.dynamic_metadata["memory"]["outcome"]
        return Said(body, json.loads(upstream), outcome)

    async def _replies(self, events: Sequence[pb.ProcessingRequest]) -> list[Any]:
        """One to each of *events*, until the other side ends the stream."""
        call: Any = self._wire.stream_stream(
            "/envoy.service.ext_proc.v3.ExternalProcessor/Process",
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )
        stream = call(timeout=PATIENCE)
        replies: list[Any] = []
        try:
            for event in events:
                await stream.write(event)
                reply = await stream.read()
                if not isinstance(reply, pb.ProcessingResponse):
                    break
                replies.append(reply)
            else:
                await stream.done_writing()
            code = await stream.code()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.INTERNAL:  # so a client hears that it writes after the end
                raise
        else:
            if code is not grpc.StatusCode.OK:
                raise EndedError
        return replies

    # --- the memory API ------------------------------------------------------------------------------
    async def call(self, method: str, request: Any, person: Person, *, roles: str = "") -> Any:
        metadata = _as(person, request, roles)
        return await getattr(self._stub, method)(request, metadata=metadata, timeout=PATIENCE)

    async def everything(self, person: Person, limit: int) -> list[Any]:
        """All memories in whatever state, page by page."""
        found: list[Any] = []
        token = ""
        while True:
            request = api.ListMemoriesRequest(state=STATES, limit=limit, page_token=token)
            page = await self.call("ListMemories", request, person)
            found += page.memories
            token = page.next_page_token
            if not token:
                return found

    async def export(self, person: Person) -> list[Any]:
        request = api.ExportMemoriesRequest()
        metadata = _as(person, request, "")
        return [one async for one in self._stub.ExportMemories(request, metadata=metadata, timeout=PATIENCE)]

    async def bring(self, person: Person, memories: Iterable[Any], on_conflict: str = "") -> Any:
        start = api.ImportStart(on_conflict=on_conflict)
        metadata = _as(person, start, "")

        async def parts() -> AsyncIterator[Any]:
            yield api.ImportMemoriesRequest(start=start)
            for memory in memories:
                yield api.ImportMemoriesRequest(memory=memory)

        return await self._stub.ImportMemories(parts(), metadata=metadata, timeout=PATIENCE)

    # --- what operators see --------------------------------------------------------------------------
    async def page(self, path: str) -> str:
        def read() -> str:
            with urlopen(f"http://{self._http}{path}", timeout=PATIENCE) as answer:
                return str(answer.read().decode())

        return await asyncio.to_thread(read)


class EndedError(Exception):
    """The life ended under an exchange."""


def _as(person: Person, request: Any, roles: str) -> list[tuple[str, str]]:
    """Names beyond ASCII do not fit a header of gRPC: an admin of the tenant names those."""
    if person.user.isascii():
        user = person.user
    else:
        user, roles, request.user_id = "admin", "admin", person.user
    return [("x-authz-user-id", user), ("x-authz-tenant-id", person.tenant), *([(ROLES, roles)] if roles else [])]


def _opening(pairs: dict[str, str], memberships: Sequence[str]) -> pb.ProcessingRequest:
    first = pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=_headers(pairs)))
    first.protocol_config.request_body_mode = pb.ProcessingMode.BodySendMode.BUFFERED
    first.protocol_config.response_body_mode = pb.ProcessingMode.BodySendMode.STREAMED
    if memberships:
        first.metadata_context.filter_metadata[NAMESPACE].update({"projects": list(memberships)})
    return first


def _headers(pairs: dict[str, str]) -> pb.HeaderMap:
    return pb.HeaderMap(
        headers=[pb.HeaderValue(key=name, raw_value=value.encode()) for name, value in pairs.items() if value]
    )


def _texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def _completion(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps({"id": "c", "object": "chat.completion", "model": "demo", "choices": [choice]}).encode()


def _response(response_id: str, text: str) -> bytes:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return json.dumps(
        {"id": response_id, "object": "response", "status": "completed", "model": "demo", "output": [said]}
    ).encode()
