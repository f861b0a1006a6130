"""What all tests share: one event loop library, and honesty about programs that a machine may lack."""

import os
import shutil

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run every test on asyncio: nats-py knows no other."""
    return "asyncio"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose program is missing on a user's machine; fail it in CI, which installs them all."""
    for mark in item.iter_markers("needs_program"):
        for program in mark.args:
            if shutil.which(program):
                continue
            if os.environ.get("CI") == "true":
                pytest.fail(f"CI lacks the program {program!r}: let .ci/run install it", pytrace=False)
            pytest.skip(f"needs the program {program!r}, which is not on PATH")
