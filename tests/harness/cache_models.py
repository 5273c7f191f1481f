"""ARC and S3-FIFO as their papers write them, for single pages. The oldest page of each list is its first one."""

from __future__ import annotations


class Arc:
    """ARC as in figure 4 of its paper."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._target = 0.0
        self._once: list[int] = []
        self._often: list[int] = []
        self._left_once: list[int] = []
        self._left_often: list[int] = []
        self._lists = (self._once, self._often, self._left_once, self._left_often)

    def use(self, page: int) -> bool:
        """Uses a page. Returns whether it hits."""
        hit = page in self._once or page in self._often
        if not hit and not any(page in each for each in self._lists):
            self._make_room_for(page)
            self._once.append(page)
            return False
        if not hit:
            self._adapt(page)
            self._replace(page)
        for each in self._lists:
            if page in each:
                each.remove(page)
        self._often.append(page)
        return hit

    def _adapt(self, page: int) -> None:
        once, often = len(self._left_once), len(self._left_often)
        step = max(1.0, often / once) if page in self._left_once else -max(1.0, once / often)
        self._target = min(self._room, max(0.0, self._target + step))

    def _replace(self, page: int) -> None:
        length = len(self._once)
        if length and (length > self._target or (page in self._left_often and length == self._target)):
            self._left_once.append(self._once.pop(0))
        else:
            self._left_often.append(self._often.pop(0))

    def _make_room_for(self, page: int) -> None:
        known = sum(map(len, self._lists))
        if len(self._once) == self._room:
            self._once.pop(0)
        elif len(self._once) + len(self._left_once) == self._room:
            self._left_once.pop(0)
            self._replace(page)
        elif known >= self._room:
            if known == 2 * self._room:
                self._left_often.pop(0)
            self._replace(page)


class S3Fifo:
    """S3-FIFO as in algorithm 1 of its paper."""

    def __init__(self, room: int) -> None:
        self._room, self._small_room = room, max(1, room // 10)
        self._small: list[int] = []
        self._main: list[int] = []
        self._ghost: list[int] = []
        self._uses: dict[int, int] = {}

    def use(self, page: int) -> bool:
        """Uses a page. Returns whether it hits."""
        if page in self._small or page in self._main:
            self._uses[page] = min(3, self._uses[page] + 1)
            return True
        known = page in self._ghost
        if known:
            self._ghost.remove(page)
        if len(self._small) + len(self._main) == self._room:
            self._evict()
        del self._ghost[: max(0, len(self._ghost) - (self._room - self._small_room))]
        self._uses[page] = 0
        (self._main if known else self._small).append(page)
        return False

    def _evict(self) -> None:
        while len(self._small) >= self._small_room or not self._main:
            page = self._small.pop(0)
            if self._uses[page] <= 1:
                self._ghost.append(page)
                return
            self._uses[page] = 0
            self._main.append(page)
        while self._uses[self._main[0]]:
            self._uses[self._main[0]] -= 1
            self._main.append(self._main.pop(0))
        self._main.pop(0)
