"""NATS's errors as ours (ERR-1): total, truthful about execution, and silent about the raw cause."""

import asyncio
import importlib
import inspect
import pkgutil
import socket
import ssl
from collections.abc import Iterator

import nats
import nats.errors as core
import nats.js.errors as js
import pytest
from nats.protocol.parser import Parser

from reach.bus.translate import OUR_FAULT, ROWS, denied_subject, row_of, translate
from reach.errors import LinkDown, ReachError, SchemaInvalid, Unreachable, UpstreamRefusal
from reach.faults import FAULTS, Code, Executed, Reason

# Rows that say UNMAPPED on purpose: mistakes in using the library, and the two roots of its trees.
UNMAPPED_ON_PURPOSE = {
    core.BadSubscriptionError,
    core.BadTimeoutError,
    core.InvalidCallbackTypeError,
    core.NotJSMessageError,
    core.MsgAlreadyAckdError,
    core.Error,
    js.Error,
}
# Deprecated names of nats-py: subclasses of the classes above, never raised on their own account.
ALIASES = {"nats.aio.errors", "nats.protocol.parser"}


def classes_of_nats() -> Iterator[type[BaseException]]:
    """Every exception class that nats-py defines, wherever it stands (its service framework is not used)."""
    for module in pkgutil.walk_packages(nats.__path__, "nats."):
        if module.name.startswith("nats.micro"):
            continue
        found = vars(importlib.import_module(module.name)).values()
        for cls in found:
            if inspect.isclass(cls) and issubclass(cls, BaseException) and cls.__module__ == module.name:
                yield cls


def bare(cls: type[BaseException]) -> BaseException:
    """An instance that says as little as its class allows."""
    try:
        return cls()
    except TypeError:  # it insists on details, which no row needs
        return cls.__new__(cls)


def test_every_class_of_nats_has_a_row() -> None:
    """ERR-1: no class of nats-py is mapped by accident; a new version with a new class fails here."""
    missing = {cls for cls in classes_of_nats() if cls not in ROWS and cls.__module__ not in ALIASES}
    assert set() == missing


def test_old_names_have_their_parents_row() -> None:
    """Deprecated aliases of nats-py become what the class behind them becomes."""
    for cls in classes_of_nats():
        if cls.__module__ in ALIASES and cls.__name__ != "NatsError":
            assert ROWS[cls.__mro__[1]] is row_of(bare(cls)), cls


def test_only_mistakes_of_ours_are_unmapped() -> None:
    """ERR-1: what is UNKNOWN/UNMAPPED is listed; nothing else falls there silently."""
    assert UNMAPPED_ON_PURPOSE == {cls for cls, row in ROWS.items() if row is OUR_FAULT}


def test_every_row_is_a_row_of_the_fault_table() -> None:
    """ERR-1: each class translates into a pair that the table of codes and reasons holds."""
    for cls in ROWS:
        error = translate(bare(cls))
        assert (error.code, error.reason) in FAULTS, cls


@pytest.mark.parametrize(
    ("exc", "code", "reason", "executed"),
    [
        (core.NoRespondersError(), Code.CONN_REFUSED, Reason.NO_RESPONDERS, Executed.NO),
        (core.TimeoutError(), Code.TIMEOUT, Reason.DEADLINE, Executed.MAYBE),
        (TimeoutError(), Code.TIMEOUT, Reason.DEADLINE, Executed.MAYBE),
        (core.ConnectionClosedError(), Code.CONN_REFUSED, Reason.DISCONNECTED, Executed.NO),
        (core.UnexpectedEOF(), Code.CONN_REFUSED, Reason.DISCONNECTED, Executed.MAYBE),
        (LinkDown(), Code.CONN_REFUSED, Reason.DISCONNECTED, Executed.NO),
        (ConnectionRefusedError(111, "refused"), Code.CONN_REFUSED, Reason.CONNECT, Executed.NO),
        (ConnectionResetError(104, "reset"), Code.CONN_REFUSED, Reason.DISCONNECTED, Executed.MAYBE),
        (OSError(113, "no route to host"), Code.CONN_REFUSED, Reason.CONNECT, Executed.NO),
        (asyncio.IncompleteReadError(b"", 4), Code.CONN_REFUSED, Reason.DISCONNECTED, Executed.MAYBE),
        (socket.gaierror(-2, "unknown name"), Code.CONN_REFUSED, Reason.DNS, Executed.NO),
        (ssl.SSLCertVerificationError("self-signed"), Code.CONN_REFUSED, Reason.TLS, Executed.NO),
        (core.AuthorizationError(), Code.UPSTREAM_4XX, Reason.AUTH_DENIED, Executed.NO),
        (core.MaxPayloadError(), Code.SCHEMA_INVALID, Reason.TOO_LARGE, Executed.NO),
        (js.NoStreamResponseError(), Code.CONN_REFUSED, Reason.NO_RESPONDERS, Executed.NO),
        (js.BucketNotFoundError(), Code.UPSTREAM_4XX, Reason.NOT_FOUND, Executed.YES),
        (js.APIError(code=404), Code.UPSTREAM_4XX, Reason.NOT_FOUND, Executed.YES),
        (js.APIError(code=409), Code.UPSTREAM_4XX, Reason.REMOTE_4XX, Executed.YES),
        (js.APIError(code=500), Code.UPSTREAM_5XX, Reason.REMOTE_5XX, Executed.MAYBE),
        (
            js.ServiceUnavailableError(code=503, err_code=10077),
            Code.RATE_LIMITED,
            Reason.OVERLOADED,
            Executed.NO,
        ),
        (js.BadRequestError(code=400, err_code=10071), Code.UPSTREAM_4XX, Reason.REMOTE_4XX, Executed.YES),
        (
            js.KeyWrongLastSequenceError("wrong last sequence: 7"),
            Code.UPSTREAM_4XX,
            Reason.REMOTE_4XX,
            Executed.YES,
        ),
        (asyncio.CancelledError(), Code.UNKNOWN, Reason.CANCELLED, Executed.MAYBE),
        (ExceptionGroup("both", [ConnectionRefusedError()]), Code.CONN_REFUSED, Reason.CONNECT, Executed.NO),
        (KeyError("surprise"), Code.UNKNOWN, Reason.UNMAPPED, Executed.MAYBE),
    ],
)
def test_what_an_error_becomes(exc: BaseException, code: Code, reason: Reason, executed: Executed) -> None:
    """ERR-1, RETRY-1: code, reason, and what is known about execution, by example."""
    error = translate(exc)
    assert (code, reason, executed) == (error.code, error.reason, error.executed)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("nats: 'Authorization Violation'", Reason.AUTH_DENIED),
        ("nats: 'User Authentication Expired'", Reason.AUTH_DENIED),
        ('nats: permissions violation for publish to "cap.ledger.post"', Reason.AUTH_DENIED),
        ("nats: 'Maximum Connections Exceeded'", Reason.OVERLOADED),
        ("nats: 'maximum payload violation'", Reason.TOO_LARGE),
        ("nats: 'secure connection - tls required'", Reason.TLS),
        ("nats: something that no one has seen yet", Reason.UNMAPPED),
    ],
)
def test_lines_of_the_server(line: str, reason: Reason) -> None:
    """ERR-1: what the server only says in words is understood, in whatever case nats-py hands it on."""
    assert reason is translate(core.Error(line)).reason


def test_our_own_errors_pass() -> None:
    """An error that is ours already is not wrapped again."""
    error = SchemaInvalid("amount is a number, not a text")
    assert translate(error) is error


def test_the_raw_cause_is_kept_but_not_told() -> None:
    """ERR-4, ERR-5: the sentence is the calm one; the original is behind it for the record."""
    exc = ConnectionRefusedError(111, "connect to 10.1.2.3 with password hunter2")
    error = translate(exc)
    assert isinstance(error, Unreachable)
    assert error.__cause__ is exc
    assert "hunter2" not in str(error)
    assert FAULTS[Code.CONN_REFUSED, Reason.CONNECT].en == error.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('nats: permissions violation for publish to "cap.x"', ("publish", "cap.x")),
        ('Permissions Violation for Publish to "cap.Ledger.Post"', ("publish", "cap.Ledger.Post")),
        ('nats: permissions violation for publish with reply of "other.1"', ("reply", "other.1")),
        ('nats: permissions violation for subscription to "cap.>"', ("subscribe", "cap.>")),
        ('nats: permissions violation for subscription to "cap.>" using queue "x"', ("subscribe", "cap.>")),
        (r'permissions violation for publish to "a.\"b\\c"', ("publish", r'a."b\c')),
        ("nats: authorization violation", None),
        ("nats: permissions violation", None),
        ("", None),
    ],
)
def test_reading_a_denial(text: str, expected: tuple[str, str] | None) -> None:
    """ERR-1: a denial names its subject, by which the calls on it are failed at once."""
    assert expected == denied_subject(text)


async def test_a_denial_is_read_as_nats_py_hands_it_on() -> None:
    """The text that reaches us is what the parser makes of the server's line: in lower case."""

    class Client:
        line = ""

        async def _process_err(self, line: str) -> None:
            self.line = line

    client = Client()
    await Parser(client).parse(b"-ERR 'Permissions Violation for Publish to \"cap.ledger.post\"'\r\n")
    assert ("publish", "cap.ledger.post") == denied_subject(client.line)


def test_a_refused_api_call_is_an_upstream_refusal() -> None:
    """JetStream's 4xx are refusals of the far end, so nothing is retried on them."""
    error: ReachError = translate(js.BadRequestError(code=400, err_code=10025))
    assert isinstance(error, UpstreamRefusal)
