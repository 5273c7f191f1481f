"""Real servers of stores on the loopback address: SeaweedFS for S3, and a master and a node of Mooncake."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlencode

from eventually import PATIENCE_S, eventually
from free_ports import free_ports

ACCESS_KEY, SECRET_KEY = "reader", "a secret"
BUCKET = "pages"
_SEGMENT = "512 MB"
_LISTENING = "0A"  # the state of a socket in /proc
STORES = Path(__file__).parents[2] / ".engines" / "fleet" / "bin"
"""The programs of the environment with the stores."""
_ALL = [{"name": "test", "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}], "actions": ["Admin"]}]


def with_parameters(url: str, **parameters: str) -> str:
    """Returns a fleet's URL with further parameters."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode(parameters)}"


class ServerProcess:
    """A server, which can be stopped, continued and killed. Its output goes to a file.

    `before` is a command that runs it, such as `nsenter`.
    """

    def __init__(self, folder: Path, name: str, *arguments: str, before: Sequence[str] = ()) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [*before, str(_program(name)), *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        """The process: `nsenter` replaces itself by the server."""
        return self._child.pid

    def send(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def stop(self) -> None:
        """Stops the server by SIGSTOP. Returns when all threads have stopped, which go on until one of them sees it."""
        self.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def kill(self) -> None:
        self._child.kill()
        self._child.wait()

    def lives(self) -> bool:
        return self._child.poll() is None

    def listens(self, port: int) -> bool:
        """Returns whether a port is open in the network of the server."""
        tables = "".join(Path(f"/proc/{self.pid}/net/{kind}").read_text() for kind in ("tcp", "tcp6"))
        sockets = [line.split() for line in tables.splitlines()]
        return any(fields[1].endswith(f":{port:04X}") and fields[3] == _LISTENING for fields in sockets)


def await_port(server: ServerProcess, port: int) -> None:
    """Waits until a server listens on a port."""

    def listens() -> bool:
        with contextlib.suppress(OSError):
            return server.listens(port)
        return False

    assert eventually(lambda: listens() or not server.lives()) and server.lives(), (
        f"the server does not listen:\n{server.log.read_text()[-3000:]}"
    )


def _program(name: str) -> Path:
    """Returns a program of this environment or, in those of engines, of the one with the stores."""
    own = Path(sys.executable).parent / name
    return own if own.exists() else STORES / name


class S3Server:
    """SeaweedFS with one bucket.

    Args:
        folder: Where its files are.
        address: The address on which it is reached.
        before: A command that runs it, such as `nsenter`.
    """

    def __init__(self, folder: Path, address: str = "127.0.0.1", before: Sequence[str] = ()) -> None:
        self.folder = folder
        self._address = address
        self._before = before
        (folder / "data").mkdir(exist_ok=True)
        (folder / "s3.json").write_text(json.dumps({"identities": _ALL}))
        kinds = ["master", "volume", "filer", "s3"]
        ports = free_ports(2 * len(kinds))
        self._ports = dict(zip([*kinds, *(f"{kind}.grpc" for kind in kinds)], ports, strict=True))
        self.start()

    def start(self) -> None:
        """Starts the server, and makes the bucket unless it is there. A server that does not serve is killed."""
        self.launch()
        with contextlib.ExitStack() as failed:
            failed.callback(self.process.kill)
            self._await_bucket()
            failed.pop_all()

    def _await_bucket(self) -> None:
        await_port(self.process, self._ports["s3"])
        said: list[bytes] = []

        def has_bucket() -> bool:
            said.append(self._shell(f"s3.bucket.create -name {BUCKET}"))
            return b"created bucket" in said[-1] or b"exist" in said[-1]

        assert eventually(has_bucket), said[-1:]

    def launch(self) -> None:
        """Starts the server and returns at once."""
        ports = [
            f"-{name.replace('.grpc', '.port.grpc') if '.' in name else f'{name}.port'}={port}"
            for name, port in self._ports.items()
        ]
        self.process = ServerProcess(
            self.folder, "weed", "server", f"-ip={self._address}", f"-ip.bind={self._address}",
            f"-dir={self.folder / 'data'}",
            "-master.telemetry=false", "-master.volumeSizeLimitMB=64", "-volume.max=100", "-filer", "-s3",
            f"-s3.config={self.folder / 's3.json'}", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-filer.localSocket={self.folder / 'filer.sock'}", *ports, before=self._before,
        )  # fmt: skip

    def _shell(self, command: str) -> bytes:
        master = f"{self._address}:{self._ports['master']}.{self._ports['master.grpc']}"
        done = subprocess.run(
            [*self._before, str(_program("weed")), "shell", "-master", master],
            input=command.encode(), capture_output=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    @property
    def port(self) -> int:
        return self._ports["s3"]

    @property
    def endpoint(self) -> str:
        return f"http://{self._address}:{self.port}"

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/hosts?endpoint={self.endpoint}"


class MooncakeServers:
    """A master of Mooncake and a node that has memory for objects. The arguments are those of S3Server.

    Objects are in files in the folder `files`, too, and the master soon forgets a node that is gone. Both are killed if
    one does not listen.
    """

    def __init__(
        self, folder: Path, address: str = "127.0.0.1", before: Sequence[str] = (), files: Path | None = None
    ) -> None:
        more = [] if files is None else [f"-root_fs_dir={files}", "-cluster_id=test", "-client_ttl=5"]
        self.folder = folder
        self._host = address
        self._rpc, metrics, node = free_ports(3)
        self.master = ServerProcess(
            folder, "mooncake_master", f"-rpc_port={self._rpc}", f"-rpc_address={address}",
            f"-metrics_port={metrics}", f"-metrics_host={address}", *more, before=before,
        )  # fmt: skip
        with contextlib.ExitStack() as failed:
            failed.callback(self.master.kill)
            await_port(self.master, self._rpc)
            self.node = ServerProcess(
                folder, "mooncake_client", f"-host={address}", f"-port={node}",
                f"-master_server_address={self.address}", "-metadata_server=P2PHANDSHAKE", "-protocol=tcp",
                f"-global_segment_size={_SEGMENT}", before=before,
            )  # fmt: skip
            failed.callback(self.node.kill)
            await_port(self.node, node)
            failed.pop_all()

    @property
    def address(self) -> str:
        return f"{self._host}:{self._rpc}"

    @property
    def url(self) -> str:
        return self.url_of("127.0.0.1")

    def url_of(self, host: str) -> str:
        """Returns the URL for a host with this address."""
        return f"mooncake://{self.address}?hostname={host}"

    def kill(self) -> None:
        self.node.kill()
        self.master.kill()


@contextlib.contextmanager
def s3_server(folder: Path, address: str = "127.0.0.1", before: Sequence[str] = ()) -> Iterator[S3Server]:
    """Runs an S3 server for the time of a block."""
    server = S3Server(folder, address, before)
    try:
        yield server
    finally:
        server.process.kill()


@contextlib.contextmanager
def mooncake_servers(
    folder: Path, address: str = "127.0.0.1", before: Sequence[str] = (), files: Path | None = None
) -> Iterator[MooncakeServers]:
    """Runs Mooncake for the time of a block."""
    servers = MooncakeServers(folder, address, before, files)
    try:
        yield servers
    finally:
        servers.kill()
