"""`pagetier doctor` tries real stores."""

from __future__ import annotations

import pytest

from eventually import PATIENCE_S
from pagetier.daemon.cli.doctor.fleet_checks import check_fleet
from pagetier.daemon.cli.doctor.result import Level, Result
from pagetier.daemon.config.remote_options import RemoteOptions
from pagetier.daemon.status.fleet_status import FleetStatus
from store_servers import MooncakeServers, S3Server, with_parameters


def only(remote: RemoteOptions) -> Result:
    (result,) = check_fleet(remote, FleetStatus())
    return result


@pytest.mark.parametrize("kind", ["s3", "mooncake"])
def test_a_store_that_works_is_measured(request: pytest.FixtureRequest, prefix: str, kind: str) -> None:
    server: S3Server | MooncakeServers = request.getfixturevalue(kind)
    result = only(
        RemoteOptions(
            url=with_parameters(server.url, prefix=prefix, trusted="yes"), timeout=PATIENCE_S, ask_timeout=PATIENCE_S
        )
    )
    assert result.level is Level.OK and "a page of 8.0 MiB is written at" in result.text, result


def test_what_s3_refuses_is_named(s3: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = only(RemoteOptions(url=f"s3://nowhere?endpoint={s3.endpoint}"))
    assert absent.level is Level.PROBLEM and "there is no bucket nowhere: create it" in absent.text
    url = with_parameters(s3.url, prefix=prefix)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another secret")
    assert only(RemoteOptions(url=url)).level is Level.PROBLEM
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert "does the worker's environment have one?" in only(RemoteOptions(url=url)).text


def test_a_server_that_is_not_there_is_named() -> None:
    assert "cannot be reached at 127.0.0.1:9" in only(RemoteOptions(url="s3://pages?endpoint=http://127.0.0.1:9")).text
    assert only(RemoteOptions(url="mooncake://127.0.0.1:9?trusted=yes")).level is Level.PROBLEM
