"""Moleculer, the microservice framework for Node that can speak over NATS: how it gets here and is started.

It is no dependency of this project: its packages are installed once into a folder beside the virtual
environment's own files (so that `make clean` removes them), without a lock file, and only where node and npm
are. Moleculer publishes to subjects of its own, which our roles may not: it logs in as *platform*, whom the
broker does not check.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from reach.bus.keys import Role
from reach.bus.settings import Settings

PACKAGES = ("moleculer", "nats@2")
ROLE = Role.PLATFORM

_INSTALL_TIMEOUT_S = 180.0


class NotHere(Exception):
    """Moleculer cannot be measured on this machine; the message says why."""


def install() -> Path:
    """Give the folder of the installed packages, installing them the first time. Raises `NotHere`."""
    folder = Path(sys.prefix) / "bench-node"
    modules = folder / "node_modules"
    if shutil.which("node") is None:
        raise NotHere("node is not on PATH")
    if all((modules / package.partition("@")[0] / "package.json").is_file() for package in PACKAGES):
        return modules
    npm = shutil.which("npm")
    if npm is None:
        raise NotHere("npm is not on PATH")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true}\n', "utf-8")
    command = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error", *PACKAGES]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotHere(f"npm did not install it within {_INSTALL_TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise NotHere(f"npm could not install it: {''.join(last)}")
    return modules


def command(side: str, settings: Settings) -> list[str]:
    """Give the command of one side. Raises `NotHere` where there is no node."""
    node = shutil.which("node")
    seed_file = settings.credentials.nkey_file
    if node is None or seed_file is None:
        raise NotHere("node is not on PATH")
    return [node, str(Path(__file__).with_name("peer.js")), side, settings.servers[0], str(seed_file)]


def environment(modules: Path) -> dict[str, str]:
    """Give the environment in which node finds the packages."""
    return {**os.environ, "NODE_PATH": str(modules), "NODE_ENV": "production"}
