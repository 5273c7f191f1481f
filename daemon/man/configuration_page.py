"""Generates docs/configuration.md from the table of settings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from pagetier.daemon.config.cli_options import table_subject
from pagetier.daemon.config.fields import Field, fields
from pagetier.daemon.config.live_settings import AT_ONCE, WITH_NEW_MEMORY

_HEAD = """\
# Configuration

This page is generated from the table of settings (`make man`); do not edit it.

A setting can be given in three places. The command line overrides an environment variable, and a
variable overrides the file:

| place | `arena.size` is |
| -- | -- |
| TOML file (`--config FILE` or `PAGETIER_CONFIG`) | the key `size` in the table `[arena]` |
| environment | `PAGETIER_ARENA_SIZE` |
| command line of `pagetierd` | `--set arena.size=64GiB` |

`name`, `socket`, `arena.size`, `disk.path` and `disk.size` have flags of their own, too:
`--arena-size 64GiB`.

`pagetierd --config FILE --check` validates a file. An unknown key, an unknown `PAGETIER_` variable
or an invalid value is an error that names its place; all of them are named at once. Once there is
none, it also fails where a start by this user on this host would, with its exit code, and again
names all reasons; what a start would overcome, such as a folder that the disk tier cannot use, is a
warning. What the running daemon of the same name uses counts as free, so that the check can precede
its restart; pages that a restart would refuse are warnings then.

| type | values |
| -- | -- |
| SIZE | bytes, or a number with a unit: K, M, G, T, P and KiB to PiB count in 1024, KB to PB in 1000 |
| DURATION | seconds, or a number with us, ms, s, m, h or d; at most 36500d |
| SHARE | a number from 0 to below 1, or a percentage: 0.1, 10% |
| MODE | an octal string |

A setting with "reload" changes at `systemctl reload pagetierd` (SIGHUP). The others wait for a
restart, those with "stop" for a stop and a start, since a restart keeps the memory; the log names
them.
"""
_QUOTAS = """
## Quotas

Namespaces share memory and disk. The table `[quota]` gives those of a tenant a minimum and a
maximum of the arena and of each device of the disk tier, as shares: numbers from 0 to 1, or
percentages in quotes (`"30%"`), of nine decimal places. A pattern is one of `fnmatch(3)` (`*`, `?`,
`[abc]`) for the name of a namespace as `pagetier pages ls` shows it, or for the model in it, which
is the name without the digits of the digest:

```toml
[quota]
"llama-*" = { arena = [0.3, 1.0], disk = [0.2, 0.6] }   # keeps 30 % of memory, may have all of it
"*-test"  = { arena = [0, 0.1] }                        # never has more than a tenth
```

A namespace belongs to the first pattern that matches it, in the order of the file. Namespaces that
match none have no limits and no protection. There are at most 15 patterns, and the minimums of a
tier add up to at most 0.8. As a variable or for `--set` the same is
`llama-*: arena 0.3-1, disk 20%-60%; *-test: arena 0-0.1`, and `none` is no quota.
[Operations](operations.md#quotas-by-tenant) says what quotas do.
"""
_ENCRYPTION = """
## Encryption

Pages hold what prompts are computed from. pagetier does not encrypt them: encrypt the device with
dm-crypt. A key that is drawn at each boot is enough for a cache, and makes the pages unreadable
when the host is switched off. The tier then starts empty after a boot:

```sh
options=plain,cipher=aes-xts-plain64,size=512,tmp=xfs
echo "pagetier0 /dev/nvme0n1p1 /dev/urandom $options" >> /etc/crypttab
echo '/dev/mapper/pagetier0 /mnt/nvme0 xfs noatime 0 0' >> /etc/fstab
systemctl daemon-reload && systemctl start systemd-cryptsetup@pagetier0 mnt-nvme0.mount
install -d -o pagetier -g pagetier -m 0700 /mnt/nvme0/pagetier    # disk.path, again after each boot
```

For a tier that survives a boot, use `cryptsetup luksFormat /dev/nvme0n1p1` and a key file in
`/etc/crypttab` instead of the first two lines. Swap is to be encrypted too.

`pagetier flush --keys-file FILE` removes single pages. In memory they are overwritten with zeros.
On disk they are *discarded*: no match and no daemon finds them, but their bytes stay in the files
until the space is used again, and on a drive until it erases the blocks. Only encryption covers
that. Pages on a device that is away are removed when it is back, if the daemon still runs then. A
copy that left memory before, by eviction, stays in its frame until that is granted again.
"""
_COLUMNS = ("setting", "value", "default", "change", "meaning")


def configuration_page() -> str:
    """Returns the page, the same on every host."""
    sections = (_section(name, keys) for name, keys in groupby(fields(), lambda field: field.section))
    return _HEAD + "".join(sections) + _QUOTAS + _ENCRYPTION


def _section(name: str, keys: Iterable[Field]) -> str:
    heading = f"\n## [{name}]\n\n{table_subject(name)}.\n" if name else "\n## Top level\n"
    rows = [_row(_COLUMNS), _row(["--"] * len(_COLUMNS)), *(_row(_cells(field)) for field in keys)]
    return heading + "\n" + "\n".join(rows) + "\n"


def _cells(field: Field) -> Iterator[str]:
    yield f"`{field.path}`"
    yield field.setting.metavar
    yield _default(field)
    yield "reload" if field.path in AT_ONCE else "stop" if field.path in WITH_NEW_MEMORY else "restart"
    yield field.setting.help


def _default(field: Field) -> str:
    if field.default is msgspec.NODEFAULT:
        return "depends on the user"
    shown = field.setting.show(field.default)
    return f"`{shown}`" if shown else ""


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
