"""Which addresses an outgoing connection may go to: the one guard against SSRF, for webhooks, adapters and imports.

An address that somebody else named may point inwards: at this machine, at a neighbour, at a cloud's metadata. So a
name is looked up here, *every* address that it has is judged, and the caller connects to the very address that was
judged (pinned): a name that answers differently the second time gains nothing. Whoever follows a redirect asks again.
What is inside on purpose is let through by REACH_OUTWARD_ALLOW: names, addresses and networks, with commas between.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Final
from urllib.parse import urlsplit

from reach.errors import ConfigError

ALLOW: Final = "REACH_OUTWARD_ALLOW"
SCHEMES: Final = ("https", "http")

Address = IPv4Address | IPv6Address

# Networks that carry an IPv4 address within: whoever answers there may hand it on to that one.
_WITHIN: Final = {
    IPv6Network("64:ff9b::/96"): 0,
    IPv6Network("2002::/16"): 80,
    IPv6Network("::/96"): 0,
}
# Not for everybody, although Python's own table calls some of them global in some of its versions.
_INWARD: Final = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "100.64.0.0/10",
        "192.0.0.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "240.0.0.0/4",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "fec0::/10",
    )
)


class Inward(Exception):
    """An address that nothing may be sent to; says which, and why."""


class Unresolved(Exception):
    """A name that has no address now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What is let through beside everything public."""

    names: frozenset[str] = frozenset()
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, env: Mapping[str, str] = os.environ) -> Guard:
        """Read REACH_OUTWARD_ALLOW. Raises `ConfigError` for what is neither a name nor a network."""
        names, networks = set(), list[IPv4Network | IPv6Network]()
        for part in filter(None, (part.strip() for part in env.get(ALLOW, "").split(","))):
            try:
                networks.append(ip_network(part))
            except ValueError:
                if not _is_name(part):
                    raise ConfigError(
                        f"{ALLOW} names {part!r}. Right would be host names, addresses and networks, such as "
                        "'hooks.internal, 10.1.2.0/24'; a network's address ends in zeros."
                    ) from None
                names.add(part.lower().rstrip("."))
        return cls(names=frozenset(names), networks=tuple(networks))

    def check_url(self, url: str) -> tuple[str, int]:
        """Look at an address as text, and give its host and port. Raises `Inward`."""
        host, port = address_of(url)
        if (literal := _literal(host)) is not None:
            self.check(literal, host)
        return host, port

    def check(self, address: Address, host: str) -> None:
        """Judge one address, for `host`. Raises `Inward`."""
        if host.lower().rstrip(".") in self.names:
            return
        seen = _inside(address)
        if any(
            each in network for each in (address, seen) for network in self.networks if _fits(each, network)
        ):
            return
        if not _is_public(seen):
            what = "" if str(address) == host else f"{host} is at {address}, and "
            raise Inward(
                f"{what}{address} is not public: nothing is sent there. An operator may allow it by {ALLOW}."
            )

    async def resolve(self, host: str, port: int) -> list[str]:
        """Look a host up, and give its addresses, each of them judged: connect to one of these, not to the name.

        Raises:
            Inward: one of them is not public; that the others are does not matter.
            Unresolved: it has none.
        """
        literal = _literal(host)
        if literal is not None:
            self.check(literal, host)
            return [str(literal)]
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise Unresolved(f"{host} has no address") from None
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        for text in addresses:
            self.check(ip_address(text), host)
        if not addresses:
            raise Unresolved(f"{host} has no address")
        return addresses


def _literal(host: str) -> Address | None:
    """Read a host that is an address, in any of the ways in which resolvers read one (`127.1`, `0x7f000001`)."""
    bare = host.partition("%")[0]
    try:
        return ip_address(bare)
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(bare))
    except (OSError, UnicodeError):
        return None


def _inside(address: Address) -> Address:
    """Give the address that one leads to in the end."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    for network, shift in _WITHIN.items():
        if address in network:
            return IPv4Address(int(address) >> shift & 0xFFFFFFFF)
    return address


def _is_public(address: Address) -> bool:
    if any(address in network for network in _INWARD if _fits(address, network)):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _fits(address: Address, network: IPv4Network | IPv6Network) -> bool:
    return address.version == network.version


def _is_name(text: str) -> bool:
    return all(
        part and part.replace("-", "").replace("_", "").isalnum() for part in text.rstrip(".").split(".")
    )


def address_of(url: str) -> tuple[str, int]:
    """Read an address as text, wherever it leads, and give its host and port. Raises `Inward` for what is none."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise Inward(f"{_shown(url)} is no address that can be read") from None
    if parts.scheme not in SCHEMES or not host:
        raise Inward(f"{_shown(url)} is no address of the web: it begins with https:// or http://")
    if parts.username is not None or parts.password is not None:
        raise Inward(f"the address at {host} carries a login, which would be kept and shown: leave it out")
    if any(ord(sign) <= ord(" ") or sign in "\\\x7f" for sign in url):
        raise Inward(f"the address at {host} holds spaces or control characters")
    return host, port or (443 if parts.scheme == "https" else 80)


def _shown(url: str) -> str:
    """Give the part of an address that may be shown: no login, no parameters."""
    return repr(url.partition("?")[0].rpartition("@")[2][:80])
