"""Two daemons share compressed pages through a folder; statuses show what they take."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np

from eventually import eventually
from fleet_host import PATIENT, FleetHost
from kv_pages import kv_page
from pagetier.daemon.cli.tables import fleet_line
from pagetier.daemon.status.fleet_status import FleetStatus
from pagetier.shm.units import format_size

SIZE = 1 << 20


def test_compressed_pages_go_from_host_to_host(tmp_path: Path) -> None:
    page = np.frombuffer(kv_page("bf16", SIZE), np.uint8)[None]
    with ExitStack() as stack:
        first, second = (FleetHost(f"file://{tmp_path}", stack, *PATIENT) for _ in range(2))
        first.share("kv", page)  # the first page is compressed, whatever the rates of this machine are
        stored = sum(file.stat().st_size for file in tmp_path.glob("pagetier/*/*"))
        assert stored < SIZE / 1.39
        written = first.report
        assert (written.written_bytes, written.stored_bytes) == (SIZE, stored - 128)
        assert f"wrote 1.0 MiB, {format_size(stored - 128)} compressed" in fleet_line(written)
        load = second.load("kv", 1, SIZE)
        assert load.pages == 1 and np.array_equal(load.out, page)
        assert eventually(lambda: second.report.read == 1), second.report
        assert second.report.read_bytes == SIZE, "rates of reads are in bytes of pages, which load-or-compute counts"


def test_a_host_with_compression_off_stores_pages_as_they_are(tmp_path: Path) -> None:
    page = np.frombuffer(kv_page("bf16", SIZE), np.uint8)[None]
    with ExitStack() as stack:
        host = FleetHost(f"file://{tmp_path}?compress=off", stack, *PATIENT)
        host.share("kv", page)
        assert (host.report.written_bytes, host.report.stored_bytes) == (SIZE, SIZE)


def test_nothing_is_said_of_compression_without_it() -> None:
    assert "compressed" not in fleet_line(FleetStatus(standing="open", written_bytes=5, stored_bytes=5))
