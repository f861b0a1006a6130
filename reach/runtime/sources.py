"""Where hosted actors come from: entry points of installed packages, and `module:attribute` given by name.

The system's actors and users' own are found the same way. Two that claim one name are refused and both named:
which of them runs must not depend on the order of a search path.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module, metadata
from typing import Final, cast

from reach.errors import ConfigError, NameRefused
from reach.runtime.child import ChildSpec, Factory, describe
from reach.wire import names

GROUP: Final = "reach.actors"
"""The entry point group of actors."""

OURS: Final = "agent-reach"


@dataclass(frozen=True, slots=True)
class Source:
    """One actor to host.

    Attributes:
        name: Its name in the process.
        target: `module:attribute` of an Actor class, or of a callable that makes a child.
        origin: Who says so, for messages: a package, or the option.
    """

    name: str
    target: str
    origin: str

    def load(self) -> ChildSpec:
        """Import it.

        Raises:
            ConfigError: it cannot be imported, or is nothing that makes a child.
        """
        module, _, attribute = self.target.partition(":")
        what = f"actor {self.name} ({self.target}, from {self.origin})"
        try:
            found: object = import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise ConfigError(f"{what} cannot be loaded: {error}") from error
        except Exception as error:
            raise ConfigError(f"{what} fails while it is imported: {describe(error)}") from error
        if not callable(found):
            raise ConfigError(
                f"{what} is a {type(found).__name__}. Right would be a class derived from Actor."
            )
        return ChildSpec(self.name, cast("Factory", found))


def installed(group: str = GROUP) -> list[Source]:
    """What packages on the path announce, the system's own first."""
    found: dict[tuple[str, str], Source] = {}
    for point in metadata.entry_points(group=group):
        package = point.dist.name if point.dist is not None else "an unnamed package"
        found.setdefault((point.name, point.value), Source(point.name, point.value.replace(" ", ""), package))
    return sorted(found.values(), key=lambda source: (source.origin != OURS, source.name))


def given(text: str, *, origin: str = "--actor") -> Source:
    """Read `module:attribute` or `name=module:attribute`; without a name the attribute's gives it.

    Raises:
        ConfigError: it is neither.
    """
    name, equals, target = text.rpartition("=")
    module, colon, attribute = target.partition(":")
    parts = [*module.split("."), *attribute.split(".")]
    if not colon or (equals and not name) or not all(part.isidentifier() for part in parts):
        raise ConfigError(f"{text!r} names no actor. Right would be package.module:ClassName")
    return Source(name or parts[-1].lower(), target, origin)


def collect(sources: Iterable[Source]) -> list[Source]:
    """Check that names are names, and that each has one owner; the same actor twice is one.

    Raises:
        ConfigError: a name does not fit, or two different actors claim it.
    """
    by_name: dict[str, Source] = {}
    for source in sources:
        try:
            names.token(source.name, "actor name")
        except NameRefused as error:
            raise ConfigError(f"{error} (from {source.origin})") from error
        other = by_name.setdefault(source.name, source)
        if other.target != source.target:
            raise ConfigError(
                f"Two actors are called {source.name}: {other.target} (from {other.origin}) "
                f"and {source.target} (from {source.origin}). Rename one, or uninstall its package."
            )
    return list(by_name.values())
