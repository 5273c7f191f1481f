"""The pages that commands take: keys in a file, or token IDs."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Annotated, Any, Final, TypeVar

import click
import msgspec

from pagetier.daemon.common.namespaces import means, with_pages
from pagetier.daemon.stats.page_lookup import WHOLE_KEYS, UnknownNamespaceError, keys_of_tokens, namespace_named
from pagetier.shm._core import KEY_BYTES, NamespaceRecord, Observer

BATCH_PAGES: Final = 1 << 15  # of one request
_Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Command = TypeVar("_Command", bound=Callable[..., Any])


class FileCommand(click.Command):
    """A command that takes files by options. For an argument without one it says which options do."""

    allow_extra_args = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the command line. Raises click.UsageError if it is wrong."""
        rest = super().parse_args(ctx, args)
        if rest and not ctx.resilient_parsing:
            options = " or ".join(name for param in self.params for name in param.opts if name.endswith("-file"))
            raise click.UsageError(f'"{rest[0]}" needs an option before it: {options}', ctx)
        return rest


def keys_in(file: IO[bytes]) -> bytes:
    """Returns the keys in a file: a JSON list, or one on each line. Raises click.UsageError for anything else."""
    text = _text(file)
    if text.lstrip().startswith("["):
        items = list(enumerate(_json(text, file, list[str]), 1))
        return b"".join(_key(item, f"item {number} of {file.name}") for number, item in items)
    lines = ((number, line.partition("#")[0].strip()) for number, line in enumerate(text.splitlines(), 1))
    return b"".join(_key(line, f"line {number} of {file.name}") for number, line in lines if line)


def _text(file: IO[bytes]) -> str:
    """Returns the text in a file, without a byte order mark. Raises click.UsageError if it is no UTF-8."""
    try:
        return file.read().decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        why = "write it as text in UTF-8, as `iconv -f UTF-16 -t UTF-8` does for a redirection of PowerShell"
        raise click.UsageError(f"{file.name} is no UTF-8 text: {why}") from error


def _key(text: str, place: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise click.UsageError(f"{place} is no key of {2 * KEY_BYTES} hexadecimal digits: {WHOLE_KEYS}")
    return key


def _json(text: str, file: IO[bytes], kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise click.UsageError(f"{file.name} is no JSON list: {error}") from error


def keys_file_option(more: str = "") -> Callable[[_Command], _Command]:
    """Returns --keys-file, as the parameter `file`. more: What its help says beyond what the file contains."""
    about = "The pages: keys in hexadecimal, in a JSON list or one on each line, - for stdin."
    help_text = f"{about} {more}".rstrip()
    return click.option("--keys-file", "file", type=click.File("rb"), metavar="FILE", help=help_text)


def pages_options(command: _Command) -> _Command:
    """Adds --namespace, --keys-file and --tokens-file, as the parameters `namespace`, `keys_file`, `tokens_file`."""
    for option in (
        click.option(
            "--tokens-file",
            type=click.File("rb"),
            metavar="FILE",
            help="Token IDs in a JSON list, - for stdin; for namespaces whose keys are pagetier's own chain.",
        ),
        click.option(
            "--keys-file",
            type=click.File("rb"),
            metavar="FILE",
            help="Keys in hexadecimal, in a JSON list or one on each line, - for stdin.",
        ),
        click.option(
            "--namespace", required=True, metavar="TEXT", help="The label, model, or digest (at least 8 digits)."
        ),
    ):
        command = option(command)
    return command


def named_pages(
    observer: Observer, namespace: str, keys_file: IO[bytes] | None, tokens_file: IO[bytes] | None
) -> tuple[NamespaceRecord, bytes]:
    """Returns the namespace and the keys of the pages.

    Raises:
        click.UsageError: Not one file is given, or it has something else in it.
        click.ClickException: There is no such namespace.
    """
    space = named_space(observer, namespace)
    if (keys_file is None) == (tokens_file is None):
        raise click.UsageError("give one of --keys-file and --tokens-file")
    if keys_file is not None:
        return space, keys_in(keys_file)
    assert tokens_file is not None
    return space, keys_of_tokens(space, _json(_text(tokens_file), tokens_file, list[_Token]))


def named_space(observer: Observer, namespace: str) -> NamespaceRecord:
    """Returns a namespace. Raises click.ClickException if there is no such one."""
    try:
        return namespace_named(observer.spaces(), namespace)
    except UnknownNamespaceError as error:
        raise click.ClickException(str(error)) from error


def chosen_spaces(observer: Observer, wanted: str | None) -> list[NamespaceRecord]:
    """Returns the namespaces that `wanted` selects, also those without pages; None selects all.

    Raises:
        click.ClickException: It selects none.
    """
    known = observer.spaces()
    chosen = [space for space in known if means(wanted, space.name, space.digest)]
    if not chosen and wanted is not None:
        labels = "\n".join(f"  {space.name}" for space in with_pages(known))
        there = f"there are:\n{labels}" if labels else "there are none yet"
        raise click.ClickException(f'no namespace has the label, model or digest "{wanted}"; {there}')
    return chosen
