"""What errors of sockets and of httpx mean for a guarded body."""

import socket
import ssl

import pytest

import reach
from reach.call.native import failure_of
from reach.faults import Executed, Reason
from reach.observe.records import MemorySink, Recorder

httpx = pytest.importorskip("httpx", reason="httpx is not installed: its errors cannot be made")


def status(code: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://127.0.0.1/")
    return httpx.HTTPStatusError(
        "x", request=request, response=httpx.Response(code, headers=headers, request=request)
    )


@pytest.mark.parametrize(
    ("error", "reason", "executed"),
    [
        (ConnectionRefusedError(), Reason.CONNECT, Executed.NO),
        (socket.gaierror(), Reason.DNS, Executed.NO),
        (ssl.SSLCertVerificationError(), Reason.TLS, Executed.NO),
        (TimeoutError(), Reason.DEADLINE, Executed.MAYBE),
        (BrokenPipeError(), Reason.INSTANCE_GONE, Executed.MAYBE),
        (httpx.ConnectTimeout("x"), Reason.CONNECT, Executed.NO),
        (httpx.PoolTimeout("x"), Reason.CONNECT, Executed.NO),
        (httpx.ReadTimeout("x"), Reason.DEADLINE, Executed.MAYBE),
        (httpx.RemoteProtocolError("x"), Reason.INSTANCE_GONE, Executed.MAYBE),
        (status(400), Reason.REMOTE_4XX, Executed.YES),
        (status(404), Reason.REMOTE_4XX, Executed.YES),
        (status(401), Reason.AUTH_DENIED, Executed.NO),
        (status(403), Reason.FORBIDDEN, Executed.NO),
        (status(429, **{"retry-after": "2"}), Reason.REMOTE_429, Executed.NO),
        (status(500), Reason.REMOTE_5XX, Executed.MAYBE),
        (status(503), Reason.REMOTE_5XX, Executed.MAYBE),
    ],
    ids=repr,
)
def test_native_errors_mean_what_is_known(error: Exception, reason: Reason, executed: Executed) -> None:
    """ERR-1, ERR-2: sockets and httpx, by what they say about execution."""
    failure = failure_of(error)
    assert failure is not None
    assert (failure.reason, failure.executed) == (reason, executed)


async def test_a_503_is_repeated_and_a_500_is_not() -> None:
    """ERR-2: 502, 503 and 504 may pass a moment later; a plain 500 or a 404 may not."""
    recorder = Recorder(MemorySink())
    answers = [status(503)]
    ran: list[int] = []

    @reach.guard("order.query", idempotent=True, recorder=recorder)
    async def body() -> str:
        ran.append(1)
        if answers:
            raise answers.pop()
        return "done"

    assert await body() == "done"
    answers.append(status(500))
    with pytest.raises(reach.UpstreamFailure) as caught:
        await body()
    assert isinstance(caught.value.__cause__, httpx.HTTPStatusError)
    answers.append(status(404))
    with pytest.raises(reach.UpstreamRefusal):
        await body()
    assert len(ran) == 4
    recorder.close()
