"""Plays the vLLM semantic router as an external processor of its own in a real Envoy, before memory or behind it.

What it sets and answers is data, `tests/router/recorded.json`, with the version that it was read from. It routes by
a word in the question, as a keyword signal does, sets what a decision's `header_mutation` plugin would, translates
Responses to chat completions and back, and puts its headers on answers.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import grpc

from memory_extproc.extproc.gen import ext_proc_pb2 as pb
from tests.support.envoy import PATH_CHAT, Wiring

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "router" / "recorded.json").read_text(encoding="utf-8")
)
PATH_RESPONSES = "/v1/responses"


class Router:
    """Serves from `async with` on. *answers*: the name of the recorded response headers."""

    def __init__(self, answers: str = "upstream", *, translates: bool = False) -> None:
        self.answers, self.translates = answers, translates
        self.seen: list[dict[str, Any]] = []  # bodies, as they reached it
        self.port = 0
        self._server = grpc.aio.server()

    async def __aenter__(self) -> Self:
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=pb.ProcessingResponse.SerializeToString,
        )
        service = grpc.method_handlers_generic_handler(
            "envoy.service.ext_proc.v3.ExternalProcessor", {"Process": handler}
        )
        self._server.add_generic_rpc_handlers((service,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.stop(0)

    def wiring(self, *, before_us: bool) -> Wiring:
        there: dict[str, Any] = {
            "name": "router",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor",
                "grpc_service": {"envoy_grpc": {"cluster_name": "semantic-router"}},
                "message_timeout": "10s",
                "allow_mode_override": True,
                "mutation_rules": {"allow_all_routing": True},
                "processing_mode": {
                    "request_header_mode": "SEND",
                    "response_header_mode": "SEND",
                    "request_body_mode": "BUFFERED",
                    "response_body_mode": "BUFFERED" if self.translates else "NONE",
                },
            },
        }
        wiring = Wiring(processors={"semantic-router": self.port})
        return replace(wiring, before_us=[there]) if before_us else replace(wiring, behind_us=[there])

    async def _process(
        self, requests: AsyncIterator[pb.ProcessingRequest], _: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ProcessingResponse]:
        path = ""
        async for message in requests:
            reply = pb.ProcessingResponse()
            match message.WhichOneof("request"):
                case "request_headers":
                    pairs = message.request_headers.headers.headers
                    path = next(one.raw_value.decode() for one in pairs if one.key == ":path")
                    reply.request_headers.response.SetInParent()
                case "request_body":
                    self._route(path, message.request_body.body, reply.request_body.response)
                case "response_headers":
                    _set(reply.response_headers.response, RECORDED["responses"][self.answers])
                case "response_body":
                    self._translate_back(path, message.response_body.body, reply.response_body.response)
                case other:
                    raise AssertionError(other)
            yield reply

    def _route(self, path: str, raw: bytes, common: pb.CommonResponse) -> None:
        body = json.loads(raw)
        self.seen.append(body)
        if body["model"] == "auto":
            asked = json.dumps(body.get("input") or body["messages"][-1])
            decided = [one["set"] for one in RECORDED["decisions"].values() if one["when"] in asked]
            _set(common, {**RECORDED["selected"], **(decided[0] if decided else {})})
            body["model"] = RECORDED["selected"]["x-selected-model"]
        if self.translates and path == PATH_RESPONSES:
            body["messages"] = [{"role": "user", "content": body.pop("input")}]
            _set(common, {":path": PATH_CHAT})
        _put(common, body)

    def _translate_back(self, path: str, raw: bytes, common: pb.CommonResponse) -> None:
        if path != PATH_RESPONSES:
            common.SetInParent()  # an answer that changes nothing
            return
        said = json.loads(raw)["choices"][0]["message"]["content"]
        content = [{"type": "output_text", "text": said, "annotations": []}]
        message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
        _put(common, {"id": "resp_1", "object": "response", "status": "completed", "output": [message]})


def _put(common: pb.CommonResponse, body: dict[str, Any]) -> None:
    common.body_mutation.body = json.dumps(body).encode()
    _set(common, {"content-length": str(len(common.body_mutation.body))})


def _set(common: pb.CommonResponse, headers: dict[str, str]) -> None:
    for name, value in headers.items():
        option = common.header_mutation.set_headers.add()
        option.header.key, option.header.raw_value = name, value.encode()
        option.append_action = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
