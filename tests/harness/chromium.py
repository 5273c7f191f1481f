"""A headless Chromium, driven through its debugging pipe: what a page looks like and says in a real browser."""

from __future__ import annotations

import base64
import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from typing import Any, Final

import msgspec

CHROMIUM: Final = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS: Final = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--no-proxy-server", "--remote-debugging-pipe"),
)
_WHERE_IT_READS, _WHERE_IT_WRITES = 3, 4  # descriptors of the pipe in Chromium


class Tab:
    """One page in the browser.

    Attributes:
        complaints: What the browser logged as a warning or an error, such as what a policy blocked.
    """

    def __init__(self, commands: int, answers: FileIO) -> None:
        self.complaints: list[str] = []
        self._commands = commands
        self._answers = answers
        self._numbers = itertools.count(1)
        self._read = bytearray()
        self._events: list[str] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Log", "Network", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Returns the result of a command of the DevTools protocol."""
        number = next(self._numbers)
        command: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, msgspec.json.encode(command) + b"\0")
        while (message := self._next()).get("id") != number:
            self._note(message)
        assert "error" not in message, message
        return dict(message["result"])

    def open(self, url: str, user: str = "", password: str = "") -> None:
        """Opens a page and waits until it is loaded."""
        if password:
            basic = base64.b64encode(f"{user}:{password}".encode()).decode()
            self.call("Network.setExtraHTTPHeaders", headers={"Authorization": f"Basic {basic}"})
        self._events.clear()
        self.call("Page.navigate", url=url)
        while "Page.loadEventFired" not in self._events:
            self._note(self._next())

    def evaluate(self, expression: str) -> Any:
        """Returns the value of an expression in JavaScript, or what its promise gives."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def show(self, width: int, scheme: str) -> None:
        """Sets the width of the screen, and "light" or "dark"."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, height: float | None = None) -> bytes:
        """Returns a picture of the page as PNG: of the whole one, or to this height from its top."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(picture["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            data = self._answers.read(1 << 16)
            assert data, "Chromium has ended"
            self._read += data
        message, _, self._read = self._read.partition(b"\0")
        decoded: dict[str, Any] = msgspec.json.decode(message)
        return decoded

    def _note(self, message: dict[str, Any]) -> None:
        method = message.get("method", "")
        self._events.append(method)
        if method == "Log.entryAdded":
            self.complaints.append(message["params"]["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(message["params"]["exceptionDetails"]))


@contextmanager
def chromium() -> Iterator[Tab]:
    """Yields a tab of a browser with a profile of its own."""
    assert CHROMIUM is not None
    (read, commands), (answers, written) = os.pipe(), os.pipe()
    script = f'exec {_WHERE_IT_READS}<&{read} {_WHERE_IT_WRITES}>&{written}; exec "$0" "$@"'
    with tempfile.TemporaryDirectory(prefix="pagetier-test-", ignore_cleanup_errors=True) as profile:
        command = ["bash", "-c", script, CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        browser = subprocess.Popen(
            command, pass_fds=[read, written], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(read)
        os.close(written)
        try:
            with FileIO(answers) as read_end:
                yield Tab(commands, read_end)
        finally:
            os.close(commands)  # Chromium ends with its pipe
            browser.wait(30)
