"""Servers of the tests that do not serve leave no process."""

from __future__ import annotations

from pathlib import Path

import pytest

import store_servers
from store_servers import MooncakeServers, S3Server, ServerProcess


@pytest.mark.parametrize("serves", [[False], [True, False]], ids=["the first wait", "the second wait"])
@pytest.mark.parametrize("kind", [S3Server, MooncakeServers])
def test_a_server_that_does_not_serve_is_ended(
    kind: type[S3Server | MooncakeServers], serves: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, started, answers = tmp_path / "program", list[ServerProcess](), iter(serves)
    program.write_text("#!/bin/sh\nexec sleep 1h\n")
    program.chmod(0o700)

    class Recorded(ServerProcess):
        def __init__(self, *arguments: object, **options: object) -> None:
            super().__init__(*arguments, **options)  # type: ignore[arg-type]
            started.append(self)

    monkeypatch.setattr(store_servers, "ServerProcess", Recorded)
    monkeypatch.setattr(store_servers, "_program", lambda _: program)
    monkeypatch.setattr(store_servers, "eventually", lambda _: next(answers))
    with pytest.raises(AssertionError):
        kind(tmp_path)
    assert started and not any(server.lives() for server in started)
