"""How an object lies in a NATS object store (ADR-20), so that every NATS client can read ours and we theirs.

An object is a run of chunk messages on a subject of its own, and one message that describes it: name, size,
number of chunks, digest. A message with the header `Nats-Rollup: sub` replaces all others of its subject, which
is how a description is renewed and how chunks are taken back. Pure: bytes and subjects, no connection.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

CHUNK_BYTES: Final = 128 * 1024
"""What the object stores of all NATS clients use."""

ROLLUP: Final = {"Nats-Rollup": "sub"}
"""Headers of a message that replaces all others of its subject."""


def chunk_subject(bucket: str, nuid: str) -> str:
    """Where the chunks of one put are."""
    return f"$O.{bucket}.C.{nuid}"


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What an object store keeps beside the chunks, as all NATS clients write it (ADR-20)."""

    bucket: str
    name: str
    nuid: str
    size: int
    chunks: int
    digest: str
    chunk_bytes: int = CHUNK_BYTES

    def has_digest(self, digest: bytes) -> bool:
        """Whether `digest` (SHA-256) is this object's; clients differ in padding."""
        return digest_text(digest).rstrip("=") == self.digest.rstrip("=")

    @property
    def subject(self) -> str:
        """Where this description is."""
        return meta_subject(self.bucket, self.name)

    def pack(self, *, deleted: bool = False) -> bytes:
        """Give the description as it is stored; `deleted` gives the word that there was an object once."""
        body: dict[str, Any] = {
            "name": self.name,
            "bucket": self.bucket,
            "nuid": self.nuid,
            "size": 0 if deleted else self.size,
            "chunks": 0 if deleted else self.chunks,
            "digest": "" if deleted else self.digest,
            "mtime": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
            "options": {"max_chunk_size": self.chunk_bytes},
        }
        if deleted:
            body["deleted"] = True
        return json.dumps(body).encode()

    @classmethod
    def read(cls, bucket: str, name: str, data: bytes) -> StoredObject | None:
        """Read the store's word; None for a blob that was deleted, or that no client would have written so."""
        body = read_map(data)
        nuid, size, digest = body.get("nuid"), body.get("size"), body.get("digest")
        if body.get("deleted") or not nuid or type(size) is not int or type(digest) is not str:
            return None
        return cls(bucket, name, str(nuid), size, int(body.get("chunks") or 0), digest)


def meta_subject(bucket: str, name: str) -> str:
    """Where the description of an object is."""
    return f"$O.{bucket}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


def digest_text(digest: bytes) -> str:
    """Give a digest as object stores write it."""
    return "SHA-256=" + base64.urlsafe_b64encode(digest).decode()


def read_map(data: bytes) -> dict[str, Any]:
    """Read a JSON object; what is none reads as empty."""
    try:
        body = json.loads(data)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}
