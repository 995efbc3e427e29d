"""Writes memory_extproc/api/gen/openapi.json: the memory API over HTTP, from the proto and its comments.

With --check, fails when what is committed differs. The rules are those of api/rest.py:
names as in the proto, 64-bit integers as strings, streams as JSON Lines.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from check_protos import describe
from generate_protos import ROOT
from google.api import annotations_pb2, http_pb2
from google.protobuf import descriptor_pb2 as described

KEPT = ROOT / "memory_extproc" / "api" / "gen" / "openapi.json"
Field = described.FieldDescriptorProto
Json = dict[str, Any]

_SCALARS: dict[int, Json] = {
    Field.TYPE_STRING: {"type": "string"},
    Field.TYPE_BOOL: {"type": "boolean"},
    Field.TYPE_INT32: {"type": "integer", "format": "int32", "minimum": -(2**31), "maximum": 2**31 - 1},
    Field.TYPE_INT64: {"type": "string", "format": "int64", "pattern": "^-?[0-9]{1,18}$"},
    Field.TYPE_DOUBLE: {"type": "number", "format": "double"},
    Field.TYPE_BYTES: {"type": "string", "format": "byte"},
}
_KNOWN: dict[str, Json] = {
    ".google.protobuf.Timestamp": {"type": "string", "format": "date-time"},
    ".google.protobuf.Struct": {"type": "object"},
    ".google.protobuf.FieldMask": {"type": "string", "description": "Names joined by commas."},
}
_VERBOSE: Json = {
    "name": "verbose",
    "in": "query",
    "schema": {"type": "boolean"},
    "description": "Every field: whole ids, internal metadata, receipts with stores and signature, questions.",
}
_STATUS: Json = {
    "type": "object",
    "description": "Why a call failed: google.rpc.Status, details such as google.rpc.BadRequest included.",
    "properties": {
        "code": {"type": "integer", "description": "The gRPC status code."},
        "message": {"type": "string"},
        "details": {"type": "array", "items": {"type": "object"}},
    },
}


class Document:
    def __init__(self, files: described.FileDescriptorSet) -> None:
        self.file = next(file for file in files.file if file.package == "memory.v1")
        self.messages = {f".{self.file.package}.{one.name}": one for one in self.file.message_type}
        self.comments = {
            tuple(where.path): " ".join(where.leading_comments.split())
            for where in self.file.source_code_info.location
            if where.leading_comments
        }
        self.schemas: Json = {"Status": _STATUS}

    def build(self) -> Json:
        paths: Json = {}
        (service,) = self.file.service
        for at, method in enumerate(service.method):
            rule = method.options.Extensions[annotations_pb2.http]
            for number, one in enumerate((rule, *rule.additional_bindings)):
                verb = str(one.WhichOneof("pattern"))
                path = getattr(one, verb)
                operation = self.operation(method, one, path, self.comments.get((6, 0, 2, at), ""))
                operation["operationId"] = method.name + ("" if number == 0 else str(number + 1))
                paths.setdefault(path, {})[verb] = operation
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "memory-extproc",
                "version": "v1",
                "description": self.comments.get((6, 0), ""),
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "paths": paths,
            "components": {
                "schemas": dict(sorted(self.schemas.items())),
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer"},
                    "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
                },
            },
            # Or none at all, where a gateway says who calls.
            "security": [{"bearer": []}, {"api_key": []}, {}],
        }

    def operation(
        self, method: described.MethodDescriptorProto, rule: http_pb2.HttpRule, path: str, comment: str
    ) -> Json:
        request = self.messages[method.input_type]
        in_path = set(re.findall(r"{(\w+)}", path))
        parameters = [
            self.parameter(method.input_type, field, "path") for field in request.field if field.name in in_path
        ]
        if rule.body != "*":
            others = [field for field in request.field if field.name not in {*in_path, rule.body}]
            parameters += [self.parameter(method.input_type, field, "query") for field in others]
        if not (method.client_streaming or method.server_streaming):
            parameters.append(_VERBOSE)
        made: Json = {"summary": comment.split(". ", maxsplit=1)[0].rstrip(".") + ".", "description": comment}
        if parameters:
            made["parameters"] = parameters
        if rule.body:
            schema = self.reference(method.input_type)
            if rule.body != "*":
                schema = self.schema(next(field for field in request.field if field.name == rule.body))
            if method.client_streaming:
                schema = {"type": "array", "items": schema}
            made["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        answer = self.reference(method.output_type)
        made["responses"] = {
            "200": {
                "description": "JSON Lines of these." if method.server_streaming else "Done.",
                "content": {"application/json": {} if method.server_streaming else {"schema": answer}},
            },
            "default": {
                "description": "Not done.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Status"}}},
            },
        }
        return made

    def parameter(self, owner: str, field: Field, place: str) -> Json:
        schema = self.schema(field)
        made: Json = {
            "name": field.name,
            "in": place,
            "schema": {k: v for k, v in schema.items() if k != "description"},
        }
        if place == "path":
            # An empty one, or one with a slash, is another path.
            made |= {"required": True, "schema": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,64}$"}}
        return {**made, "description": self.comment(owner, field)}

    def reference(self, name: str) -> Json:
        short = name.rpartition(".")[2]
        if short not in self.schemas:
            self.schemas[short] = {}  # a message may hold itself
            message = self.messages[name]
            at = list(self.messages).index(name)
            self.schemas[short] = {
                "type": "object",
                "description": self.comments.get((4, at), ""),
                "properties": {field.name: self.property(name, field) for field in message.field},
            }
        return {"$ref": f"#/components/schemas/{short}"}

    def property(self, owner: str, field: Field) -> Json:
        comment = self.comment(owner, field)
        made = {**self.schema(field), "description": comment.removeprefix("(out) ")}
        return {**made, "readOnly": True} if comment.startswith("(out)") else made

    def schema(self, field: Field) -> Json:
        if field.type != Field.TYPE_MESSAGE:
            made = dict(_SCALARS[field.type])
        elif field.type_name in _KNOWN:
            made = dict(_KNOWN[field.type_name])
        elif (entry := self.entry(field)) is not None:
            return {"type": "object", "additionalProperties": self.schema(entry.field[1])}
        else:
            made = self.reference(field.type_name)
        return {"type": "array", "items": made} if field.label == Field.LABEL_REPEATED else made

    def entry(self, field: Field) -> described.DescriptorProto | None:
        """The pairs of a map; None for what is no map."""
        for message in self.messages.values():
            for nested in message.nested_type:
                if field.type_name.endswith(f".{message.name}.{nested.name}") and nested.options.map_entry:
                    return nested
        return None

    def comment(self, owner: str, field: Field) -> str:
        at = list(self.messages).index(owner)
        return self.comments.get((4, at, 2, list(self.messages[owner].field).index(field)), "")


def document() -> str:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "memory.binpb"
        describe(path, "--include_source_info")
        files = described.FileDescriptorSet.FromString(path.read_bytes())
    return json.dumps(Document(files).build(), indent=1) + "\n"


def main() -> None:
    made = document()
    if KEPT.exists() and KEPT.read_text() == made:
        return
    if "--check" in sys.argv[1:]:
        raise SystemExit(f"out of date: {KEPT.relative_to(ROOT)}")
    KEPT.write_text(made)
    print(f"written: {KEPT.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
