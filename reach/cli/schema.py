"""`reach schema`: the published contract, made from the models of this very version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from reach.cli import options as opt

EXPORT_EXAMPLES = (
    ("Write every schema into ./schemas", "reach schema export"),
    ("Into another folder", "reach schema export build/contract"),
)
SHOW_EXAMPLES = (
    ("The names of all messages", "reach schema show"),
    ("The JSON Schema of the request", "reach schema show envelope"),
    ("Who says what where", "reach schema show asyncapi"),
)


def export(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Made where it is missing.")] = Path(
        "schemas"
    ),
    as_json: opt.AsJson = False,
) -> None:
    """Write the schemas, the AsyncAPI document and the table of failures."""
    from reach.cli import output
    from reach.cli.exits import Exit, Refusal
    from reach.wire import schema

    try:
        written = schema.export(folder)
    except OSError as error:
        message = f"{error.filename or folder} cannot be written: {error.strerror}."
        raise Refusal(Exit.SETUP, message, fix="Give a folder that you may write to.") from None
    if as_json:
        output.print_json({"folder": str(folder), "files": [str(path) for path in written]})
    else:
        output.line(f"{output.plural(len(written), 'file')} in {folder}")


def show(
    name: Annotated[
        str | None, typer.Argument(metavar="MESSAGE", help="All names where left out.", show_default=False)
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Print the schema of one message; `asyncapi` and `faults` are documents, too."""
    from reach.cli import output

    documents = _documents()
    if name is None:
        if as_json:
            output.print_json(sorted(documents))
            return
        rows = ((known, documents[known].get("description", "")) for known in sorted(documents))
        output.show(output.grid(("message", "what it is"), rows))
        return
    if name not in documents:
        raise _unknown(name, documents)
    output.print_json(documents[name]) if as_json else output.print_result(documents[name])


def _documents() -> dict[str, Any]:
    from reach.wire import schema
    from reach.wire.asyncapi import asyncapi

    faults = {"description": "The table of failures: codes, reasons, what is known and advised."}
    return {
        **schema.json_schemas(),
        "asyncapi": {"description": "Who says what where (AsyncAPI).", **asyncapi()},
        "faults": {**faults, "faults": schema.faults_table()},
    }


def _unknown(name: str, documents: dict[str, Any]) -> Exception:
    import difflib

    from reach.cli.exits import usage

    near = difflib.get_close_matches(name, documents, n=1)
    known = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(sorted(documents))}"
    return usage(f"There is no message {name!r}.", fix=known)
