"""Answers HTTP requests: finds the function for a path, checks the caller's rights, turns errors into responses."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple

import msgspec

from pagetier.daemon.host.peer_credentials import Rights
from pagetier.daemon.host.refusals import why_forbidden
from pagetier.daemon.http.bodies import (
    Health,
    HintBody,
    HintName,
    HintResult,
    LookupBody,
    PagesBody,
    PrefetchAccepted,
    PrefetchBody,
    read_body,
)
from pagetier.daemon.http.channel_messages import Entrance
from pagetier.daemon.http.daemon_channel import DaemonChannel
from pagetier.daemon.http.http_connection import HttpError, Request, Response, error_response
from pagetier.daemon.http.located_pages import located
from pagetier.daemon.http.openapi import description
from pagetier.daemon.http.peers import as_bearer, has_token
from pagetier.daemon.http.prefetches import Prefetches
from pagetier.daemon.index.hint_requests import EVERY_USER
from pagetier.daemon.stats.page_lookup import UnknownNamespaceError, found_pages, namespace_named
from pagetier.daemon.stats.snapshot_reader import take_snapshot
from pagetier.daemon.status.phase import Phase
from pagetier.shm._core import NamespaceRecord, Observer
from pagetier.shm.page_rows import PAGE_KEYS

_OPEN: Final = frozenset({"/metrics", "/healthz"})
_PREFETCH: Final = "/v1/prefetch/"
_BEARER: Final = "Bearer"
_BASIC: Final = 'Basic realm="pagetier: any name, the token as password"'
_MISSING: Final = {
    _BEARER: "the token is missing: send `Authorization: Bearer TOKEN`, once; TOKEN is what http.token_file contains",
    _BASIC: "the token is missing: sign in with any name, and what http.token_file contains as the password",
}
_WRONG: Final = {
    _BEARER: "the token is wrong: it must be what http.token_file contains",
    _BASIC: "the password is wrong: it must be the token, which http.token_file contains; the name does not matter",
}


class Route(NamedTuple):
    """What answers a method and a path, the right that it needs, and how a port asks for the token.

    HTTP Basic is only for the page. A browser sends it with each request of any other site's page, too, which must not
    be able to change anything.
    """

    needs: Rights
    answer: Callable[[Request], Awaitable[Response]]
    challenge: str = _BEARER


class Api:
    """Answers requests. On the loop's thread.

    Args:
        observer: Reads the index.
        daemon: Answers what the index does not have.
        render: Returns the metrics for an Accept header.
        show: Returns the page.
    """

    def __init__(
        self,
        observer: Observer,
        daemon: DaemonChannel,
        render: Callable[[str], Awaitable[Response]],
        show: Callable[[], Awaitable[Response]],
    ) -> None:
        self._observer = observer
        self._daemon = daemon
        self._render = render
        self._show = show
        self._prefetches = Prefetches(observer)
        self._underway: set[asyncio.Task[None]] = set()
        self._routes: Mapping[tuple[str, str], Route] = {
            ("GET", "/"): Route(Rights.WATCH, self._page, _BASIC),
            ("GET", "/metrics"): Route(Rights.NOTHING, self._metrics),
            ("GET", "/healthz"): Route(Rights.NOTHING, self._health),
            ("GET", "/v1/openapi.json"): Route(Rights.WATCH, self._openapi),
            ("GET", "/v1/stats"): Route(Rights.WATCH, self._stats),
            ("POST", "/v1/lookup"): Route(Rights.WATCH, self._lookup),
            ("POST", "/v1/prefetch"): Route(Rights.ATTACH, self._prefetch),
            ("GET", _PREFETCH): Route(Rights.ATTACH, self._prefetch_status),
            ("POST", "/v1/hint"): Route(Rights.ATTACH, self._hint),
        }

    async def respond(self, request: Request) -> Response:
        """Returns the response to a request."""
        try:
            route = self._route(request)
            self._require(route, request)
            return await route.answer(request)
        except HttpError as error:
            return error_response(error)

    def _route(self, request: Request) -> Route:
        path = _PREFETCH if request.path.startswith(_PREFETCH) else request.path
        if request.peer.entrance is Entrance.METRICS and path not in _OPEN:
            raise HttpError(HTTPStatus.NOT_FOUND, "only /metrics and /healthz are served here: see http.listen")
        method = "GET" if request.method == "HEAD" else request.method  # the connection leaves out the body
        if route := self._routes.get((method, path)):
            return route
        methods = [method for method, known in self._routes if known == path]
        if methods:
            allowed = ", ".join([*methods, *["HEAD"] * ("GET" in methods)])
            why = f"only {allowed} {path} is supported"
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, why, (("Allow", allowed),))
        raise HttpError(HTTPStatus.NOT_FOUND, "there is no such path: /v1/openapi.json describes those that there are")

    def _require(self, route: Route, request: Request) -> None:
        if route.needs is Rights.NOTHING:
            return
        if request.method == "POST" and "origin" in request.headers:
            raise HttpError(
                HTTPStatus.FORBIDDEN, "a web page may not send POST requests: the header Origin came with this one"
            )
        settings, caller = self._daemon.settings, request.peer.caller
        # A port needs a token, which a browser sends to the site that its user gave it to, and to no other name.
        if caller is not None and not _is_local(request.headers.get("host", "")):
            raise HttpError(
                HTTPStatus.MISDIRECTED_REQUEST, "the header Host names another site (DNS rebinding): ask for localhost"
            )
        authorization = request.headers.get("authorization", "")
        if route.challenge is _BASIC:
            authorization = as_bearer(authorization)
        if request.peer.rights(settings, authorization) >= route.needs:
            return
        if caller is None:
            why = (_WRONG if has_token(authorization) else _MISSING)[route.challenge]
            raise HttpError(HTTPStatus.UNAUTHORIZED, why, (("WWW-Authenticate", route.challenge),))
        raise HttpError(HTTPStatus.FORBIDDEN, why_forbidden(caller, route.needs, settings.access))

    async def _page(self, request: Request) -> Response:
        return await self._show()

    async def _metrics(self, request: Request) -> Response:
        return await self._render(request.headers.get("accept", ""))

    async def _health(self, request: Request) -> Response:
        phase = (await self._daemon.numbers()).progress.phase
        status = HTTPStatus.OK if phase is Phase.SERVING else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(msgspec.json.encode(Health(phase.value)), status)

    async def _openapi(self, request: Request) -> Response:
        return Response(description())

    async def _stats(self, request: Request) -> Response:
        return _json(take_snapshot(self._observer))

    async def _lookup(self, request: Request) -> Response:
        space, keys = self._pages(read_body(request.body, LookupBody))
        return _json(found_pages(await located(self._observer, keys), space.page_tokens))

    async def _prefetch(self, request: Request) -> Response:
        body = read_body(request.body, PrefetchBody)
        _, keys = self._pages(body)
        user = request.peer.user
        number = self._prefetches.begin(user, keys)
        task = asyncio.create_task(self._read(number, user, keys, body.timeout))
        self._underway.add(task)
        task.add_done_callback(self._underway.discard)
        accepted = msgspec.json.encode(PrefetchAccepted(number, PAGE_KEYS.count(keys)))
        return Response(accepted, HTTPStatus.ACCEPTED, headers=(("Location", _PREFETCH + number),))

    async def _read(self, number: str, user: int, keys: bytes, timeout: float) -> None:
        try:
            self._prefetches.end(number, await self._daemon.fetch(user, keys, timeout))
        except HttpError as error:
            await self._prefetches.give_up(number, str(error))

    async def _prefetch_status(self, request: Request) -> Response:
        status = await self._prefetches.status(request.path.removeprefix(_PREFETCH), request.peer.user)
        if status is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "there is no such prefetch of this user, or it ended long ago")
        return _json(status)

    async def _hint(self, request: Request) -> Response:
        body = read_body(request.body, HintBody)
        _, keys = self._pages(body)
        rights = request.peer.rights(self._daemon.settings, request.headers.get("authorization", ""))
        any_user = body.hint is HintName.UNKEEP and rights >= Rights.MANAGE
        user = EVERY_USER if any_user else request.peer.user
        answer = await self._daemon.hint(user, keys, body.hint.kind, body.ttl)
        if answer.trouble:
            raise HttpError(HTTPStatus.CONFLICT, answer.trouble)
        return _json(HintResult(answer.pages, answer.applied, answer.kept_bytes))

    def _pages(self, body: PagesBody) -> tuple[NamespaceRecord, bytes]:
        """Returns the namespace and the keys of the pages that a body names."""
        try:
            space = namespace_named(self._observer.spaces(), body.namespace)
        except UnknownNamespaceError as error:
            raise HttpError(HTTPStatus.NOT_FOUND, str(error)) from error
        return space, body.keys_in(space)


def _is_local(host: str) -> bool:
    """Returns whether a Host header names no site that its owner could point at this host: see docs/http.md.

    An IP address, localhost and a name without a dot do not. A browser always sends the header.
    """
    name = host.lower().partition("]")[0].removeprefix("[") if host.startswith("[") else host.lower().partition(":")[0]
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body))
