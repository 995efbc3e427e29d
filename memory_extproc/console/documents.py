"""`/openapi.json`, and `/docs` to read it: the memory API over HTTP, described."""

from __future__ import annotations

import json
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from aiohttp import web

from memory_extproc.api.rest import NO_STORE

# No script, nothing from elsewhere; the one style is in the document.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .25rem; } h2 code { font-weight: 600; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
td { border-top: 1px solid #8884; padding: .3rem .6rem .3rem 0; vertical-align: top; }
td:first-child { width: 13rem; }
"""


@cache
def openapi() -> bytes:
    return files("memory_extproc.api.gen").joinpath("openapi.json").read_bytes()


def register_documents(application: web.Application) -> None:
    async def document(_: web.Request) -> web.Response:
        return web.Response(body=openapi(), content_type="application/json", headers=NO_STORE)

    async def page(_: web.Request) -> web.Response:
        headers = {**NO_STORE, "content-security-policy": _POLICY, "referrer-policy": "no-referrer"}
        return web.Response(text=reading_page(json.loads(openapi())), content_type="text/html", headers=headers)

    application.router.add_get("/openapi.json", document)
    application.router.add_get("/docs", page)


def reading_page(document: dict[str, Any]) -> str:
    """The OpenAPI document as a page: operations first, then what their objects hold."""
    operations = "".join(
        _operation(verb, path, operation)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    )
    schemas = "".join(_schema(name, schema) for name, schema in document["components"]["schemas"].items())
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>memory API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f"<main><h1>The memory API</h1><p>{escape(document['info']['description'])} "
        f'As a document for programs: <a href="/openapi.json">openapi.json</a>.</p>{operations}'
        f"<h1>Objects</h1>{schemas}"
        "</main></html>"
    )


def _operation(verb: str, path: str, operation: dict[str, Any]) -> str:
    rows = [(one["name"], one["in"], one.get("description", "")) for one in operation.get("parameters", ())]
    body = operation.get("requestBody")
    if body is not None:
        rows.append(("body", _type_of(body["content"]["application/json"]["schema"]), ""))
    answer = operation["responses"]["200"]["content"]["application/json"].get("schema")
    rows.append(("answer", _type_of(answer) if answer else "JSON Lines", ""))
    return (
        f'<section><h2 id="{escape(operation["operationId"])}"><code>{verb.upper()} {escape(path)}</code></h2>'
        f"<p>{escape(operation['description'])}</p>{_table(rows)}</section>"
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    rows = [
        (field, _type_of(one), one.get("description", "")) for field, one in schema.get("properties", {}).items()
    ]
    return (
        f'<section><h2 id="{escape(name)}"><code>{escape(name)}</code></h2>'
        f"<p>{escape(schema.get('description', ''))}</p>{_table(rows)}</section>"
    )


def _table(rows: list[tuple[str, str, str]]) -> str:
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code><br>{kind if kind.startswith('<') else escape(kind)}</td>"
        f"<td>{escape(text)}</td></tr>"
        for name, kind, text in rows
    )
    return f"<table>{cells}</table>" if cells else ""


def _type_of(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if schema.get("type") == "array":
        return f"<span>list of {_type_of(schema['items'])}</span>"
    return str(schema.get("format") or schema.get("type", ""))
