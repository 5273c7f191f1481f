"""Says what to write instead of a wrong name or line in a configuration."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final


def hint(name: str, known: Iterable[str], spellings: Mapping[str, str] | None = None) -> str:
    """Returns `; did you mean "..."?` with the known name from which `name` differs by a typo; "" if there is none.

    spellings: How a known name is shown, if differently.
    """
    # One wrong or two exchanged characters. Names with a common prefix are similar without being meant.
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=1 - 1.01 / max(2, len(name)))
    return f'; did you mean "{(spellings or {}).get(near[0], near[0])}"?' if near else ""


def hint_for_path(path: str, paths: Sequence[str]) -> str:
    """Returns what to write instead of an unknown setting's name, such as `; did you mean "evict.policy"?`.

    The name may be spelled as an option or a variable. Settings of the same key or of the same table are named if no
    name differs by a typo, else all tables.
    """
    spelled = {known.replace(".", "_"): known for known in paths}
    table, _, key = path.lower().rpartition(".")
    same_key = [known for known in paths if known.rpartition(".")[2] == key]
    same_table = [known for known in paths if known.startswith(f"{table or key}.")]
    if near := advice_for_former(path) or hint(_parameter_of(path), spelled, spellings=spelled):
        return near
    first = dict.fromkeys(known.partition(".")[0] for known in paths)
    return f"; known are {', '.join(same_key or same_table or [*first])}"


# Settings of builds before the first release, by `Field.parameter`. Those without a new name are constants.
_FORMER: Final = {
    "evict_low": "evict.free",
    "evict_high": "evict.free",
    **{f"remote_{name}": f"remote.url, ?{name}=..." for name in ("buffers", "compress", "prefix", "trusted")},
    "store_share": "arena.process_share",
    "match_share": "arena.process_share",
    **dict.fromkeys(("advise_window", "arena_threads", "index_namespaces", "index_namespace_idle"), ""),
    **dict.fromkeys(("disk_environments", "disk_store_timeout", "disk_write_behind", "metrics_namespaces"), ""),
    **dict.fromkeys(("store_quarantine", "store_reservation_timeout"), ""),
}


def advice_for_former(name: str) -> str:
    """Returns what to write instead of a setting of an earlier build, under any of its names; "" for other names."""
    new = _FORMER.get(_parameter_of(name))
    if new is None:
        return ""
    return f"; it is {new} now" if new else "; it is no setting any more: remove it"


def _parameter_of(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_").removeprefix("pagetier_")


_LINE: Final = re.compile(r"at line (\d+)")
_BARE_VALUE: Final = re.compile(r"\s*([A-Za-z_]+)\s*=\s*([^\"'\[\]{}#]+?)\s*(?:#.*)?")


def advice_for_line(text: str, error: str) -> str:
    """Returns the line that the parser rejects, and what to write if its value lacks quotes or it is repeated."""
    found = _LINE.search(error)
    line = text.split("\n")[int(found[1]) - 1].strip() if found else ""
    if not line:
        return ""
    if error.startswith("Cannot overwrite a value"):
        return f': "{line}" sets a key again: remove one of the two lines'
    if error.startswith("Cannot declare") and error.partition(" (at")[0].endswith("twice"):
        return f': "{line}" begins a table again: {_advice_for_table(text, line)}'
    bare = _BARE_VALUE.fullmatch(line)
    return f': "{line}": write {bare[1]} = "{bare[2]}", in quotes' if bare else f': "{line}"'


def _advice_for_table(text: str, header: str) -> str:
    """Returns what to write instead of a table's second header. A dotted key before all tables is a first one, too."""
    name = header.partition("]")[0].strip("[ ")
    keys = [line.partition("=")[0].strip() for line in f"\n{text}".partition("\n[")[0].split("\n")]
    dotted = next((key for key in keys if key.startswith(f"{name}.")), "")
    moved = f"move {dotted} below it, as {dotted.removeprefix(f'{name}.')}"
    return moved if dotted else "write its keys below the first one"


_OF_SERVICE: Final = re.compile(r"PAGETIER_(SERVICE_(HOST|PORT)|PORT)(_.*)?")


def set_by_kubernetes(name: str) -> str:
    """Returns where a variable comes from that Kubernetes sets for a Service named pagetier; "" for others."""
    if not _OF_SERVICE.fullmatch(name):
        return ""
    return "Kubernetes sets it for a Service named pagetier: set enableServiceLinks: false in the pod's specification"
