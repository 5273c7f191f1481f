"""Sends each completion to a prefill engine first, then to a decode engine, which finds the pages in pagetier."""

from __future__ import annotations

import argparse
import json
import shutil
import urllib.error
import urllib.request
from http.client import HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TIMEOUT_S = 600.0


def post(url: str, body: dict[str, Any]) -> HTTPResponse:
    """Returns the response of an engine, whose body was not read yet. Raises OSError."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    return response


def of_prefill(body: dict[str, Any]) -> dict[str, Any]:
    """Returns a request for one token of the same prompt: the engine then computes and stores its pages."""
    kept = {name: value for name, value in body.items() if name not in ("max_completion_tokens", "stream_options")}
    return kept | {"max_tokens": 1, "min_tokens": 0, "n": 1, "stream": False}


class Proxy(BaseHTTPRequestHandler):
    """Answers one connection. `prefill` and `decode` are the base URLs of the engines."""

    prefill = decode = ""

    def do_POST(self) -> None:
        """Has the prompt prefilled, and passes on the decode engine's answer."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
        try:
            post(self.prefill + self.path, of_prefill(body)).read()
        except OSError as error:  # the decode engine computes the prompt itself
            self.log_message("%s does not prefill: %s", self.prefill, error)
        try:
            self.pass_on(post(self.decode + self.path, body))
        except urllib.error.HTTPError as error:
            self.send_error(error.code, str(error.reason))
        except OSError as error:
            self.send_error(502, str(error))

    def pass_on(self, response: HTTPResponse) -> None:
        """Sends an engine's answer as it comes."""
        self.send_response(response.status)
        self.send_header("Content-Type", response.headers["Content-Type"])
        self.end_headers()
        shutil.copyfileobj(response, self.wfile)


def main() -> None:
    """Serves until it is interrupted."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--prefill", required=True, help="base URL of the prefill engine")
    options.add_argument("--decode", required=True, help="base URL of the decode engine")
    options.add_argument("--port", type=int, default=8000)
    given = options.parse_args()
    Proxy.prefill, Proxy.decode = given.prefill, given.decode
    ThreadingHTTPServer(("127.0.0.1", given.port), Proxy).serve_forever()


if __name__ == "__main__":
    main()
