"""From `module:agent` to an agent, with errors that know what was meant.

The current folder is looked in first, as `python -m` does. A module that cannot be found is told apart from one
that fails while it is imported; a name that is not there, or is something else, is answered with the agents
that the module does hold.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from reach.cli.exits import Exit, Refusal, usage


def add_current_folder(folder: Path) -> None:
    """Let imports find what stands in `folder`, before everything else."""
    text = str(folder)
    if text not in sys.path:
        sys.path.insert(0, text)


def find(target: str, *, kind: type, folder: Path) -> Any:
    """Import `module:name` (`name` may be left out where the module holds one agent only).

    Args:
        target: What was typed; `folder/module.py:name` is understood too.
        kind: What it must be an instance of.
        folder: The current folder, for messages.

    Raises:
        Refusal: with exit code 2 for a name that is not there, 4 for a module that fails.
    """
    module_name, _, attribute = target.partition(":")
    module = _load(_dotted(module_name), typed=module_name, folder=folder)
    found = agents_in(module, kind=kind)
    if not attribute:
        return _only(found, module_name)
    value: Any = module
    for part in attribute.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            message = f"{module_name} has no {attribute!r}."
            raise usage(message, fix=_instead(module_name, attribute, found)) from None
    if not isinstance(value, kind):
        message = f"{module_name}:{attribute} is not an agent but {_kind_of(value)}."
        raise usage(message, fix=_instead(module_name, attribute, found))
    return value


def agents_in(module: ModuleType, *, kind: type) -> list[str]:
    """Name the module-level agents of a module."""
    return [name for name, value in vars(module).items() if isinstance(value, kind)]


def _dotted(name: str) -> str:
    if name.endswith(".py"):
        return name.removesuffix(".py").removeprefix("./").replace("/", ".")
    return name


def _load(name: str, *, typed: str, folder: Path) -> ModuleType:
    if not name or any(not part.isidentifier() for part in name.split(".")):
        raise usage(
            f"{typed!r} is not the name of a module.", fix="Right would be: reach run my_module:agent"
        )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise usage(
                f"There is no module {name!r} in {folder} or installed.", fix=_near(name, folder)
            ) from None
        message = f"{name} cannot be imported: it needs {error.name!r}, which is not installed."
        raise Refusal(Exit.SETUP, message, fix=f"It is imported at {_place(error)}.") from None
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything; it is told, not handled
        message = f"{name} cannot be imported: {type(error).__name__}: {error}"
        raise Refusal(Exit.SETUP, message, fix=f"It fails at {_place(error)}.") from None


def _place(error: BaseException) -> str:
    """Where in the user's code it failed: the last frame that is not the import machinery's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "an unknown place"


def _near(name: str, folder: Path) -> str:
    modules = [path.stem for path in folder.glob("*.py")]
    modules += [path.parent.name for path in folder.glob("*/__init__.py")]
    near = difflib.get_close_matches(name.split(".", maxsplit=1)[0], modules, n=3)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return (
        f"Modules there: {', '.join(sorted(modules)[:10])}."
        if modules
        else "There are no modules in that folder."
    )


def _only(found: list[str], module_name: str) -> Any:
    module = sys.modules[_dotted(module_name)]
    if len(found) == 1:
        return getattr(module, found[0])
    if not found:
        raise usage(
            f"{module_name} holds no agent.",
            fix='Make one at the top level of the module: agent = reach.Agent("my-agent")',
        )
    raise usage(f"{module_name} holds several agents.", fix=f"Say which: {_all(module_name, found)}")


def _instead(module_name: str, attribute: str, found: list[str]) -> str:
    if not found:
        return 'The module holds no agent. Make one at its top level: agent = reach.Agent("my-agent")'
    near = difflib.get_close_matches(attribute, found, n=1)
    if near:
        return f"Did you mean {module_name}:{near[0]}?"
    return f"Agents there: {_all(module_name, found)}"


def _all(module_name: str, found: list[str]) -> str:
    return " ".join(f"{module_name}:{name}" for name in found)


def _kind_of(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"a {type(value).__name__}"
