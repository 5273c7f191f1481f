"""Parses the daemon's page: its HTML strictly, and its pictures as XML."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from html.parser import HTMLParser

from metrics_scrape import Answer

_VOID = ("meta", "link")
_SVG = re.compile("<svg .*?</svg>", re.DOTALL)


class Document(HTMLParser):
    """A document whose elements are closed in order.

    Attributes:
        status: That of the response, as are the headers.
        text: The whole document.
        elements: How often each element is in it.
        attributes: The names of all attributes.
        pictures: For each picture that is one for screen readers, too, what it says to them.
        scrolled: For each part that can be scrolled, whether it has a name and is reached by keyboard.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.status, self.headers, self.text = answer.status, answer.headers, answer.body
        self.elements: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.pictures: list[str] = []
        self.scrolled: list[bool] = []
        self._contents: defaultdict[str, list[str]] = defaultdict(list)
        self._open: list[tuple[str, list[str]]] = []
        self._identities: set[str] = set()
        self.feed(answer.body)
        self.close()
        assert not self._open, self._open
        self.vectors = [ET.fromstring(text) for text in _SVG.findall(answer.body)]

    def contents(self, element: str) -> list[str]:
        """Returns the text in each element of a name."""
        return self._contents[element]

    @property
    def words(self) -> str:
        """The text that is shown."""
        return self._contents["main"][0]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element."""
        given = dict(attrs)
        assert len(given) == len(attrs), "no attribute comes twice"
        self.elements[tag] += 1
        self.attributes |= given.keys()
        if (identity := given.get("id")) is not None:
            assert identity not in self._identities, identity
            self._identities.add(identity)
        if given.get("role") == "img":
            self.pictures.append(given["aria-label"] or "")
        if given.get("class") == "scroll":
            self.scrolled.append(bool(given["aria-label"]) and given["tabindex"] == "0")
        if tag not in _VOID:
            self._open.append((tag, []))

    def handle_endtag(self, tag: str) -> None:
        """Notes the end of the innermost element."""
        opened, parts = self._open.pop()
        assert opened == tag, f"{opened} ends as {tag}"
        self._contents[tag].append("".join(parts))

    def handle_data(self, data: str) -> None:
        """Notes a text for all elements that it is in."""
        for _, parts in self._open:
            parts.append(data)


def parsed(answer: Answer) -> Document:
    """Returns the page in a response."""
    return Document(answer)
