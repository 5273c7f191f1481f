"""A KV cache that an engine has registered: match, load and store by token IDs and block tables."""

from __future__ import annotations

from collections.abc import Sequence

from pagetier.client.async_copy.copier import AsyncCopier
from pagetier.client.async_copy.load_job import LoadHandle
from pagetier.client.async_copy.store_job import StoreHandle
from pagetier.client.destinations import reachable_pages, table_length, tokens_to_skip
from pagetier.client.hashing import Hashes, Tokens
from pagetier.client.hints import Hint
from pagetier.client.keys import Keys
from pagetier.client.load_or_compute import ProcessRule
from pagetier.client.match import Match, require_match
from pagetier.client.registered_group import IncompleteLoadError, KeyedClient, RegisteredGroup
from pagetier.client.store_result import StoreResult
from pagetier.kernels.layout.slot_map import Ids, SlotMap, slot_map


class RegisteredCache:
    """The KV cache of one engine rank, in host memory or on a GPU. Made by Client.register(). Thread-safe.

    Token counts are counted from the beginning of the prompt. A prompt is given as token IDs, as Keys that keys()
    returned, or as the engine's own hashes: one of any length for each full page, which stands for the page and all
    pages before it. An engine must use either tokens or hashes, since they give different keys.

    A block table is the prompt's table from its first token on, as integers on the host. Blocks of token slots have one
    token.

    On a GPU, copies wait for the work that the calling thread has given to its current stream, unless `after` is given.

    Attributes:
        group: The only group of the model, for code that has slots instead of block tables.
        paged: The tensors and the layout of their pages.
        namespace: The namespace of the pages.
    """

    def __init__(self, client: KeyedClient, group: RegisteredGroup) -> None:
        self.group, self.paged, self.namespace = group, group.paged, group.namespace
        self._client, self._rule = client, ProcessRule()

    @property
    def page_tokens(self) -> int:
        """The number of tokens in a page."""
        return self.namespace.page_tokens

    def keys(
        self, tokens: Tokens | Keys | None = None, *, hashes: Hashes | None = None, extra: bytes | Sequence[bytes] = b""
    ) -> Keys:
        """Returns the keys of the full pages of a prompt, which every method takes instead of its tokens.

        Args:
            tokens: The token IDs of the prompt.
            hashes: The engine's own hashes of the pages, instead of tokens.
            extra: Whatever determines the pages besides the tokens, see Namespace.keys().

        Returns:
            The keys.

        Raises:
            TypeError: Not exactly one of tokens and hashes is given, they have another type, or `extra` comes without
                tokens.
            ValueError: Keys belong to another namespace, or as Namespace.keys() and Namespace.keys_of() raise.
        """
        return self.group.keys(tokens, hashes, extra)

    def match(
        self, tokens: Tokens | Keys | None = None, *, hashes: Hashes | None = None, extra: bytes | Sequence[bytes] = b""
    ) -> Match:
        """Returns the longest cached prefix of a prompt, pinned until it is released. Never waits; see Client.match().

        The arguments and errors are those of keys(). `tokens` of the match is its length, and `available_tokens` counts
        pages on disk too.
        """
        return self._client.match(self.group.keys(tokens, hashes, extra))

    def load(
        self,
        match: Match,
        block_table: Ids,
        *,
        skip_tokens: int = 0,
        timeout: float | None = None,
        strict: bool = False,
    ) -> int:
        """Copies the pages of a match into the engine's blocks, as far as the table has room for whole pages.

        Pages of the match that are on disk are loaded too, and pages after them that the fleet has. The engine must not
        use the blocks until the call returns.

        Args:
            match: A match of this cache that is not released.
            block_table: The prompt's blocks, from its first token on.
            skip_tokens: Tokens at the beginning that the engine has (whole pages of opaque rows), whose slots are kept.
            timeout: Seconds to wait for pages on disk and in the fleet, which is not asked with 0; None for the
                client's timeout. It does not limit the time for copying.
            strict: Raises if fewer tokens were loaded than are matched.

        Returns:
            The number of tokens that need no prefill: those that were loaded and all before them. It is `skip_tokens`
            if nothing was loaded, and more than `match.tokens` if pages came from disk or from the fleet.

        Raises:
            IncompleteLoadError: `strict` is set and fewer tokens than `match.tokens` are in the blocks.
            ValueError: The match is of another cache, or the table names a block that does not exist, or a block twice.
            TypeError: The table is not of integers on the host.
        """
        slots, start_page = self._slots_to_load(match, block_table, skip_tokens)
        pages = self.group.load(match, slots, start_page, timeout, self._rule.rule) if len(slots) else 0
        loaded = (start_page + pages) * self.page_tokens if pages else skip_tokens
        if strict and loaded < match.tokens:
            raise IncompleteLoadError(loaded, match.tokens)
        return loaded

    def store(
        self,
        tokens: Tokens | Keys | None = None,
        block_table: Ids = (),
        *,
        hashes: Hashes | None = None,
        extra: bytes | Sequence[bytes] = b"",
        timeout: float | None = None,
    ) -> StoreResult:
        """Stores this rank's part of each full page of a prompt. Pages that are present already are not copied.

        The blocks may be overwritten when the call returns.

        Args:
            tokens: The prompt, see keys().
            block_table: The prompt's blocks, from its first token on, at least for all full pages.
            hashes: See keys().
            extra: See keys().
            timeout: Seconds to wait for the daemon; None for the client's timeout. It does not limit the time for
                copying.

        Returns:
            What became of each page.

        Raises:
            ValueError: The table has no room for all full pages, or names a block that does not exist.
            TypeError: As for keys(), or the table is not of integers on the host.
        """
        keys = self.group.keys(tokens, hashes, extra)
        return self.group.store(keys, self.group.slots_of(block_table, len(keys)), timeout)

    def async_load(self, match: Match, block_table: Ids, *, skip_tokens: int = 0, after: object = None) -> LoadHandle:
        """Starts to load the pinned pages of a match, layer by layer, and returns at once; see AsyncCopier.load().

        The match may be released at once. Pages on disk are not loaded: see Client.prefetch().

        Args:
            match: See load().
            block_table: See load().
            skip_tokens: See load().
            after: An event of the engine that completes before the first byte is written. On a GPU, by default one
                after the work that this thread has given to its current stream.

        Returns:
            The load.

        Raises:
            ValueError: As for load(), or `after` is not an event of the device.
            DeviceError: The device failed.
        """
        slots, start_page = self._slots_to_load(match, block_table, skip_tokens)
        slots = slots.some(0, max(0, min(len(slots), len(match) - start_page)))
        return self.group.start_load(match, slots, start_page, after)

    def async_store(
        self,
        tokens: Tokens | Keys | None = None,
        block_table: Ids = (),
        *,
        hashes: Hashes | None = None,
        extra: bytes | Sequence[bytes] = b"",
        after: object = None,
    ) -> StoreHandle:
        """Starts to store this rank's part of each full page, and returns at once; see AsyncCopier.store().

        The content of the blocks must not change until the store is ready or cancelled.

        Args:
            tokens: See store().
            block_table: See store().
            hashes: See store().
            extra: See store().
            after: An event of the engine that completes before the first byte is read. On a GPU, by default one after
                the work that this thread has given to its current stream.

        Returns:
            The store.

        Raises:
            ValueError: As for store(), or `after` is not an event of the device.
            TypeError: As for store().
            DeviceError: The device failed.
        """
        keys = self.group.keys(tokens, hashes, extra)
        return self.group.start_store(keys, self.group.slots_of(block_table, len(keys)), after)

    def hint(
        self,
        hint: Hint,
        tokens: Tokens | Keys | None = None,
        *,
        hashes: Hashes | None = None,
        extra: bytes | Sequence[bytes] = b"",
    ) -> bool:
        """Says what is known of a prompt's pages, whether they were matched or stored. See Client.hint().

        Args:
            hint: What is known.
            tokens: The prompt, see keys().
            hashes: See keys().
            extra: See keys().

        Returns:
            Whether the hint was sent.
        """
        return self._client.hint(self.group.keys(tokens, hashes, extra), hint)

    def computed(self, seconds: float, *prompts: range) -> None:
        """Reports how long a step has taken, so that load() leaves out what is computed faster than it is loaded.

        load() measures itself what disk and fleet deliver. Before the first report it loads everything. A step that
        only generates answers has no prompts; one report of it after each step with prompts is enough.

        Args:
            seconds: The time of the step.
            prompts: The tokens that the step has computed of each prompt, counted from the begin of the prompt.
        """
        self._rule.computed(seconds, prompts)

    def copier(self) -> AsyncCopier:
        """Returns the copier of the asynchronous copies, opened by the first call. Raises as open_copier() does."""
        return self.group.copier()

    def close(self, timeout: float) -> bool:
        """Closes the copier, if it was opened, and waits at most `timeout` seconds for copies in flight.

        Further asynchronous copies are rejected then. Client.close() calls it. May be called again.

        Returns:
            Whether all copies have ended.
        """
        return self.group.close(timeout)

    def _slots_to_load(self, match: Match, block_table: Ids, skip_tokens: int) -> tuple[SlotMap, int]:
        """Returns the slots of the pages that a load may bring and for which the table has room, and the first page.

        Raises:
            ValueError: As slot_map() and tokens_to_skip() do, or the match is another's.
        """
        require_match(match, "load()")
        if match.keys is not None:  # a match of another process has none
            self.group.require_own(match.keys)
        page, block = self.paged.page.tokens, self.paged.cache.block_tokens
        skip_tokens = tokens_to_skip(match, skip_tokens, self.page_tokens, page)
        start_page = skip_tokens // self.page_tokens
        pages = max(0, min(reachable_pages(match), table_length(block_table) * block // page) - start_page)
        first, end = start_page * page, (start_page + pages) * page
        skipped = min(skip_tokens - start_page * self.page_tokens, page - 1)
        return slot_map(
            block_table, pages, page, block, first, range(first + skipped, end) if pages else None
        ), start_page

    def __repr__(self) -> str:
        return f"<RegisteredCache {self.namespace.name}: {self.paged!r}>"
