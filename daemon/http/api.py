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
    MOST_PAGES,
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
from pagetier.daemon.http.prefetches import Prefetches, why_unlisted
from pagetier.daemon.index.hint_requests import EVERY_USER
from pagetier.daemon.stats.page_lookup import (
    PagesOnDisk,
    UnknownNamespaceError,
    count_only_on_disk,
    found_pages,
    namespace_named,
    no_chain,
    only_on_disk,
    pages_to_read,
)
from pagetier.daemon.stats.snapshot_reader import read_status, take_snapshot
from pagetier.daemon.status.phase import Phase
from pagetier.shm._core import NamespaceRecord, Observer
from pagetier.shm.page_rows import PAGE_KEYS
from pagetier.shm.protocol import HintPages

_OPEN: Final = frozenset({"/metrics", "/healthz"})
_PREFETCH: Final = "/v1/prefetch/"
_NOT_KEPT: Final = "pages that are only on disk are not kept"
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
        self._prefetches = Prefetches(observer, daemon)
        self._listing = asyncio.Lock()  # a list of a million pages takes 64 MB: there is one at a time
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
        authorization = _authorization(request)
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
        body = read_body(request.body, LookupBody)
        space, keys = self._pages(body)
        tiers = await located(self._observer, keys)
        return _json(found_pages(tiers, space.page_tokens, _note(body, space, tiers)))

    async def _prefetch(self, request: Request) -> Response:
        body, user = read_body(request.body, PrefetchBody), request.peer.user
        if body.names_pages:
            space, keys = self._pages(body)
            note = _note(body, space, await located(self._observer, keys))
            number, pages = self._prefetches.read_prompt(user, keys, body.timeout, note), PAGE_KEYS.count(keys)
        else:
            found = await self._pages_to_read(self._space(body))
            number, pages = self._prefetches.read_namespace(user, found, body.timeout), found.pages - found.in_memory
        accepted = msgspec.json.encode(PrefetchAccepted(number, pages))
        return Response(accepted, HTTPStatus.ACCEPTED, headers=(("Location", _PREFETCH + number),))

    async def _pages_to_read(self, space: NamespaceRecord) -> PagesOnDisk:
        async with self._listing:
            return await pages_to_read(self._observer, read_status(self._observer), [space], MOST_PAGES)

    async def _prefetch_status(self, request: Request) -> Response:
        status = await self._prefetches.status(request.path.removeprefix(_PREFETCH), request.peer.user)
        if status is None:
            raise HttpError(HTTPStatus.NOT_FOUND, "there is no such prefetch of this user, or it ended long ago")
        return _json(status)

    async def _hint(self, request: Request) -> Response:
        body = read_body(request.body, HintBody)
        space, rights = self._space(body), request.peer.rights(self._daemon.settings, _authorization(request))
        whole = not body.names_pages and body.hint in (HintName.KEEP, HintName.UNKEEP)
        keys = b"" if whole else body.keys_in(space)
        tiers = await located(self._observer, keys)
        on_disk = await count_only_on_disk(self._observer, [space]) if whole else only_on_disk(tiers)
        user = EVERY_USER if body.hint is HintName.UNKEEP and rights >= Rights.MANAGE else request.peer.user
        hint = HintPages(0, keys, body.hint.kind, body.ttl, space.digest.hex() if whole else None)
        answer = await self._daemon.hint(user, hint)
        if answer.trouble:
            raise HttpError(HTTPStatus.CONFLICT, answer.trouble)
        pages = answer.pages + on_disk * whole  # of a namespace, the daemon counts those in memory
        unlisted = why_unlisted(self._observer, self._daemon.settings) if whole and body.hint is HintName.KEEP else ""
        note = f"{_NOT_KEPT}: {unlisted}" if unlisted else _note(body, space, tiers)
        return _json(HintResult(pages, answer.applied, answer.kept_bytes, on_disk, note))

    def _pages(self, body: PagesBody) -> tuple[NamespaceRecord, bytes]:
        """Returns the namespace and the keys of the pages that a body names."""
        space = self._space(body)
        return space, body.keys_in(space)

    def _space(self, body: PagesBody) -> NamespaceRecord:
        try:
            return namespace_named(self._observer.spaces(), body.namespace)
        except UnknownNamespaceError as error:
            raise HttpError(HTTPStatus.NOT_FOUND, str(error)) from error


def _note(body: PagesBody, space: NamespaceRecord, tiers: bytes) -> str:
    """Returns why token IDs name no page; "" if they name one, or pages are named otherwise."""
    return no_chain(space) if body.tokens and not any(tiers) else ""


def _authorization(request: Request) -> str:
    return request.headers.get("authorization", "")


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
