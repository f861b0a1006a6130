"""`reach up`: everything one machine needs, in the foreground: NATS, the platform, and the demo if asked.

Started in that order and ended in the other; what dies is started again, within limits. A second `reach up` for
the same folder finds the first and says where it is. With `--url` only the platform runs, beside a NATS that is
there already.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reach.cli import options as opt

EXAMPLES = (
    ("NATS and the platform on this machine", "reach up"),
    ("With agents to play with", "reach up --demo"),
    ("For other machines, on a fixed port", "reach up --host 0.0.0.0 --port 4222"),
    (
        "In the background of a script, until it is ready",
        "reach up --json > up.json & until grep ready up.json; do sleep 0.1; done",
    ),
    ("Only the platform, beside a NATS of your own", "reach up --url nats://nats.internal:4222"),
)


def up(
    *,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            min=0,
            max=65535,
            help="Port of NATS; 0 takes a free one. The last one used, else 4222, where not given.",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where NATS listens.")] = "127.0.0.1",
    home: Annotated[
        Path | None,
        typer.Option(
            "--home",
            metavar="FOLDER",
            help="State folder: keys, data, log. REACH_HOME, else ~/.local/state/agent-reach.",
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Also serve the demo's agents.")] = False,
    sync_always: Annotated[
        bool,
        typer.Option(
            "--sync-always",
            help="Sync the disk before each acknowledgement of a stream: safe, at a sixth of the rate.",
        ),
    ] = False,
    url: opt.Url = None,
    as_json: opt.AsJson = False,
) -> None:
    """Start NATS and the platform here, until Ctrl-C.

    It is ready when it says so; --json then prints one line of JSON. Everything is stopped in order on Ctrl-C or
    SIGTERM; a second signal does not wait.
    """
    from reach.bus.state import StateFolder
    from reach.cli.exits import usage
    from reach.cli.household import Household, Wish

    if url is not None and (port is not None or sync_always):
        raise usage(
            "--port and --sync-always are about a NATS that is started here, and --url names one that runs."
        )
    folder = StateFolder.locate() if home is None else StateFolder(home.expanduser().absolute())
    wish = Wish(
        home=folder.path, port=port, host=host, demo=demo, sync_always=sync_always, url=url, as_json=as_json
    )
    Household(wish).live()
