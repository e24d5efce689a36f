"""The program `turnwheel` for this system."""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import sys
import urllib.request
import zipfile
from importlib.metadata import version
from pathlib import Path


def find_program() -> Path:
    """The program of this system."""
    return Path(__file__).parent / "bin" / ("turnwheel.exe" if os.name == "nt" else "turnwheel")


def add_linux_program(arguments: list[str], system: str | None = None) -> list[str]:
    """`package` needs the program for Linux: on other systems it is loaded from the index once."""
    system = system or f"{platform.system()}-{platform.machine()}"
    is_given = any(it in ("--help", "-h") or it.split("=")[0] == "--binary" for it in arguments)
    if arguments[:1] != ["package"] or is_given or system == "Linux-x86_64":
        return arguments
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = cache / "turnwheel" / version("turnwheel") / "turnwheel"
    if not program.exists():
        load_linux_program(program)
    return [*arguments, "--binary", str(program)]


def load_linux_program(program: Path) -> None:
    # A file in place of the index.
    source = os.environ.get("TURNWHEEL_LINUX_PACKAGE")
    print("turnwheel: loads the wheel for Linux, the program for Azure", file=sys.stderr)
    wheel = Path(source).read_bytes() if source else load_wheel()
    program.parent.mkdir(parents=True, exist_ok=True)
    staged = program.with_suffix(f".{os.getpid()}")
    staged.write_bytes(zipfile.ZipFile(io.BytesIO(wheel)).read("turnwheel/bin/turnwheel"))
    staged.chmod(0o755)
    staged.replace(program)


def load_wheel() -> bytes:
    """The wheel for Linux of this version; tools such as uvx have no pip."""
    with urllib.request.urlopen(f"https://pypi.org/pypi/turnwheel/{version('turnwheel')}/json") as response:
        files = json.load(response)["urls"]
    file = next(it for it in files if it["filename"].endswith("manylinux2014_x86_64.whl"))
    with urllib.request.urlopen(file["url"]) as response:
        wheel = response.read()
    if hashlib.sha256(wheel).hexdigest() != file["digests"]["sha256"]:
        sys.exit("turnwheel: the wheel for Linux does not have its checksum")
    return wheel


def main() -> None:
    program, arguments = find_program(), add_linux_program(sys.argv[1:])
    if os.name == "nt":
        sys.exit(subprocess.run([program, *arguments], check=False).returncode)
    os.execv(program, [str(program), *arguments])
