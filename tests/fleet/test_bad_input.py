"""What an administrator must correct in a real S3 store is one line that says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

from eventually import eventually
from fleet_host import FleetHost, keys_of, pages_of
from host_events.clock import Clock
from pagetier.tiers.base import TierError
from pagetier.tiers.fleet.open_fleet import open_fleet
from pagetier.tiers.worker_protocol import FleetOptions
from store_servers import BUCKET, S3Server, with_parameters
from tls_front import tls_front

SIZE = 100_000
HOUR_S = 3600.0


def test_a_certificate_that_is_not_trusted_is_named_and_can_be_trusted(s3: S3Server, tmp_path: Path) -> None:
    with tls_front(tmp_path, s3.port) as front:
        options = FleetOptions(url=f"s3://{BUCKET}/tls?endpoint={front.endpoint}")
        with pytest.raises(TierError, match=r"the certificate of pages is rejected \(\w+\): set SSL_CERT_FILE"):
            open_fleet(options)
        with patch.dict(os.environ, {"SSL_CERT_FILE": str(front.certificate)}):
            fleet = open_fleet(options)
            fleet.close()


def test_clocks_that_disagree_close_the_fleet_until_they_agree(s3: S3Server, prefix: str, tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    with ExitStack() as stack:
        more = ("--set", "remote.timeout=5s", "--set", "remote.ask_timeout=1s")
        host = FleetHost(with_parameters(s3.url, prefix=prefix), stack, *more, before=clock.before)
        host.share("far", pages_of(1, SIZE))
        host.daemon.drop_all_pages()
        clock.jump(HOUR_S)
        for number in range(3):
            assert host.load(f"absent {number}", 1, SIZE).pages == 0
        assert eventually(lambda: not host.asks), host.report
        (line,) = host.daemon.lines("event=fleet_trouble")
        assert "the clocks of pages and this host disagree: use NTP on both" in line
        assert host.client.store(keys_of("near", 1), pages_of(1, SIZE)).stored == 1
        assert host.load("near", 1, SIZE).pages == 1
        clock.jump(0.0)
        assert eventually(lambda: host.asks)
        assert host.load("far", 1, SIZE).pages == 1


def test_a_clock_that_disagrees_at_the_start_is_named(s3: S3Server, tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    clock.jump(-HOUR_S)
    code = "import sys; from pagetier.tiers.fleet.open_fleet import *; open_fleet(FleetOptions(url=sys.argv[1]))"

    command = [*clock.before, sys.executable, "-c", code, s3.url]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "the clocks of pages and this host disagree: use NTP on both" in done.stderr
