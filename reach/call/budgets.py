"""Budgets of rounds and tasks: the toll of a call that belongs to one (GUARD-4).

A round's budget is this process's: it bounds the loop in its block. A task's is everybody's: its calls are counted over
all processes, those of handlers that work for it included, by one number (`reach.policy.taskbudget.Chunks`). Every task
has the default budget (`REACH_TASK_BUDGET_CALLS` and its like). A call that turns out not to have been done gives its
unit back; what one has cost is known when its answer is there.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from reach.bus.counters import token
from reach.call.call import Outlived
from reach.call.purse import SpentError, TaskPurse
from reach.errors import ConfigError
from reach.faults import Executed, Reason
from reach.policy.taskbudget import Budget, Chunks, Purse, Spent
from reach.wire import subjects
from reach.wire.reply import Failure
from reach.wire.task import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reach.bus.counters import SharedCounts
    from reach.call.call import Call
    from reach.observe.metrics import Metrics

TASK_CALLS: Final = 10_000
"""Calls that a task may make, its handlers' calls included, where nobody says otherwise."""

MAX_TASKS: Final = 4_096
"""Tasks whose calls a process counts; past it the one that called longest ago is forgotten, its calls given back."""


def task_budget(env: Mapping[str, str]) -> Budget:
    """Give the budget of every task; 0 is no bound. Raises `ConfigError` for what is no number."""
    return Budget(
        calls=int(_number(env, "REACH_TASK_BUDGET_CALLS", TASK_CALLS, whole=True)) or None,
        cost=_number(env, "REACH_TASK_BUDGET_COST", 0) or None,
        seconds=_number(env, "REACH_TASK_BUDGET_SECONDS", 0) or None,
    )


def _number(env: Mapping[str, str], name: str, default: float, *, whole: bool = False) -> float:
    text = env.get(name, "").strip()
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf") or (whole and number % 1):
        msg = f"{name} is {text!r}. Right would be a {'whole ' if whole else ''}number, 0 for no bound."
        raise ConfigError(msg)
    return number


class Budgets:
    """The toll of budgets, for one client; `default` is every task's."""

    def __init__(self, shared: SharedCounts, metrics: Metrics, default: Budget) -> None:
        self._shared = shared
        self._metrics = metrics
        self._default = default
        self._tasks: dict[tuple[str, str], TaskPurse] = {}
        self._paid: dict[str, tuple[tuple[Purse, ...], TaskPurse | None, Chunks | None]] = {}
        self._forgetting: set[asyncio.Task[None]] = set()

    async def pay(self, call: Call, payer: Call) -> None:
        """Take a call out of every budget that it belongs to. Raises `Outlived` where one is spent."""
        purses = () if payer.around.round is None else payer.around.round.purses
        taken: list[Purse] = []
        try:
            for purse in purses:
                spent = purse.take(call.capability, monotonic())
                if spent is not None:
                    raise self._refused(call, "this round", spent)
                taken.append(purse)
            task, chunks = await self._pay_task(call, payer)
        except BaseException:
            for purse in taken:
                purse.give_back(call.capability)
            raise
        if taken or task is not None:
            self._paid[call.reach_id] = tuple(taken), task, chunks

    def leave(self, call: Call) -> None:
        """Charge what a call has cost, and put it back where it is known not to have been done."""
        paid = self._paid.pop(call.reach_id, None)
        if paid is None:
            return
        purses, task, chunks = paid
        undone = call.executed is Executed.NO
        for purse in purses:
            purse.charge(call.cost)
            if undone:
                purse.give_back(call.capability)
        if task is not None:
            task.charge(call.cost)
            if undone:
                task.give_back(chunks)
            self._leave_task(task)

    async def close(self) -> None:
        """Give back what is held of tasks."""
        tasks, self._tasks = list(self._tasks.values()), {}
        await asyncio.gather(*(task.close() for task in tasks), *self._forgetting)

    async def _pay_task(self, call: Call, payer: Call) -> tuple[TaskPurse | None, Chunks | None]:
        task_id = payer.envelope.task_id
        if task_id is None or not self._default.is_bound:
            return None, None
        task = self._task(payer.envelope.tenant or DEFAULT_TENANT, task_id)
        task.inside += 1
        try:
            chunks = await task.take()
        except SpentError as error:
            self._leave_task(task)
            raise self._refused(call, f"task {task_id}", error.spent) from None
        except BaseException:
            self._leave_task(task)
            raise
        if chunks is task.own:
            call.local_share = True
        return task, chunks

    def _leave_task(self, task: TaskPurse) -> None:
        task.inside -= 1
        if not task.inside:
            task.rest()

    def _task(self, tenant: str, task_id: str) -> TaskPurse:
        key = tenant, task_id
        task = self._tasks.pop(key, None)
        if task is None:
            if len(self._tasks) >= MAX_TASKS:
                self._forget(next((one for one in self._tasks if not self._tasks[one].inside), None))
            task = TaskPurse(self._default, subjects.count_task(token(tenant), token(task_id)), self._shared)
        self._tasks[key] = task  # The one that called last is the last one.
        return task

    def _forget(self, key: tuple[str, str] | None) -> None:
        if key is not None:
            closing = asyncio.get_running_loop().create_task(self._tasks.pop(key).close())
            self._forgetting.add(closing)
            closing.add_done_callback(self._forgetting.discard)

    def _refused(self, call: Call, owner: str, spent: Spent) -> Outlived:
        self._metrics.budget_refused.add(call.capability, spent.what.partition(" ")[0])
        left = spent.left.to_map()
        return Outlived(
            Failure.of(
                Reason.BUDGET_EXHAUSTED,
                f"the budget of {owner} is spent ({spent.what}: {spent.used:g} of {spent.allowed:g}); "
                "finish with what you have",
                limit={
                    "name": f"budget: {spent.what}",
                    "owner": owner,
                    "used": spent.used,
                    "allowed": spent.allowed,
                    "left": left,
                },
            )
        )
