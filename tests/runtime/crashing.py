"""A function that ends the process in which it runs; imported by worker processes."""

import os
import signal


def die(how: str = "signal") -> dict:  # type: ignore[type-arg]
    """End, unless asked to live."""
    if how == "signal":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"how": how}
