"""Reads the metrics of a daemon as Prometheus does, and parses them with Prometheus's client library."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import msgspec
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from eventually import PATIENCE_S


class Answer(msgspec.Struct, frozen=True):
    """A response: the status code, the headers with lower-case names, and the body."""

    status: int
    headers: dict[str, str]
    body: str


def ask(address: Path | int, request: bytes = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n") -> Answer:
    """Sends a request over one connection, to a socket or to a port of this host."""
    with _connected(address) as connection:
        connection.sendall(request)
        return _answer(b"".join(iter(lambda: connection.recv(1 << 16), b"")))


def _connected(address: Path | int) -> socket.socket:
    if isinstance(address, int):
        return socket.create_connection(("127.0.0.1", address), PATIENCE_S)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE_S)
    connection.connect(os.fspath(address))
    return connection


def _answer(data: bytes) -> Answer:
    head, _, body = data.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert len(body.encode()) == int(headers["content-length"])
    return Answer(int(first.split()[1]), headers, body)


def scrape(address: Path | int) -> dict[str, Metric]:
    """Returns all metric families by name."""
    answer = ask(address)
    assert answer.status == 200
    return {family.name: family for family in text_string_to_metric_families(answer.body)}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    """Returns the only sample with this name and these labels."""
    samples = [s for family in families.values() for s in family.samples if s.name == name and s.labels == labels]
    (sample,) = samples
    return float(sample.value)


def sample_names(families: dict[str, Metric]) -> set[str]:
    """Returns the sample names, which queries use."""
    return {sample.name for family in families.values() for sample in family.samples}


def names_in(query: str) -> set[str]:
    """Returns the metrics of pagetier and of its process that a query names."""
    without_strings = re.sub('"[^"]*"', "", query)
    return set(re.findall(r"\b(?:pagetier|process)_[a-z0-9_]+", without_strings))
