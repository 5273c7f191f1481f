"""Blocks as vLLM allocates them, for the simulated scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(eq=False)
class Block:
    block_id: int
    block_hash: object = None
    users: int = 0

    @property
    def is_null(self) -> bool:
        return not self.block_id


class Pool:
    """Blocks, and which of them have pages with a hash. Unused blocks keep their hash until they are allocated."""

    def __init__(self, blocks: int) -> None:
        self.null = Block(0)
        self.blocks = [self.null, *(Block(at) for at in range(1, blocks))]
        self.free = deque(self.blocks[1:])
        self.hashed: dict[object, Block] = {}

    def take(self) -> Block:
        block = self.free.popleft()
        if self.hashed.get(block.block_hash) is block:
            del self.hashed[block.block_hash]
        block.block_hash, block.users = None, 1
        return block

    def share(self, block: Block) -> Block:
        if not block.is_null:
            if not block.users:
                self.free.remove(block)
            block.users += 1
        return block

    def give(self, block: Block) -> None:
        if not block.is_null:
            block.users -= 1
            if not block.users:
                self.free.append(block)

    def forget(self) -> None:
        """Forgets the hashes of unused blocks."""
        for block in self.free:
            if self.hashed.get(block.block_hash) is block:
                del self.hashed[block.block_hash]
            block.block_hash = None

    def note(self, block: Block, name: object) -> bool:
        """Records a block's hash. Returns whether it had none before."""
        if block.is_null or block.block_hash is not None:
            return False
        block.block_hash = name
        self.hashed.setdefault(name, block)
        return True


class PoolView:
    """Reads a pool for GpuPages."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def hash_of(self, block: int) -> object:
        return self._pool.blocks[block].block_hash

    def free(self) -> Iterator[int]:
        return (block.block_id for block in self._pool.free)
