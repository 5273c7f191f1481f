"""The description of the HTTP interface in OpenAPI 3.1, derived from the bodies of requests and responses."""

from __future__ import annotations

import functools
from typing import Any, Final, NamedTuple

import msgspec

from pagetier import __version__
from pagetier.daemon.http.bodies import (
    Health,
    HintBody,
    HintResult,
    LookupBody,
    PrefetchAccepted,
    PrefetchBody,
    PrefetchStatus,
)
from pagetier.daemon.http.http_connection import ErrorBody
from pagetier.daemon.stats.page_lookup import FoundPages
from pagetier.daemon.stats.snapshot import Snapshot

_PLACE: Final = "#/components/schemas/{name}"
_NO_TOKEN: Final = {"401": "The token of the port is missing or wrong."}
_FOREIGN: Final = {"421": "At a socket: the header Host names another site."}
_WATCH: Final = _NO_TOKEN | {"403": "The caller may not watch."} | _FOREIGN
_ATTACH: Final = _NO_TOKEN | {"403": "The caller may not attach."} | _FOREIGN
_PAGES: Final = {
    "400": "The body is not valid.",
    "404": "There is no such namespace, or several match.",
    "413": "The body has more than 1 MiB.",
}
_ABSENT: Final = {"503": "The daemon does not answer."}


class _Operation(NamedTuple):
    """One operation: what it does, the types of its bodies, its status and its errors."""

    id: str
    summary: str
    returns: type[msgspec.Struct]
    errors: dict[str, str]
    takes: type[msgspec.Struct] | None = None
    status: str = "200"


_OPERATIONS: Final[dict[tuple[str, str], _Operation]] = {
    ("/v1/lookup", "post"): _Operation(
        "lookup", "Says how far a prompt is here, by tier; changes nothing.", FoundPages, _WATCH | _PAGES, LookupBody
    ),
    ("/v1/prefetch", "post"): _Operation(
        "prefetch",
        "Reads the pages of a prompt from disk into memory, head first, up to the first that is in no tier; or those of"
        " a namespace, as many as fit.",
        PrefetchAccepted,
        _ATTACH | _PAGES,
        PrefetchBody,
        "202",
    ),
    ("/v1/prefetch/{id}", "get"): _Operation(
        "prefetchStatus",
        "Says how far a prefetch of the same user is; it is forgotten some time after its end.",
        PrefetchStatus,
        _ATTACH | {"404": "There is no such prefetch of this user."},
    ),
    ("/v1/hint", "post"): _Operation(
        "hint",
        "Says what is known of pages, for eviction.",
        HintResult,
        _ATTACH | _PAGES | _ABSENT | {"409": "Hints have no effect with evict.policy = lru."},
        HintBody,
    ),
    ("/v1/stats", "get"): _Operation("stats", "Returns what `pagetier stats --json` prints.", Snapshot, _WATCH),
    ("/healthz", "get"): _Operation(
        "health", "Says whether engines can attach.", Health, {"503": "The daemon starts, stops or does not answer."}
    ),
}


@functools.cache
def description() -> bytes:
    """Returns the description as JSON."""
    types = {kind for each in _OPERATIONS.values() for kind in (each.returns, each.takes, ErrorBody) if kind}
    ordered = sorted(types, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=_PLACE)
    paths: dict[str, dict[str, Any]] = {}
    for (path, method), operation in _OPERATIONS.items():
        paths.setdefault(path, {})[method] = _described(path, operation)
    paths["/"] = {"get": _PAGE}
    paths["/metrics"] = {"get": _METRICS}
    paths["/v1/openapi.json"] = {"get": _DESCRIPTION}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "pagetier", "version": __version__, "description": _ABOUT},
            "security": [{}, {"token": []}],
            "paths": paths,
            "components": {
                "schemas": schemas,
                "securitySchemes": {
                    "token": {"type": "http", "scheme": "bearer"},
                    "password": {"type": "http", "scheme": "basic"},
                },
            },
        }
    )


_ABOUT: Final = (
    "A socket identifies its callers by the kernel and needs no token. Each connection serves one request. Errors are "
    "JSON objects with one sentence."
)
_PAGE: Final = {
    "operationId": "page",
    "summary": "Returns a page for a browser, which may send the token as a password.",
    "security": [{}, {"token": []}, {"password": []}],
    "responses": {
        "200": {"description": "The page.", "content": {"text/html": {"schema": {"type": "string"}}}},
        **{status: {"description": why} for status, why in (_WATCH | _ABSENT).items()},
    },
}
_METRICS: Final = {
    "operationId": "metrics",
    "summary": "Returns the metrics for Prometheus.",
    "security": [{}],
    "responses": {"200": {"description": "The metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
}
_DESCRIPTION: Final = {
    "operationId": "description",
    "summary": "Returns this description.",
    "responses": {"200": {"description": "The description.", "content": {"application/json": {"schema": {}}}}},
}


def _described(path: str, operation: _Operation) -> dict[str, Any]:
    responses = {operation.status: _content("The result.", operation.returns)}
    responses |= {status: _content(why, ErrorBody) for status, why in operation.errors.items()}
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": dict(sorted(responses.items())),
    }
    if "{id}" in path:
        described["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    if operation.takes is not None:
        described["requestBody"] = {"required": True} | _content("", operation.takes)
    return described


def _content(why: str, kind: type[msgspec.Struct]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _PLACE.format(name=kind.__name__)}}}
    return {"description": why, "content": content} if why else {"content": content}
