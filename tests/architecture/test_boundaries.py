"""Who may touch what: the boundaries that import-linter's contracts (pyproject.toml) cannot express.

The floors themselves are checked by `lint-imports`, which `make check` runs.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INTERNALS = ROOT / "reach/bus/internals.py"
OWN = {"self", "cls"}


def files_of(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def place(path: Path, node: ast.expr | ast.stmt) -> str:
    return f"{path.relative_to(ROOT).as_posix()}:{node.lineno}"


def imported_modules(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Every absolute import as (statement, dotted module), wherever it stands in the file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node, node.module


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def own_private_names(tree: ast.Module) -> set[str]:
    """Private names that a file itself creates: functions, methods, fields, assignments, slots."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store())
            ):
                names.add(name)
            case ast.Constant(value=str(name)):  # __slots__
                names.add(name)
            case _:
                pass
    return names


def private_reaches(tree: ast.Module) -> Iterator[tuple[ast.expr, str, bool]]:
    """Every use of a private attribute as (node, name, whether it is on `self` or `cls`)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "os._exit":
            continue  # Documented, whatever its name says.
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node, node.attr, isinstance(node.value, ast.Name) and node.value.id in OWN
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"getattr", "setattr", "hasattr", "delattr"}
            and len(node.args) > 1
            and isinstance(node.args[1], ast.Constant)
            and is_private(str(node.args[1].value))
        ):
            yield node, str(node.args[1].value), False


def test_only_internals_touches_private_parts_of_nats() -> None:
    """What nats-py keeps private is used in reach/bus/internals.py alone, where its version is pinned.

    So elsewhere a private attribute is one that the same file creates or, on `self`, a file of ours.
    """
    trees = {path: tree_of(path) for path in files_of("reach", "actors")}
    ours = set[str]().union(*(own_private_names(tree) for tree in trees.values()))
    foreign = [
        f"{place(path, node)} {name}"
        for path, tree in trees.items()
        if path != INTERNALS
        for node, name, on_self in private_reaches(tree)
        if name not in (ours if on_self else own_private_names(tree) - {""})
    ]
    assert [] == foreign


def test_only_internals_imports_private_modules_of_nats() -> None:
    """No other file imports a module or a name of nats-py that starts with an underscore."""
    found = [
        place(path, node)
        for path in files_of("reach", "actors")
        if path != INTERNALS
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").split(".")[0] == "nats"
        and any(is_private(part) for part in [*(node.module or "").split("."), *(a.name for a in node.names)])
    ]
    assert [] == found


def imports_front_door(node: ast.AST) -> bool:
    """`import reach`, or `from reach import name` where name is no file or room of reach."""
    if isinstance(node, ast.Import):
        return any(alias.name == "reach" for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module == "reach":
        rooms = {path.stem for path in (ROOT / "reach").iterdir()}
        return not all(alias.name in rooms for alias in node.names)
    return False


def test_reach_never_imports_its_own_front_door() -> None:
    """Inside reach the concrete module is imported, never a public name of `reach`, which comes last."""
    assert [] == [
        place(path, node)
        for path in files_of("reach")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.stmt) and imports_front_door(node)
    ]


def test_examples_use_the_front_door_only() -> None:
    """An example imports `reach` and its neighbours, never a room of reach or an actor: users copy it.

    The demo is a show, not an example: it looks behind the scenes to know which instance holds how many calls.
    """
    assert [] == [
        f"{place(path, node)} {module}"
        for path in files_of("examples")
        if "demo" not in path.parts
        for node, module in imported_modules(tree_of(path))
        if module.startswith(("reach.", "actors", "tests", "bench"))
    ]
