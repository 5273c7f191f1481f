"""The reason of an error of S3 is the server's own, and says what to change. The texts are those of obstore 0.12."""

from __future__ import annotations

import pytest

from pagetier.tiers.fleet.s3_errors import code_of, explanation, refusal
from pagetier.tiers.fleet.store_calls import one_line

NAME = "kv/pagetier/" + "0" * 80
PUT = f"Generic S3 error: Error performing PUT http://10.0.0.1:8333/pages/{NAME} in 41.0ms - "
STATUS = PUT + "Server returned non-2xx status code: {}: {}\n\nDebug source:\nGeneric {{ ... }}"
BODY = "<?xml version='1.0'?><Error><Code>{0}</Code><Message>{0}</Message></Error>"
CONNECT = (
    PUT
    + """HTTP error: error sending request

Debug source: reqwest::Error {{ kind: Request, source: hyper_util::client::legacy::Error(
    Connect, ConnectError( "tcp connect error", {}, Os {{ code: 111, kind: ConnectionRefused,
    message: "Connection refused", }}, ), ), }}"""
)
DNS = (
    PUT
    + """HTTP error: error sending request

ConnectError( "dns error", Custom { kind: Uncategorized, error: "failed to lookup address information: Name or
service not known", }, )"""
)


def explained(text: str, **environ: str) -> str:
    return explanation("pages", RuntimeError(text), environ)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("AccessDenied", "s3:ListBucket"),
        ("ExpiredToken", "AWS_SESSION_TOKEN"),
        ("QuotaExceeded", "delete old objects"),
        ("SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"),
        ("RequestTimeTooSkewed", "NTP"),
    ],
)
def test_a_refusal_names_what_to_change(code: str, words: str) -> None:
    found = code_of(RuntimeError(STATUS.format("403 Forbidden", BODY.format(code))))
    assert found == code and words in refusal("pages", found)


def test_a_refusal_without_a_code_names_the_keys() -> None:
    assert code_of(RuntimeError(STATUS.format("403 Forbidden", ""))) == ""
    assert refusal("pages", "").startswith("pages refuses access: check the worker's AWS_ACCESS_KEY_ID")


def test_an_answer_is_named_by_its_status_and_code() -> None:
    busy = STATUS.format("503 Service Unavailable", BODY.format("SlowDown"))
    assert explained(busy) == "pages answered PUT with 503 Service Unavailable, SlowDown"
    assert explained(STATUS.format("500 Internal Server Error", "")) == (
        "pages answered PUT with 500 Internal Server Error"
    )


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "http_proxy", "all_proxy"])
@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "127.0.0.1:9", "http://user:word@proxy.example:9/"])
def test_a_proxy_that_cannot_be_reached_is_named(name: str, proxy: str) -> None:
    said = explained(CONNECT.format("127.0.0.1:9"), **{name: proxy})
    assert (
        said == f"the proxy in {name} (127.0.0.1:9) cannot be reached: Connection refused; correct it, or set NO_PROXY"
    )


def test_a_server_that_cannot_be_reached_is_named() -> None:
    said = explained(CONNECT.format("10.0.0.1:8333"), HTTP_PROXY="http://127.0.0.1:9")
    assert said == "pages cannot be reached at 10.0.0.1:8333: Connection refused"
    assert "is not found (failed to lookup address information" in explained(DNS) and "\n" not in explained(DNS)
    assert explained(PUT + "the body ended early") == ""


def test_a_long_line_keeps_its_end() -> None:
    line = one_line(RuntimeError(PUT + "the body ended early\nDebug source"))
    assert len(line) < 250 and line.startswith("RuntimeError: Generic S3") and line.endswith("the body ended early")
    assert one_line(RuntimeError("short")) == "RuntimeError: short"
