"""The AsyncAPI document, judged by validators that are not ours."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reach.wire.asyncapi import asyncapi
from reach.wire.schema import references
from tests.wire.contract import SCHEMAS

PARSER = "@asyncapi/parser"
PARSER_VERSION = "3.6.6"
CHECK = """
import { Parser } from '@asyncapi/parser';
import { readFileSync } from 'node:fs';
const verdicts = [];
for (const text of JSON.parse(readFileSync(0, 'utf8'))) {
  const { document, diagnostics } = await new Parser().parse(text);
  const errors = diagnostics.filter((one) => one.severity === 0);
  verdicts.push({
    valid: document !== undefined,
    errors: errors.map((one) => `${one.path.join('.')}: ${one.message}`),
    channels: document?.allChannels().all().map((one) => one.address()) ?? [],
    operations: document?.allOperations().all().map((one) => one.id()) ?? [],
  });
}
process.stdout.write(JSON.stringify(verdicts));
"""


@pytest.fixture(scope="session")
def parser_folder() -> Path:
    """AsyncAPI's own parser, installed once beside the virtual environment."""
    folder = Path(sys.prefix) / "share" / "reach-tests" / f"asyncapi-parser-{PARSER_VERSION}"
    ready = folder / "ready"
    if not ready.exists():
        folder.mkdir(parents=True, exist_ok=True)
        why = npm_install(folder, f"{PARSER}@{PARSER_VERSION}")
        if why and os.environ.get("CI") == "true":
            pytest.fail(why)
        elif why:
            pytest.skip(why)
        ready.touch()
    (folder / "check.mjs").write_text(CHECK, encoding="utf-8")
    return folder


def npm_install(folder: Path, package: str) -> str:
    """Install a package; give why it could not be, as on a machine without a network, or nothing."""
    command = ["npm", "install", "--prefix", str(folder), "--no-package-lock", "--no-audit", "--no-fund"]
    command += ["--ignore-scripts", "--fetch-retries=1", "--fetch-timeout=20000", package]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=90, check=False)
    except subprocess.TimeoutExpired:
        return f"npm took too long to install {package}"
    return "" if done.returncode == 0 else f"npm could not install {package}: {done.stderr.strip()[-300:]}"


def _no_version(document: dict[str, Any]) -> None:
    del document["info"]["version"]


def _wrong_action(document: dict[str, Any]) -> None:
    document["operations"]["call"]["action"] = "shout"


def _lost_channel(document: dict[str, Any]) -> None:
    document["operations"]["call"]["channel"] = {"$ref": "#/channels/nowhere"}


def _bad_schema(document: dict[str, Any]) -> None:
    document["components"]["schemas"]["Envelope"]["type"] = "map"


BREAKAGES = (_no_version, _wrong_action, _lost_channel, _bad_schema)


def broken(breakage: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    document = asyncapi()
    breakage(document)
    return document


@pytest.mark.needs_program("node", "npm")
def test_the_official_parser_accepts_the_committed_document(parser_folder: Path) -> None:
    """AsyncAPI's own parser finds no error in it, sees every channel and operation, and refuses broken ones."""
    committed = (SCHEMAS / "asyncapi.json").read_text(encoding="utf-8")
    texts = [committed, *(json.dumps(broken(breakage)) for breakage in BREAKAGES)]
    done = subprocess.run(
        ["node", "check.mjs"],
        cwd=parser_folder,
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ours, *others = json.loads(done.stdout)
    document = json.loads(committed)
    addresses = [channel["address"] for channel in document["channels"].values()]
    assert [] == ours["errors"]
    assert ours["valid"]
    assert sorted(document["operations"]) == sorted(ours["operations"])
    assert sorted(addresses, key=str) == sorted(ours["channels"], key=str)
    assert [] == [
        breakage.__name__
        for breakage, verdict in zip(BREAKAGES, others, strict=True)
        if verdict["valid"] and not verdict["errors"]
    ]


def test_a_second_validator_accepts_the_document_without_node() -> None:
    """A Python model of AsyncAPI 3, made by others, takes the document and refuses a broken one."""
    model = pytest.importorskip("pydantic_asyncapi.v3").AsyncAPI
    model.model_validate(json.loads((SCHEMAS / "asyncapi.json").read_bytes()))
    for breakage in (_no_version, _wrong_action):
        with pytest.raises(ValueError, match="validation error"):
            model.model_validate(broken(breakage))


def test_every_reference_of_the_document_leads_somewhere() -> None:
    """No reference dangles, and none leads out of the document."""
    document = asyncapi()
    for reference in sorted(set(references(document))):
        node = document
        assert reference.startswith("#/")
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]


def test_an_operation_answers_with_messages_of_its_answer_channel() -> None:
    """As the specification asks: a reply whose address is given at run time names a channel without one."""
    document = asyncapi()
    for operation in document["operations"].values():
        if "reply" in operation:
            channel = document["channels"][operation["reply"]["channel"]["$ref"].rpartition("/")[2]]
            names = {message["$ref"].rpartition("/")[2] for message in operation["reply"]["messages"]}
            assert channel["address"] is None
            assert names <= channel["messages"].keys()
