"""Where the program `reach` begins: a Ctrl-C while modules are still being imported is as quiet as any other."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from reach.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)  # exits.Exit.INTERRUPTED, which may be what was just being imported.
