"""Which addresses nothing is sent to, however they are written, and which an operator lets through."""

import asyncio
import socket
from typing import Any

import pytest

from reach.bus.guard import ALLOW, Guard, Inward, Unresolved
from reach.errors import ConfigError

GUARD = Guard()


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "0.0.0.0",  # noqa: S104 - is refused
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "198.18.0.1",
        "192.0.0.8",
        "224.0.0.1",
        "255.255.255.255",
        "[::1]",
        "[::]",
        "[fe80::1]",
        "[fc00::1]",
        "[fec0::1]",
        "[ff02::1]",
        "[::ffff:10.0.0.1]",
        "[64:ff9b::10.0.0.1]",
        "[64:ff9b::169.254.169.254]",
        "[2002:7f00:1::]",
        "[2001:0:1::1]",
    ],
)
def test_what_is_inside_is_refused(host: str) -> None:
    """An address that is not public is refused before anything is looked up, in every way of writing it."""
    with pytest.raises(Inward, match="not public"):
        GUARD.check_url(f"http://{host}/x")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.org/", "https://"),
        ("file:///etc/passwd", "https://"),
        ("example.org/hook", "https://"),
        ("http://", "https://"),
        ("http://user:word@example.org/", "login"),
        ("http://exa mple.org/", "spaces"),
        ("http://example.org/\r\nX: y", "control"),
        ("http://example.org:99999/", "can be read"),
        ("http://[::1/", "can be read"),
    ],
)
def test_what_is_no_address_is_refused(url: str, why: str) -> None:
    """What is no plain address of the web is refused, and the refusal says what would be right, without secrets."""
    with pytest.raises(Inward, match=why) as refused:
        GUARD.check_url(url)
    assert "word" not in str(refused.value)


def test_public_addresses_pass() -> None:
    """A public address passes, with the port that it has or that its scheme implies."""
    assert ("8.8.8.8", 443) == GUARD.check_url("https://8.8.8.8/hook?a=b")
    assert ("2606:4700::1", 8080) == GUARD.check_url("http://[2606:4700::1]:8080/")
    assert ("hooks.example.org", 80) == GUARD.check_url("http://hooks.example.org")


async def test_every_address_of_a_name_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with one address inside is refused, though another of its addresses is public; what passes is pinned."""
    answers = {"mixed.test": ["8.8.8.8", "10.0.0.1"], "well.test": ["8.8.8.8", "1.1.1.1"], "none.test": []}

    async def lookup(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (text, port)) for text in answers[host]]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", lookup, raising=False)
    with pytest.raises(Inward, match=r"mixed\.test is at 10\.0\.0\.1"):
        await GUARD.resolve("mixed.test", 80)
    with pytest.raises(Unresolved):
        await GUARD.resolve("none.test", 80)
    assert ["8.8.8.8", "1.1.1.1"] == await GUARD.resolve("well.test", 80)


def test_an_operator_lets_through_what_is_inside_on_purpose() -> None:
    """Networks, addresses and names that REACH_OUTWARD_ALLOW lists pass, and nothing beside them."""
    guard = Guard.of({ALLOW: "10.1.2.0/24, ::1, hooks.internal"})
    assert ("10.1.2.9", 80) == guard.check_url("http://10.1.2.9/")
    assert ("::1", 80) == guard.check_url("http://[::1]/")
    with pytest.raises(Inward):
        guard.check_url("http://10.1.3.9/")


@pytest.mark.parametrize("text", ["10.1.2.3/24", "a b", "http://x", "*.internal"])
def test_what_cannot_be_allowed_is_told(text: str) -> None:
    """A setting that is neither name nor network is refused, with what would be right."""
    with pytest.raises(ConfigError, match="Right would be"):
        Guard.of({ALLOW: text})
