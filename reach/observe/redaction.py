"""What may be written down of a text or an exception (behaviour ERR-5).

Causes are for the owner's eyes, in the record and the log, and even there without credentials: user info and
secret parameters of URLs, values beside words such as `password`, bearer tokens, keys in their well-known
shapes, and the inputs that pydantic quotes. An exception becomes its type, its redacted text and the place
that raised it; never its `repr`, never a stack.
"""

from __future__ import annotations

import re
from types import TracebackType
from typing import Final

HIDDEN: Final = "***"
"""What stands in place of a secret."""

MAX_CAUSE_CHARS: Final = 300

_MAX_READ_CHARS: Final = 4_000

_WORDS: Final = (
    r"(?:[\w-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|apikey|access[_-]?key|private[_-]?key|"
    r"credential|signature)s?|pwd|auth|authorization|cookie|set-cookie|sig|session[_-]?id)"
)

_RULES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    # Keys in a shape of their own: PEM blocks, nkey seeds, JSON web tokens, keys of well-known services.
    (re.compile(r"-----BEGIN [A-Z ]*-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL), HIDDEN),
    (re.compile(r"\bS[AUOCNX][A-Z2-7]{56}\b"), HIDDEN),
    (re.compile(r"\beyJ[\w-]{8,}(?:\.[\w-]+){1,4}"), HIDDEN),
    (re.compile(r"\b(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abprs])[-_][\w-]{16,}"), HIDDEN),
    (re.compile(r"\bAKIA[0-9A-Z]{16}\b"), HIDDEN),
    (re.compile(r"\bwhs[ek]c?_[\w+/=-]{16,}"), HIDDEN),
    # scheme://user:password@host - up to the last @ before the path, since passwords hold @ too.
    (re.compile(r"(?P<keep>\b[a-z][a-z0-9+.-]*://)[^\s/?#\"'<>]+@", re.IGNORECASE), rf"\g<keep>{HIDDEN}@"),
    (
        re.compile(r"(?P<keep>\b(?:bearer|basic|digest)\s+)[\w+/=.~-]{6,}", re.IGNORECASE),
        rf"\g<keep>{HIDDEN}",
    ),
    # name=value, name: value, "name": "value", ?name=value&…
    (
        re.compile(
            rf"(?P<keep>(?<![\w-]){_WORDS}[\"']?\s*[=:]\s*)"
            r"(?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s&,;\"'}\])]+)",
            re.IGNORECASE,
        ),
        rf"\g<keep>{HIDDEN}",
    ),
    (re.compile(r"(?P<keep>[?&](?:key|code)=)[^\s&#\"'<>]+", re.IGNORECASE), rf"\g<keep>{HIDDEN}"),
    # pydantic quotes what it was given.
    (re.compile(r"input_value=.*?(?=, input_type=|\]|\Z)", re.DOTALL), f"input_value={HIDDEN}"),
)


def redact(text: str) -> str:
    """Give `text` with every recognised secret replaced by `***`."""
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text


def safe_cause(exc: BaseException) -> str:
    """Describe an exception for a record or a log: type, redacted text, place; at most 300 characters of text.

    Shape: `ValueError: no such column (ledger.py:41)`.
    """
    try:
        text = " ".join(redact(str(exc)[:_MAX_READ_CHARS]).split())
    except Exception:  # noqa: BLE001 - a foreign __str__ may raise anything, and its type is still worth telling
        text = ""
    if len(text) > MAX_CAUSE_CHARS:
        text = text[: MAX_CAUSE_CHARS - 1] + "…"
    place = _place(exc.__traceback__)
    return type(exc).__name__ + (f": {text}" if text else "") + (f" ({place})" if place else "")


def _place(traceback: TracebackType | None) -> str:
    """The file (by its name alone) and line that raised."""
    if traceback is None:
        return ""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    name = traceback.tb_frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{name}:{traceback.tb_lineno}"
