"""Objects in a bucket of any S3-compatible store, by obstore: s3://bucket/prefix?endpoint=https://...&region=...

Credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or from the machine's role.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.object_store import ABSENT, StoreSettings

_HEADS_AT_ONCE: Final = 32
_FEW: Final = 8
_PROBE: Final = "probe"
_PARTS: Final = 16  # of a range of names in which the end of a chain is searched


class S3Store:
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
        self._absent = (NotFoundError, FileNotFoundError)
        endpoint = options.parameters.get("endpoint", "")
        config = {"region": options.parameters.get("region", "us-east-1")}
        limit = timedelta(seconds=options.timeout_s)
        try:
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
            self._obstore.get(self._bucket, _PROBE)
        except self._absent as error:
            if "NoSuchBucket" in str(error):
                raise TierError(f"there is no bucket {options.netloc}: create it, or correct remote.url") from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise TierError(
                f"{options.netloc} refuses access: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for the worker"
            ) from error

    def exists(self, names: Sequence[str]) -> list[bool]:
        """Asks for each object."""
        return [bool(length) for length in asyncio.run(self._lengths(names))]

    def sizes(self, names: Sequence[str]) -> array[int]:
        """Returns the lengths. Of many names in one namespace only some are asked for, as if they were a chain."""
        return array("Q", asyncio.run(self._all_sizes(names)))

    def put(self, name: str, data: memoryview) -> bool:
        """Creates an object."""
        try:
            self._obstore.put(self._bucket, name, data, mode="create", use_multipart=False)
        except self._there:
            return False
        return True

    def get(self, name: str, into: memoryview) -> int:
        """Copies the object as it comes."""
        try:
            result = self._obstore.get(self._bucket, name)
        except self._absent:
            return ABSENT
        length, at = int(result.meta["size"]), 0
        if length > len(into):
            return length
        for part in result:
            into[at : at + len(part)] = memoryview(part)
            at += len(part)
        return at

    def remove(self, name: str) -> None:
        """Deletes the object; S3 does not say whether there was one."""
        try:
            self._obstore.delete(self._bucket, name)
        except self._absent:
            return

    def close(self) -> None:
        """Does nothing: obstore closes its connections."""

    async def _length(self, name: str, turns: asyncio.Semaphore) -> int:
        async with turns:
            try:
                return int((await self._obstore.head_async(self._bucket, name))["size"])
            except self._absent:
                return 0

    async def _lengths(self, names: Sequence[str]) -> list[int]:
        turns = asyncio.Semaphore(_HEADS_AT_ONCE)
        return list(await asyncio.gather(*(self._length(name, turns) for name in names)))

    async def _all_sizes(self, names: Sequence[str]) -> list[int]:
        places: dict[str, list[int]] = {}
        for number, name in enumerate(names):
            places.setdefault(name.rpartition("/")[0], []).append(number)
        found = await asyncio.gather(*(self._chain([names[at] for at in where]) for where in places.values()))
        lengths = [0] * len(names)
        for where, of_space in zip(places.values(), found, strict=True):
            for number, length in zip(where, of_space, strict=True):
                lengths[number] = length
        return lengths

    async def _chain(self, names: Sequence[str]) -> list[int]:
        """Returns the lengths of a chain's objects: those between two that are there are taken to be there."""
        if len(names) <= _FEW:
            return await self._lengths(names)
        known = dict(zip([0], await self._lengths(names[:1]), strict=True))
        last, end = (0, len(names)) if known[0] else (-1, 0)  # the last that is there, the first that is absent
        while end - last > 1 and end:
            step = max(1, (end - last) // _PARTS)
            asked = [*range(last + step, end, step)][: _PARTS + 1]
            lengths = await self._lengths([names[at] for at in asked])
            known.update(zip(asked, lengths, strict=True))
            last = max([last, *(at for at, length in zip(asked, lengths, strict=True) if length)])
            end = min([end, *(at for at, length in zip(asked, lengths, strict=True) if not length and at > last)])
        return _filled(known, last + 1, len(names))


def _filled(known: dict[int, int], there: int, count: int) -> list[int]:
    """Returns `count` lengths: for the first `there` the nearest known one before each, then 0."""
    lengths: list[int] = []
    for number in range(there):
        lengths.append(known.get(number) or lengths[-1])
    return lengths + [0] * (count - there)
