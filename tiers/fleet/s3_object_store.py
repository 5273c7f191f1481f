"""Objects in a bucket of any S3-compatible store, by obstore: s3://bucket/prefix?endpoint=https://...&region=...

Credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or from the machine's role.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.loop_thread import LoopThread, gathered
from pagetier.tiers.fleet.object_store import ABSENT, StoreSettings
from pagetier.tiers.fleet.s3_errors import code_of, explanation, refusal

_HEADS_AT_ONCE: Final = 64
_FEW: Final = 64  # names of which each is asked for
_FIRST_LOOK: Final = 32  # names of a longer chain that are asked for at first
_PROBE: Final = "probe"
# To a put at the same time as another one or a delete, of which nothing is known yet: S3 asks for a repetition.
_CONFLICTS: Final = ("ConditionalRequestConflict", "OperationAborted")
_PARTS: Final = 16  # of a range of names in which the end of a chain is searched


class S3ObjectStore:
    """A store in a bucket. obstore's own time limit and retries are set to ours."""

    def __init__(self, options: StoreSettings) -> None:
        try:
            import obstore
            from obstore.exceptions import (
                AlreadyExistsError,
                NotFoundError,
                PermissionDeniedError,
                UnauthenticatedError,
            )
            from obstore.store import S3Store as Bucket
        except ImportError as error:
            raise TierError(f"an s3:// URL needs obstore: pip install 'pagetier[s3]' ({error})") from error
        self._obstore, self._there = obstore, AlreadyExistsError
        self._denied = (PermissionDeniedError, UnauthenticatedError)
        self._name = options.netloc
        self._absent = (NotFoundError, FileNotFoundError)
        endpoint = options.parameters.get("endpoint", "")
        config = {"region": options.parameters.get("region", "us-east-1")}
        limit = timedelta(seconds=options.timeout_s)
        self._bucket = Bucket(
            options.netloc,
            prefix=options.path.strip("/") or None,
            config={**config, "endpoint": endpoint} if endpoint else config,
            client_options={
                "timeout": limit,
                "connect_timeout": limit,
                "allow_http": endpoint.startswith("http://"),
            },
            retry_config={"max_retries": 0, "retry_timeout": limit},
        )
        with contextlib.suppress(*self._absent), self._explained():
            self._obstore.get(self._bucket, _PROBE)
        self._loop = LoopThread("pagetier-s3")

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what an administrator can correct into a TierError that says how."""
        try:
            yield
        except (*self._absent, self._there) as error:
            if code_of(error) == "NoSuchBucket":
                raise TierError(f"there is no bucket {self._name}: create it, or correct remote.url") from error
            raise
        except self._denied as error:
            raise TierError(refusal(self._name, code_of(error) or self._code_of_refusal())) from error
        except Exception as error:
            if why := explanation(self._name, error, os.environ):
                raise TierError(why) from error
            raise

    def _code_of_refusal(self) -> str:
        """Returns the code with which the bucket refuses to be read: the answer to a HEAD has none."""
        try:
            self._obstore.get(self._bucket, _PROBE)
        except Exception as error:  # noqa: BLE001  whatever it is, the refusal of the HEAD is reported
            return code_of(error)
        return ""

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Asks for each object."""
        with self._explained():
            return [bool(length) for length in self._loop.run(self._lengths(names))]

    def sizes(self, names: Sequence[str]) -> array[int]:
        """Returns the lengths. Of many names in one namespace only some are asked for, as if they were a chain."""
        with self._explained():
            if len(names) == 1:  # without a change of threads
                return array("Q", [self._length_of(names[0])])
            return array("Q", self._loop.run(self._all_sizes(names)))

    def _length_of(self, name: str) -> int:
        try:
            return int(self._obstore.head(self._bucket, name)["size"])
        except self._absent:
            return 0

    def put(self, name: str, data: memoryview) -> bool:
        """Creates an object."""
        # "create" sends If-None-Match: the server refuses the put if another host was faster. One request without parts
        # stores the object whole or not at all.
        try:
            with self._explained():
                self._obstore.put(self._bucket, name, data, mode="create", use_multipart=False)
        except self._there as error:
            if code_of(error) in _CONFLICTS:
                raise TierError(explanation(self._name, error, os.environ)) from error
            return False
        return True

    def get(self, name: str, into: memoryview) -> int | memoryview:
        """Returns obstore's own copy, which it does not change."""
        try:
            with self._explained():
                result = self._obstore.get(self._bucket, name)
        except self._absent:
            return ABSENT
        length = int(result.meta["size"])
        return length if length > len(into) else memoryview(result.bytes())

    def remove(self, name: str) -> None:
        """Deletes the object; S3 does not say whether there was one."""
        try:
            with self._explained():
                self._obstore.delete(self._bucket, name)
        except self._absent:
            return

    def close(self) -> None:
        """Ends all questions that were given up; obstore closes its connections."""
        self._loop.close()

    async def _length(self, name: str, permits: asyncio.Semaphore) -> int:
        async with permits:
            try:
                return int((await self._obstore.head_async(self._bucket, name))["size"])
            except self._absent:
                return 0

    async def _lengths(self, names: Sequence[str]) -> list[int]:
        permits = asyncio.Semaphore(_HEADS_AT_ONCE)
        return await gathered(self._length(name, permits) for name in names)

    async def _all_sizes(self, names: Sequence[str]) -> list[int]:
        places: dict[str, list[int]] = {}
        for number, name in enumerate(names):
            places.setdefault(name.rpartition("/")[0], []).append(number)
        found = await gathered(self._chain([names[at] for at in where]) for where in places.values())
        lengths = [0] * len(names)
        for where, of_space in zip(places.values(), found, strict=True):
            for number, length in zip(where, of_space, strict=True):
                lengths[number] = length
        return lengths

    async def _chain(self, names: Sequence[str]) -> list[int]:
        """Returns the lengths of a chain's objects.

        Of a long chain some are asked for, spread evenly, the first and the last included: of recurrent state only the
        last snapshot may be there. Then the end of what is there is searched. Objects between two that were asked for
        and are there are taken to be there.
        """
        if len(names) <= _FEW:
            return await self._lengths(names)
        known = await self._known(names, _spread(0, len(names) - 1, _FIRST_LOOK))
        while (last := max((at for at, length in known.items() if length), default=-1)) >= 0:
            absent = min((at for at in known if at > last), default=last)
            if absent - last <= 1:
                break
            known |= await self._known(names, _spread(last, absent, _PARTS + 1)[1:-1])
        return _filled(known, len(names))

    async def _known(self, names: Sequence[str], asked: Sequence[int]) -> dict[int, int]:
        return dict(zip(asked, await self._lengths([names[at] for at in asked]), strict=True))


def _spread(first: int, last: int, count: int) -> list[int]:
    """Returns at most `count` numbers from `first` to `last`, both included, at even distances."""
    return sorted({first + (last - first) * step // (count - 1) for step in range(count)})


def _filled(known: Mapping[int, int], count: int) -> list[int]:
    """Returns `count` lengths: those that are known, and between two that are there the length of the former."""
    lengths = [0] * count
    asked = sorted(known)
    for at, after in zip(asked, [*asked[1:], asked[-1] + 1], strict=True):
        end = after if known.get(after, 0) else at + 1
        lengths[at:end] = [known[at]] * (end - at)
    return lengths
