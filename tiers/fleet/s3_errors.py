"""What an administrator can do about an error of obstore, whose text is long and has the cause at its end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")
_STATUS: Final = re.compile(r"Error performing (\w+) .*?status code: (\d+ [\w ]+)")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_CONNECT: Final = re.compile(r'ConnectError\(\s*"[^"]*",\s*(\S+?),\s.*?message: "([^"]+)"', re.DOTALL)
_DNS: Final = re.compile(r'"(failed to lookup address information: [\w ]+)')
_PROXIES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_KEYS: Final = "check the worker's AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and clock"
_TOKEN: Final = "renew the worker's AWS_SESSION_TOKEN with its keys, or use the role of the machine"
_REMEDIES: Final = {
    "AccessDenied": "allow the worker s3:ListBucket (else what is missing is a 403), s3:GetObject and s3:PutObject",
    "ExpiredToken": _TOKEN,
    "QuotaExceeded": "delete old objects, or raise the quota of the bucket",
    "InvalidToken": _TOKEN,
    "TokenRefreshRequired": _TOKEN,
}


def code_of(error: Exception) -> str:
    """Returns the server's own code of an error, such as "AccessDenied"; "" if it has none, as after a HEAD."""
    found = _CODE.search(str(error))
    return found[1] if found else ""


def refusal(bucket: str, code: str) -> str:
    """Returns why a bucket refuses access, and what to do."""
    if code == "RequestTimeTooSkewed":
        return f"the clocks of {bucket} and this host disagree: use NTP on both"
    named = f" ({code})" if code else ""
    return f"{bucket} refuses access{named}: {_REMEDIES.get(code, _KEYS)}"


def explanation(bucket: str, error: Exception, environ: Mapping[str, str]) -> str:
    """Returns what went wrong in at most one line, "" if the error's first line says it.

    Args:
        bucket: The name of the bucket.
        error: An error of obstore that is no refusal.
        environ: The environment, which may name a proxy.
    """
    text = str(error)
    if found := _CERTIFICATE.search(text):
        return f"the certificate of {bucket} is rejected ({found[1]}): set SSL_CERT_FILE for the worker"
    if found := _STATUS.search(text):
        code = code_of(error)
        return f"{bucket} answered {found[1]} with {found[2].strip()}{f', {code}' if code else ''}"
    if found := _CONNECT.search(text):
        return _unreachable(bucket, found[1], found[2], environ)
    if found := _DNS.search(text):
        return f"the host of {bucket} is not found ({found[1]}): correct the endpoint in remote.url"
    return ""


def _unreachable(bucket: str, address: str, why: str, environ: Mapping[str, str]) -> str:
    port = address.rpartition(":")[2]
    for name in (*_PROXIES, *map(str.lower, _PROXIES)):
        if _port_of(environ.get(name, "")) == port:
            return f"the proxy in {name} ({address}) cannot be reached: {why}; correct it, or set NO_PROXY"
    return f"{bucket} cannot be reached at {address}: {why}"


def _port_of(proxy: str) -> str:
    try:
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        return str(parts.port or (443 if parts.scheme == "https" else 80)) if proxy else ""
    except ValueError:
        return ""
