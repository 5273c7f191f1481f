"""Elements of HTML and SVG. A plain text is always escaped, so that no name of a client becomes markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final, NamedTuple

_REPLACEMENT: Final = "\ufffd"
_VOID: Final = frozenset({"meta", "link"})


class Html(NamedTuple):
    """Text that is markup already."""

    markup: str


def element(tag: str, /, *content: str | Html, **attributes: str | float) -> Html:
    """Returns an element.

    Args:
        tag: Its name.
        content: What is in it; texts are escaped.
        attributes: By name, with "_" for "-"; one at the end is left out, as in `class_`.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_escaped(_number(value))}"' for key, value in attributes.items()
    )
    end = "" if tag in _VOID else f"</{tag}>"
    return Html(f"<{tag}{given}>{joined(content).markup}{end}")


def joined(content: Iterable[str | Html]) -> Html:
    """Returns the content as one piece."""
    return Html("".join(each.markup if isinstance(each, Html) else _escaped(each) for each in content))


def _number(value: str | float) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def _escaped(text: str) -> str:
    """Returns a text of characters that can be seen: others could hide or reverse what follows."""
    return escape("".join(each if each.isprintable() else _REPLACEMENT for each in text))


def name_of(text: str) -> Html:
    """Returns a name that a client chose; its direction of writing does not affect what is around it."""
    return element("bdi", text, class_="name")


def table(about: str, head: Sequence[str], rows: Iterable[Sequence[str | Html]]) -> Html:
    """Returns a table that can be scrolled sideways, also by keyboard. The first column has names, others numbers.

    Where columns have no room, the style shows each row as a list, with the names of the columns from its cells.

    Args:
        about: Its name for screen readers.
        head: The names of the columns.
        rows: The cells.
    """
    columns = element("tr", *(element("th", each, scope="col") for each in head))
    body = [
        element(
            "tr",
            element("th", row[0], scope="row"),
            *(element("td", cell, data_label=label) for label, cell in zip(head[1:], row[1:], strict=True)),
        )
        for row in rows
    ]
    made = element("table", element("thead", columns), element("tbody", *body))
    identity = about.lower().replace(" ", "-")
    return element("div", made, class_="scroll", id=f"{identity}-table", role="region", aria_label=about, tabindex=0)


def section(title: str, *content: Html, width: str = "") -> Html:
    """Returns a section with a heading. Its width is "wide" or that of a column."""
    identity = title.lower().replace(" ", "-")
    heading = element("h2", title, id=identity)
    return element("section", heading, *content, aria_labelledby=identity, class_=width)


def facts(known: Mapping[str, str | Html]) -> Html:
    """Returns a list of names and values, without those that are empty."""
    return element(
        "dl",
        *(
            element(kind, text)
            for name, value in known.items()
            if value
            for kind, text in (("dt", name), ("dd", value))
        ),
    )
