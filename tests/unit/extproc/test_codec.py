from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from memory_extproc.extproc import processor as codec
from memory_extproc.extproc.exchange import (
    Chunk,
    ExchangeMetadata,
    Reply,
    RequestBody,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from memory_extproc.extproc.gen import ext_proc_pb2 as pb
from memory_extproc.extproc.processor import BodyMode
from memory_extproc.model import Arm, Outcome
from memory_extproc.model.headers import Headers, RequestHeaders


def struct(**fields: Any) -> Struct:
    made = Struct()
    made.update(fields)
    return made


def test_a_message_of_a_kind_not_known_is_none_and_keeps_its_bytes() -> None:
    # Field 99, length-delimited: what a later Envoy might add.
    raw = b"\x9a\x06\x02hi"
    message = pb.ProcessingRequest.FromString(raw)
    assert codec.decode(message) is None
    assert message.SerializeToString() == raw


def test_an_unknown_field_beside_a_known_message_harms_nothing() -> None:
    known = pb.ProcessingRequest(request_body=pb.HttpBody(body=b"{}", end_of_stream=True))
    message = pb.ProcessingRequest.FromString(known.SerializeToString() + b"\x9a\x06\x02hi")
    assert codec.decode(message) == RequestBody(b"{}", last=True)


def test_headers_come_raw_or_plain_and_bytes_that_are_no_text_survive() -> None:
    pairs = [
        pb.HeaderValue(key="A", raw_value=b"1"),
        pb.HeaderValue(key="b", value="2"),
        pb.HeaderValue(key="c", raw_value=b"\xff"),
        pb.HeaderValue(key="d", raw_value="ü".encode()),
    ]
    message = pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=pb.HeaderMap(headers=pairs)))
    event = codec.decode(message)
    assert isinstance(event, RequestHeaders)
    assert list(event.headers) == [("a", "1"), ("b", "2"), ("c", "\udcff"), ("d", "ü")]
    assert not event.headers.get("c").isprintable()


def test_metadata_and_attributes_come_as_plain_values() -> None:
    message = pb.ProcessingRequest(request_headers=pb.HttpHeaders())
    message.metadata_context.filter_metadata["ns"].CopyFrom(struct(sub="ann", admin=True))
    message.attributes["envoy.filters.http.ext_proc"].CopyFrom(struct(**{"xds.route_name": "r"}))
    event = codec.decode(message)
    assert isinstance(event, RequestHeaders)
    assert event.metadata == {"ns": {"sub": "ann", "admin": True}}
    assert event.attributes == {"xds.route_name": "r"}


def test_metadata_of_whatever_another_filter_may_write_is_read() -> None:
    said = {"n": None, "deep": {"list": [1.5, "a", False, {"b": []}]}, "score": math.inf}
    message = pb.ProcessingRequest(request_headers=pb.HttpHeaders())
    message.metadata_context.filter_metadata["router"].CopyFrom(struct(**said, lost=math.nan))
    message.metadata_context.filter_metadata["empty"].SetInParent()
    event = codec.decode(message)
    assert isinstance(event, RequestHeaders)
    assert math.isnan(event.metadata["router"].pop("lost"))
    assert event.metadata == {"router": said, "empty": {}}


def test_every_event_is_decoded_and_answered_in_kind() -> None:
    requests = {
        "request_headers": (pb.HttpHeaders(end_of_stream=True), RequestHeaders),
        "request_body": (pb.HttpBody(body=b"x"), RequestBody),
        "request_trailers": (pb.HttpTrailers(), RequestTrailers),
        "response_headers": (pb.HttpHeaders(), ResponseHeaders),
        "response_body": (pb.HttpBody(end_of_stream=True), ResponseBody),
        "response_trailers": (pb.HttpTrailers(), ResponseTrailers),
    }
    for name, (content, kind) in requests.items():
        message = pb.ProcessingRequest()
        getattr(message, name).CopyFrom(content)
        event = codec.decode(message)
        assert event is not None
        assert isinstance(event, kind)
        assert codec.encode(event, Reply()).WhichOneof("response") == name


def test_a_replaced_body_never_travels_without_its_length() -> None:
    reply = codec.encode(RequestBody(b"", last=True), Reply(body="ü".encode()))
    mutation = reply.request_body.response.header_mutation
    assert [(one.header.key, one.header.raw_value) for one in mutation.set_headers] == [("content-length", b"2")]


def test_an_emptied_body_has_length_zero() -> None:
    reply = codec.encode(RequestBody(b"", last=True), Reply(body=b""))
    common = reply.request_body.response
    assert common.body_mutation.WhichOneof("mutation") == "body"
    assert common.header_mutation.set_headers[0].header.raw_value == b"0"


def test_what_became_of_an_exchange_is_told_as_metadata_of_our_namespace() -> None:
    told = ExchangeMetadata(
        outcome=Outcome.USED, count=2, tokens=40, took=timedelta(milliseconds=7.25), arm=Arm.MEMORY
    )
    reply = codec.encode(RequestBody(b"", last=True), Reply(told=told))
    assert reply.WhichOneof("response") == "request_body"
    assert MessageToDict(reply.dynamic_metadata) == {
        "memory": {"outcome": "used", "n": 2, "tokens": 40, "ms": 7.25, "arm": "memory"}
    }
    assert not codec.encode(RequestBody(b"", last=True), Reply()).HasField("dynamic_metadata")


def test_the_modes_are_known_from_the_first_message_only() -> None:
    assert codec.body_modes(pb.ProcessingRequest()) is None
    config = pb.ProtocolConfiguration(request_body_mode=2, response_body_mode=1)  # type: ignore[arg-type]  # numbers do
    assert codec.body_modes(pb.ProcessingRequest(protocol_config=config)) == (
        BodyMode.BUFFERED,
        BodyMode.STREAMED,
    )


def test_headers_print_their_names_and_never_their_values() -> None:
    assert repr(Headers([("authorization", "secret")])) == "<headers: authorization>"


def test_a_piece_of_a_body_goes_back_as_one_without_a_length() -> None:
    """The bytes: CommonResponse.body_mutation (3), streamed_response (3), body (1), end_of_stream (2)."""
    sent = codec.encode(ResponseBody(b"whole", last=True), Reply(chunk=Chunk(b"hi", last=True)))
    assert sent.response_body.response.SerializeToString() == b"\x1a\x08\x1a\x06\x0a\x02hi\x10\x01"
    assert not sent.response_body.response.HasField("header_mutation")


def test_a_reply_answers_what_it_says_it_is_for() -> None:
    last = RequestTrailers()
    kinds = [codec.encode(last, Reply(to=to)).WhichOneof("response") for to in (RequestHeaders, RequestBody, None)]
    assert kinds == ["request_headers", "request_body", "request_trailers"]


def test_every_mode_has_a_word_for_metrics_and_unknown_ones_share_one() -> None:
    assert [codec.mode_name(mode) for mode in (*BodyMode, 6, 99)] == [
        "none", "streamed", "buffered", "buffered_partial", "full_duplex_streamed", "grpc", "other", "other",
    ]  # fmt: skip
