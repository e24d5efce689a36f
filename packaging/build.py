"""Builds the archives of a release from the programs of all systems: npm packages, wheels, plain archives, SHA256SUMS.

    python3 packaging/build.py --version 0.1.0 --out dist TARGET=PROGRAM…
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
HERE = Path(__file__).parent
#: Time of all files, so that equal inputs give equal archives.
EPOCH = (2026, 1, 1, 0, 0, 0)
EPOCH_SECONDS = 1_767_225_600


class System(NamedTuple):
    npm: str
    os: str
    cpu: str
    #: Tag of the wheel.
    wheel: str
    program: str = "turnwheel"


SYSTEMS = {
    "x86_64-unknown-linux-gnu": System("linux-x64", "linux", "x64", "manylinux_2_17_x86_64.manylinux2014_x86_64"),
    "aarch64-unknown-linux-gnu": System("linux-arm64", "linux", "arm64", "manylinux_2_17_aarch64.manylinux2014_aarch64"),
    "x86_64-apple-darwin": System("darwin-x64", "darwin", "x64", "macosx_11_0_x86_64"),
    "aarch64-apple-darwin": System("darwin-arm64", "darwin", "arm64", "macosx_11_0_arm64"),
    "x86_64-pc-windows-msvc": System("win32-x64", "win32", "x64", "win_amd64", "turnwheel.exe"),
}
SUMMARY = "Durable runtime for AI agents on Azure Functions"
ADDRESS = "https://github.com/turnwheel/turnwheel"


class File(NamedTuple):
    path: str
    content: bytes
    is_program: bool = False


def write_tar(path: Path, files: list[File], level: int) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=level) as archive:
        for file in files:
            info = tarfile.TarInfo(file.path)
            info.size, info.mtime = len(file.content), EPOCH_SECONDS
            info.mode = 0o755 if file.is_program else 0o644
            archive.addfile(info, io.BytesIO(file.content))
    path.write_bytes(buffer.getvalue())


def write_zip(path: Path, files: list[File], level: int) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        for file in files:
            info = zipfile.ZipInfo(file.path, EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3
            info.external_attr = (0o100755 if file.is_program else 0o100644) << 16
            archive.writestr(info, file.content, compresslevel=level)


def npm_packages(out: Path, version: str, programs: dict[str, bytes], level: int) -> None:
    common = {"version": version, "license": "MIT", "homepage": ADDRESS, "repository": {"type": "git", "url": f"git+{ADDRESS}.git"}}
    license_file = File("package/LICENSE", (ROOT / "LICENSE").read_bytes())
    for target, program in programs.items():
        system = SYSTEMS[target]
        manifest = {
            "name": f"@turnwheel/{system.npm}",
            "description": f"The program turnwheel for {target}",
            **common,
            "os": [system.os],
            "cpu": [system.cpu],
            **({"libc": ["glibc"]} if system.os == "linux" else {}),
            "preferUnplugged": True,
        }
        files = [
            File("package/package.json", dump(manifest)),
            license_file,
            File(f"package/bin/{system.program}", program, is_program=True),
        ]
        write_tar(out / f"turnwheel-{system.npm}-{version}.tgz", files, level)
    manifest = {
        "name": "turnwheel",
        "description": SUMMARY,
        **common,
        "type": "module",
        "engines": {"node": ">=20"},
        "bin": {"turnwheel": "turnwheel.mjs"},
        "optionalDependencies": {f"@turnwheel/{system.npm}": version for system in SYSTEMS.values()},
    }
    files = [
        File("package/package.json", dump(manifest)),
        license_file,
        File("package/README.md", (HERE / "README.md").read_bytes()),
        File("package/turnwheel.mjs", (HERE / "npm/turnwheel.mjs").read_bytes(), is_program=True),
        File("package/program.mjs", (HERE / "npm/program.mjs").read_bytes()),
    ]
    write_tar(out / f"turnwheel-{version}.tgz", files, level)


def wheels(out: Path, version: str, programs: dict[str, bytes], level: int) -> None:
    info = f"turnwheel-{version}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: turnwheel\nVersion: {version}\nSummary: {SUMMARY}\nHome-page: {ADDRESS}\nLicense: MIT\n"
        f"Requires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n{(HERE / 'README.md').read_text()}"
    )
    for target, program in programs.items():
        system = SYSTEMS[target]
        tags = "".join(f"Tag: py3-none-{tag}\n" for tag in system.wheel.split("."))
        wheel = f"Wheel-Version: 1.0\nGenerator: turnwheel\nRoot-Is-Purelib: false\n{tags}"
        files = [
            File("turnwheel/__init__.py", (HERE / "python/turnwheel/__init__.py").read_bytes()),
            File("turnwheel/__main__.py", (HERE / "python/turnwheel/__main__.py").read_bytes()),
            File(f"turnwheel/bin/{system.program}", program, is_program=True),
            File(f"{info}/METADATA", metadata.encode()),
            File(f"{info}/WHEEL", wheel.encode()),
            File(f"{info}/entry_points.txt", b"[console_scripts]\nturnwheel = turnwheel:main\n"),
            File(f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes()),
        ]
        record = "".join(f"{file.path},sha256={wheel_hash(file.content)},{len(file.content)}\n" for file in files)
        files.append(File(f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode()))
        write_zip(out / f"turnwheel-{version}-py3-none-{system.wheel}.whl", files, level)


def plain_archives(out: Path, version: str, programs: dict[str, bytes], level: int) -> None:
    for target, program in programs.items():
        name = f"turnwheel-{version}-{target}"
        files = [
            File(f"{name}/LICENSE", (ROOT / "LICENSE").read_bytes()),
            File(f"{name}/{SYSTEMS[target].program}", program, is_program=True),
        ]
        if SYSTEMS[target].os == "win32":
            write_zip(out / f"{name}.zip", files, level)
        else:
            write_tar(out / f"{name}.tar.gz", files, level)


def dump(value: object) -> bytes:
    return json.dumps(value, indent=2).encode() + b"\n"


def wheel_hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--level", type=int, default=6, help="level of the compression")
    parser.add_argument("programs", nargs="+", metavar="TARGET=PROGRAM")
    arguments = parser.parse_args()
    programs = {}
    for text in arguments.programs:
        target, _, path = text.partition("=")
        if target not in SYSTEMS or not path:
            parser.error(f"{text}: write TARGET=PROGRAM with a target of {', '.join(SYSTEMS)}")
        programs[target] = Path(path).read_bytes()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for build in (npm_packages, wheels, plain_archives):
        build(arguments.out, arguments.version, programs, arguments.level)
    files = sorted(path for path in arguments.out.iterdir() if path.name != "SHA256SUMS")
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (arguments.out / "SHA256SUMS").write_text(sums)
    print(sums, end="")


if __name__ == "__main__":
    main()
