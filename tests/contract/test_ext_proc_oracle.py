"""Our small proto against Envoy's own messages (the gRPC project's xds-protos), which live in another process:
both define the same names, and xds-protos overwrites parts of OpenTelemetry where it is installed."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import unknown_fields
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict, ParseDict

from memory_extproc.extproc import processor as codec
from memory_extproc.extproc.exchange import PASS, Chunk, Reply, RequestBody, ResponseBody, ResponseHeaders
from memory_extproc.extproc.gen import ext_proc_pb2 as pb
from memory_extproc.model.headers import Headers, RequestHeaders
from tests.support.installing import TOOLS, install_once

VERSION = "1.85.0"
ORACLE = """
import base64, json, sys
from google.protobuf.json_format import MessageToDict, ParseDict
from envoy.service.ext_proc.v3 import external_processor_pb2 as theirs

def shape(descriptor, seen):
    if descriptor.full_name in seen or descriptor.full_name.startswith("google."):
        return
    seen[descriptor.full_name] = {
        field.name: [field.number, field.type, field.is_repeated, getattr(field.containing_oneof, "name", "")]
        for field in descriptor.fields
    }
    for field in descriptor.fields:
        if field.message_type:
            shape(field.message_type, seen)

answers = []
for task in json.load(sys.stdin):
    kind = getattr(theirs, task["message"])
    if task["do"] == "shape":
        seen = {}
        shape(kind.DESCRIPTOR, seen)
        answers.append(seen)
    elif task["do"] == "write":
        raw = ParseDict(task["fields"], kind()).SerializeToString(deterministic=True)
        answers.append(base64.b64encode(raw).decode())
    else:
        read = kind.FromString(base64.b64decode(task["bytes"]))
        answers.append(MessageToDict(read, preserving_proto_field_name=True))
json.dump(answers, sys.stdout)
"""

REQUESTS: list[dict[str, Any]] = [
    {
        "request_headers": {
            "headers": {"headers": [{"key": ":path", "raw_value": "L3Yx"}, {"key": "a", "value": "b"}]},
            "end_of_stream": True,
        },
        "metadata_context": {"filter_metadata": {"ns": {"jwt": {"sub": "ann", "n": 1.0}}}},
        "attributes": {"envoy.filters.http.ext_proc": {"xds.route_name": "r"}},
        "protocol_config": {"request_body_mode": "BUFFERED", "response_body_mode": "STREAMED"},
    },
    {"request_body": {"body": "e30=", "end_of_stream": True}, "observability_mode": True},
    {"response_headers": {"headers": {"headers": [{"key": ":status", "raw_value": "MjAw"}]}}},
    {"response_body": {"body": "e30=", "end_of_stream_without_message": True, "grpc_message_compressed": True}},
    {"request_trailers": {"trailers": {"headers": [{"key": "x", "raw_value": "MQ=="}]}}},
    {"response_trailers": {"trailers": {}}},
]
RESPONSES: list[dict[str, Any]] = [
    {
        "request_body": {
            "response": {
                "status": "CONTINUE_AND_REPLACE",
                "header_mutation": {
                    "set_headers": [
                        {
                            "header": {"key": "x", "raw_value": "MQ=="},
                            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                            "append": True,
                            "keep_empty_value": True,
                        }
                    ],
                    "remove_headers": ["y"],
                },
                "body_mutation": {"body": "e30="},
                "trailers": {"headers": [{"key": "t", "raw_value": "MQ=="}]},
                "clear_route_cache": True,
            }
        },
        "dynamic_metadata": {"hits": 3.0},
        "mode_override": {"request_body_mode": "STREAMED", "response_trailer_mode": "SEND"},
        "override_message_timeout": "1.500s",
        "request_drain": True,
    },
    {
        "response_body": {
            "response": {"body_mutation": {"streamed_response": {"body": "e30=", "end_of_stream": True}}}
        }
    },
    {"response_body": {"response": {"body_mutation": {"clear_body": True}}}},
    {"request_headers": {"response": {}}},
    {"response_headers": {"response": {}}},
    {"request_trailers": {"header_mutation": {"remove_headers": ["y"]}}},
    {"response_trailers": {}},
]
IMMEDIATE = {"immediate_response": {"body": "bm8=", "grpc_status": {"status": 7}, "details": "why"}}


@pytest.fixture(scope="session")
def xds_protos() -> Path:
    """The messages in a directory of their own, fetched where it is not there yet."""
    target = TOOLS / "xds-protos"
    fault = install_once(target, f"xds-protos=={VERSION}", holds="envoy/service/ext_proc")
    assert not fault, fault
    return target


def ask(xds_protos: Path, tasks: list[dict[str, Any]]) -> list[Any]:
    environment = {**os.environ, "PYTHONPATH": str(xds_protos)}
    ran = subprocess.run(
        [sys.executable, "-c", ORACLE], input=json.dumps(tasks), env=environment, capture_output=True, text=True,
        check=False, cwd=xds_protos,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    answers: list[Any] = json.loads(ran.stdout)
    return answers


def as_dict(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return fields


def test_what_envoy_writes_we_read_field_by_field(xds_protos: Path) -> None:
    cases = [("ProcessingRequest", fields) for fields in REQUESTS] + [("ProcessingResponse", f) for f in RESPONSES]
    written = ask(xds_protos, [{"do": "write", "message": kind, "fields": fields} for kind, fields in cases])
    for (kind, fields), raw in zip(cases, written, strict=True):
        ours = getattr(pb, kind).FromString(base64.b64decode(raw))
        assert as_dict(ours) == fields
        assert len(unknown_fields.UnknownFieldSet(ours)) == 0
        assert ours.SerializeToString(deterministic=True) == base64.b64decode(raw)


def test_what_we_write_envoy_reads_field_by_field(xds_protos: Path) -> None:
    messages = [ParseDict(fields, pb.ProcessingResponse()) for fields in [*RESPONSES, IMMEDIATE]]
    messages.append(pb.ProcessingResponse(immediate_response=pb.ImmediateResponse(status=pb.HttpStatus(code=403))))
    tasks = [
        {"do": "read", "message": "ProcessingResponse", "bytes": base64.b64encode(m.SerializeToString()).decode()}
        for m in messages
    ]
    read = ask(xds_protos, tasks)
    assert read[:-1] == [*RESPONSES, IMMEDIATE]
    assert read[-1] == {"immediate_response": {"status": {"code": "Forbidden"}}}


def test_the_replies_of_our_codec_mean_to_envoy_what_we_meant(xds_protos: Path) -> None:
    headers = RequestHeaders(Headers([]), last=False)
    replies = [
        codec.encode(headers, Reply(remove_headers=("x-memory-store",))),
        codec.encode(RequestBody(b"", last=True), Reply(body=b"{}", remove_headers=("content-encoding",))),
        codec.encode(ResponseHeaders(Headers([]), last=False), Reply(set_headers=(("x-memory-status", "used"),))),
        codec.encode(RequestBody(b"", last=True), PASS),
        codec.encode(RequestBody(b"", last=True), Reply(to=ResponseBody, chunk=Chunk(b"{}", last=True))),
    ]
    tasks = [
        {"do": "read", "message": "ProcessingResponse", "bytes": base64.b64encode(r.SerializeToString()).decode()}
        for r in replies
    ]

    def setting(name: str, value: bytes) -> dict[str, Any]:
        header = {"key": name, "raw_value": base64.b64encode(value).decode()}
        return {"header": header, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}

    assert ask(xds_protos, tasks) == [
        {"request_headers": {"response": {"header_mutation": {"remove_headers": ["x-memory-store"]}}}},
        {
            "request_body": {
                "response": {
                    "header_mutation": {
                        "set_headers": [setting("content-length", b"2")],
                        "remove_headers": ["content-encoding"],
                    },
                    "body_mutation": {"body": "e30="},
                }
            }
        },
        {
            "response_headers": {
                "response": {"header_mutation": {"set_headers": [setting("x-memory-status", b"used")]}}
            }
        },
        {"request_body": {"response": {}}},
        {
            "response_body": {
                "response": {"body_mutation": {"streamed_response": {"body": "e30=", "end_of_stream": True}}}
            }
        },
    ]


def test_every_field_of_ours_has_envoys_name_number_and_type(xds_protos: Path) -> None:
    kinds = ["ProcessingRequest", "ProcessingResponse"]
    theirs: dict[str, Any] = {}
    for found in ask(xds_protos, [{"do": "shape", "message": kind} for kind in kinds]):
        theirs |= {name.rpartition(".")[2]: fields for name, fields in found.items()}
    ours: dict[str, Any] = {}
    for kind in kinds:
        shape(getattr(pb, kind).DESCRIPTOR, ours)
    # An enum there, a number here: the same on the wire, and new HTTP codes need nothing from us.
    assert ours["HttpStatus"].pop("code")[1] == FieldDescriptor.TYPE_INT32
    assert theirs["HttpStatus"].pop("code")[1] == FieldDescriptor.TYPE_ENUM
    for message, fields in ours.items():
        for name, told in fields.items():
            assert theirs[message][name] == told, f"{message}.{name}"


def shape(descriptor: Descriptor, seen: dict[str, Any]) -> None:
    if descriptor.name in seen or descriptor.full_name.startswith("google."):
        return
    seen[descriptor.name] = {
        field.name: [
            field.number,
            field.type,
            field.is_repeated,
            getattr(field.containing_oneof, "name", ""),
        ]
        for field in descriptor.fields
    }
    for field in descriptor.fields:
        if field.message_type:
            shape(field.message_type, seen)
