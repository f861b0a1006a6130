"""What can go wrong, as one table.

Seven codes say *what kind* of failure a caller sees; reasons say which one exactly. For each pair the
table holds what is normally known about execution, whether whoever receives the reply may repeat the
call, what it should rather do, and one calm sentence in English and Chinese. The table is data: the
errors (`reach.errors`), the wire's `Failure` and the adapters all read it, and a test proves it total
in both directions (behaviour ERR-1).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Code(StrEnum):
    """The seven codes (behaviour ERR-1)."""

    TIMEOUT = "TIMEOUT"
    CONN_REFUSED = "CONN_REFUSED"
    UPSTREAM_5XX = "UPSTREAM_5XX"
    UPSTREAM_4XX = "UPSTREAM_4XX"
    SCHEMA_INVALID = "SCHEMA_INVALID"
    RATE_LIMITED = "RATE_LIMITED"
    UNKNOWN = "UNKNOWN"


class Executed(StrEnum):
    """What is known about execution: the only thing retrying is decided by (behaviour RETRY-1)."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


class Advice(StrEnum):
    """What the receiver of a failure may sensibly do next."""

    FIX_PARAMS = "fix_params"
    WAIT = "wait"
    TRY_OTHER = "try_other"
    ASK_HUMAN = "ask_human"
    GIVE_UP = "give_up"


class Retryable(StrEnum):
    """When the receiver may repeat the call; `IF_FLAGGED` means the far end said so (502, 503, 504 or its body)."""

    NO = "no"
    YES = "yes"
    IF_IDEMPOTENT = "if_idempotent"
    IF_FLAGGED = "if_flagged"


class Reason(StrEnum):
    """The finer word below a code. `NOT_FOUND` stands under two codes: our capability, or the far end's thing."""

    NO_RESPONDERS = "NO_RESPONDERS"
    CONNECT = "CONNECT"
    DNS = "DNS"
    TLS = "TLS"
    DISCONNECTED = "DISCONNECTED"
    STALE = "STALE"
    BREAKER_OPEN = "BREAKER_OPEN"
    INSTANCE_GONE = "INSTANCE_GONE"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    WORKER_LOST = "WORKER_LOST"
    DEADLINE = "DEADLINE"
    FIRST_BYTE = "FIRST_BYTE"
    IDLE_STREAM = "IDLE_STREAM"
    CANCELLED = "CANCELLED"
    OVERLOADED = "OVERLOADED"
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    REMOTE_429 = "REMOTE_429"
    BUDGET_EXHAUSTED = "BUDGET_EXHAUSTED"
    SCHEMA = "SCHEMA"
    TOO_LARGE = "TOO_LARGE"
    KEY_REUSED = "KEY_REUSED"
    NOT_FOUND = "NOT_FOUND"
    REMOTE_4XX = "REMOTE_4XX"
    AUTH_DENIED = "AUTH_DENIED"
    FORBIDDEN = "FORBIDDEN"
    IN_PROGRESS = "IN_PROGRESS"
    REMOTE_5XX = "REMOTE_5XX"
    NON_JSON_BODY = "NON_JSON_BODY"
    STREAM_CUT = "STREAM_CUT"
    HANDLER_ERROR = "HANDLER_ERROR"
    BAD_RESULT = "BAD_RESULT"
    UNMAPPED = "UNMAPPED"


@dataclass(frozen=True, slots=True)
class Fault:
    """One row of the table: the defaults of a (code, reason) pair."""

    code: Code
    reason: Reason
    executed: Executed
    retryable: Retryable
    advice: Advice
    en: str
    zh: str

    def message(self, language: str = "en") -> str:
        """Give the sentence for `language` (`en`, `zh`, or a longer tag such as `zh-CN`); English otherwise."""
        return self.zh if language.lower().startswith("zh") else self.en


_CALM_EN: Final = (
    "This capability is not available right now. "
    "Do not change the parameters; use another way or tell the user."
)
_CALM_ZH: Final = "该能力暂时不可用。请不要修改参数；请改用其他途径或告知用户。"
_UNSURE_EN: Final = "It is not known whether this was done. Do not repeat it; check, or ask."
_UNSURE_ZH: Final = "无法确定该操作是否已执行。请勿重复；请核实或询问相关人员。"


def _rows() -> tuple[Fault, ...]:
    c, r, e, t, a = Code, Reason, Executed, Retryable, Advice
    return (
        Fault(c.CONN_REFUSED, r.NO_RESPONDERS, e.NO, t.NO, a.TRY_OTHER, _CALM_EN, _CALM_ZH),
        Fault(c.CONN_REFUSED, r.CONNECT, e.NO, t.NO, a.TRY_OTHER, _CALM_EN, _CALM_ZH),
        Fault(c.CONN_REFUSED, r.DNS, e.NO, t.NO, a.TRY_OTHER, _CALM_EN, _CALM_ZH),
        Fault(c.CONN_REFUSED, r.TLS, e.NO, t.NO, a.ASK_HUMAN, _CALM_EN, _CALM_ZH),
        Fault(c.CONN_REFUSED, r.DISCONNECTED, e.NO, t.YES, a.WAIT, _CALM_EN, _CALM_ZH),
        Fault(c.CONN_REFUSED, r.STALE, e.NO, t.YES, a.WAIT, _CALM_EN, _CALM_ZH),
        Fault(c.CONN_REFUSED, r.BREAKER_OPEN, e.NO, t.NO, a.TRY_OTHER, _CALM_EN, _CALM_ZH),
        Fault(
            c.UPSTREAM_5XX,
            r.INSTANCE_GONE,
            e.MAYBE,
            t.IF_IDEMPOTENT,
            a.WAIT,
            "The agent that had this call stopped before it answered.",
            "处理该调用的代理在答复之前停止了。",
        ),
        Fault(c.UNKNOWN, r.OUTCOME_UNKNOWN, e.MAYBE, t.NO, a.ASK_HUMAN, _UNSURE_EN, _UNSURE_ZH),
        Fault(c.UNKNOWN, r.WORKER_LOST, e.MAYBE, t.NO, a.ASK_HUMAN, _UNSURE_EN, _UNSURE_ZH),
        Fault(
            c.TIMEOUT,
            r.DEADLINE,
            e.MAYBE,
            t.IF_IDEMPOTENT,
            a.WAIT,
            "The call did not finish before its deadline.",
            "调用未能在截止时间之前完成。",
        ),
        Fault(
            c.TIMEOUT,
            r.FIRST_BYTE,
            e.MAYBE,
            t.IF_IDEMPOTENT,
            a.TRY_OTHER,
            "Nothing arrived within the time allowed for the first part of the answer.",
            "在允许的时间内没有收到答复的第一部分。",
        ),
        Fault(
            c.TIMEOUT,
            r.IDLE_STREAM,
            e.MAYBE,
            t.NO,
            a.WAIT,
            "The stream fell silent and was ended.",
            "数据流长时间没有内容，已被终止。",
        ),
        Fault(
            c.UNKNOWN,
            r.CANCELLED,
            e.MAYBE,
            t.NO,
            a.GIVE_UP,
            "The call was cancelled by its caller.",
            "调用已被调用方取消。",
        ),
        Fault(
            c.RATE_LIMITED,
            r.OVERLOADED,
            e.NO,
            t.YES,
            a.WAIT,
            "All places are taken right now. Wait a moment and try again.",
            "当前已满负荷。请稍候再试。",
        ),
        Fault(
            c.RATE_LIMITED,
            r.QUOTA_EXCEEDED,
            e.NO,
            t.YES,
            a.WAIT,
            "The quota is used up for now. Wait until it resets.",
            "配额已用完。请等待配额重置。",
        ),
        Fault(
            c.RATE_LIMITED,
            r.REMOTE_429,
            e.NO,
            t.YES,
            a.WAIT,
            "The service asked to be called less often. Wait and try again.",
            "对方服务要求降低调用频率。请稍候再试。",
        ),
        Fault(
            c.RATE_LIMITED,
            r.BUDGET_EXHAUSTED,
            e.NO,
            t.NO,
            a.GIVE_UP,
            "The budget of this task is spent. Finish with what you have.",
            "该任务的预算已用完。请用现有结果收尾。",
        ),
        Fault(
            c.SCHEMA_INVALID,
            r.SCHEMA,
            e.NO,
            t.NO,
            a.FIX_PARAMS,
            "The parameters do not fit this capability.",
            "参数不符合该能力的要求。",
        ),
        Fault(
            c.SCHEMA_INVALID,
            r.TOO_LARGE,
            e.NO,
            t.NO,
            a.FIX_PARAMS,
            "The payload is larger than this capability takes.",
            "内容超过了该能力允许的大小。",
        ),
        Fault(
            c.SCHEMA_INVALID,
            r.KEY_REUSED,
            e.NO,
            t.NO,
            a.FIX_PARAMS,
            "This idempotency key was already used with other parameters.",
            "该幂等键已用于其他参数。",
        ),
        Fault(
            c.SCHEMA_INVALID,
            r.NOT_FOUND,
            e.NO,
            t.NO,
            a.FIX_PARAMS,
            "There is no capability of this name.",
            "没有这个名称的能力。",
        ),
        Fault(
            c.UPSTREAM_4XX,
            r.REMOTE_4XX,
            e.YES,
            t.NO,
            a.FIX_PARAMS,
            "The service refused the request.",
            "对方服务拒绝了该请求。",
        ),
        Fault(
            c.UPSTREAM_4XX,
            r.NOT_FOUND,
            e.YES,
            t.NO,
            a.FIX_PARAMS,
            "The service does not know what was asked for.",
            "对方服务找不到所请求的内容。",
        ),
        Fault(
            c.UPSTREAM_4XX,
            r.AUTH_DENIED,
            e.NO,
            t.NO,
            a.ASK_HUMAN,
            "The caller's credentials do not allow this call.",
            "调用方的凭据不允许该调用。",
        ),
        Fault(
            c.UPSTREAM_4XX,
            r.FORBIDDEN,
            e.NO,
            t.NO,
            a.ASK_HUMAN,
            "This caller may not use this capability.",
            "该调用方无权使用此能力。",
        ),
        Fault(
            c.UPSTREAM_4XX,
            r.IN_PROGRESS,
            e.MAYBE,
            t.YES,
            a.WAIT,
            "A call with the same idempotency key is still running.",
            "使用相同幂等键的调用仍在进行中。",
        ),
        Fault(
            c.UPSTREAM_5XX,
            r.REMOTE_5XX,
            e.MAYBE,
            t.IF_FLAGGED,
            a.WAIT,
            "The service failed while handling the request.",
            "对方服务在处理请求时出错。",
        ),
        Fault(
            c.UPSTREAM_5XX,
            r.NON_JSON_BODY,
            e.MAYBE,
            t.NO,
            a.WAIT,
            "The service answered with something that is not the promised document.",
            "对方服务返回的不是约定的文档。",
        ),
        Fault(
            c.UPSTREAM_5XX,
            r.STREAM_CUT,
            e.MAYBE,
            t.NO,
            a.WAIT,
            "The answer broke off before its end.",
            "答复在结束之前中断了。",
        ),
        Fault(
            c.UPSTREAM_5XX,
            r.HANDLER_ERROR,
            e.YES,
            t.NO,
            a.ASK_HUMAN,
            "The agent's own code failed. Its owner finds the cause under the reach_id.",
            "代理自身的代码出错。其负责人可凭 reach_id 查明原因。",
        ),
        Fault(
            c.UPSTREAM_5XX,
            r.BAD_RESULT,
            e.YES,
            t.NO,
            a.ASK_HUMAN,
            "The agent finished, but its result is not what the capability promises.",
            "代理已执行完毕，但其结果不符合该能力的约定。",
        ),
        Fault(c.UNKNOWN, r.UNMAPPED, e.MAYBE, t.NO, a.TRY_OTHER, _CALM_EN, _CALM_ZH),
    )


FAULTS: Final[dict[tuple[Code, Reason], Fault]] = {(row.code, row.reason): row for row in _rows()}
"""Every legal (code, reason) pair."""

_FIRST: Final[dict[Reason, Fault]] = {}
for _row in FAULTS.values():
    _FIRST.setdefault(_row.reason, _row)


def fault(reason: Reason, code: Code | None = None) -> Fault:
    """Look up a row; without a `code`, `NOT_FOUND` means our capability.

    Raises `ValueError` for a pair that the table does not hold.
    """
    row = _FIRST[reason] if code is None else FAULTS.get((code, reason))
    if row is None:
        known = ", ".join(sorted(r.value for (c, r) in FAULTS if c == code))
        msg = f"{reason} is not a reason of {code}; its reasons are {known}"
        raise ValueError(msg)
    return row


def is_retryable(row: Fault, *, idempotent: bool, flagged: bool = False) -> bool:
    """Resolve a row's `Retryable` for one call: `idempotent` covers declared capabilities and keyed calls."""
    match row.retryable:
        case Retryable.YES:
            return True
        case Retryable.IF_IDEMPOTENT:
            return idempotent
        case Retryable.IF_FLAGGED:
            return flagged and idempotent
        case _:
            return False
