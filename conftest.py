"""Every Python block of the README and of docs/ is run, so that what a reader copies works.

Blocks of one document share a namespace and, where they use `await` at top level, one event loop, as in
a notebook. A block that is only to be read is marked `<!--- skip: next -->`, with a reason.
"""

import ast
import asyncio
import inspect
from types import FunctionType
from typing import Any

from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

_RUNNER = "__runner__"


def _run_block(example: Example) -> None:
    """Run one block where the document stands, its line numbers kept for tracebacks."""
    source = "\n" * (example.line + example.parsed.line_offset) + example.parsed
    code = compile(source, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    block = FunctionType(code, example.namespace)
    if code.co_flags & inspect.CO_COROUTINE:
        example.namespace[_RUNNER].run(block())
    else:
        block()


def _open_document(namespace: dict[str, Any]) -> None:
    namespace["__name__"] = "__docs__"
    namespace[_RUNNER] = asyncio.Runner()


def _close_document(namespace: dict[str, Any]) -> None:
    namespace[_RUNNER].close()


pytest_collect_file = Sybil(
    parsers=[CodeBlockParser(language="python", evaluator=_run_block), SkipParser()],
    patterns=["README*.md", "docs/*.md", "docs/**/*.md"],
    setup=_open_document,
    teardown=_close_document,
).pytest()
