"""`localllm doctor`: what this machine has, what is missing, and how to get it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import click

GET_GPU = "pip install 'localllm[gpu]'"
OPTIONAL = {  # distribution -> (what it is for, how to get it)
    "torch": ("only for running on a GPU", GET_GPU),
    "triton": ("only for running on a GPU, on Linux", GET_GPU),
    "matplotlib": ("only for charts: profile --picture, bench --plot", "pip install 'localllm[plot]'"),
}
TRITON = ">=3.6,<3.10"  # docs/gpu.md says which of these versions were measured and whose kernels were looked at
GET_DRIVER = "a card of NVIDIA's needs its driver, from the system's packages or nvidia.com/drivers; no CUDA toolkit"


def collect(measure: bool) -> dict[str, Any]:
    """Every fact that the command prints; `measure` also times the memory (about a second)."""
    from localllm import __version__, benchmark
    from localllm.hardware import detect
    from localllm.kernels.cpu.compile import cache_directory
    from localllm.kernels.cpu.isa import choose_isa

    found = detect()
    facts: dict[str, Any] = {
        "localllm": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": found.processor,
        "cores": found.cores,
        "instruction_set": choose_isa().name,
        "memory_total_bytes": found.total_bytes,
        "memory_available_bytes": found.available_bytes,
        "gpus": [{"name": c.name, "total_bytes": c.total_bytes, "free_bytes": c.free_bytes} for c in found.cards],
        "gpu_note": found.gpu_note,
        "kernel_cache": _contents(cache_directory() / "kernels"),
        "gpu_kernel_cache": _contents(triton_cache()),
        "folders": {name: _state(path) for name, path in _folders().items()},
        "settings_error": _settings_error(),
        "packages": {name: _version(name) for name in ("numpy", "numba", "llvmlite", *OPTIONAL)},
    }
    if measure:
        facts["memory_bandwidth"] = {
            str(threads): benchmark.measure_memory_bandwidth(threads) for threads in sorted({1, found.cores})
        }
    return facts


def triton_cache() -> Path:
    """Where Triton keeps compiled GPU kernels: TRITON_CACHE_DIR, or its own folder in the home directory."""
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    return Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")


def _contents(folder: Path) -> dict[str, Any]:
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    return {"path": str(folder), "files": len(files), "bytes": sum(path.stat().st_size for path in files)}


def _folders() -> dict[str, Path]:
    from localllm.paths import Paths

    paths = Paths.from_environment()
    return {"settings": paths.config, "models": paths.models, "cache": paths.cache}


def _state(folder: Path) -> dict[str, Any]:
    """Whether files can be made there, and how many bytes are free."""
    from localllm.store.disk import free_bytes

    existing = next(path for path in (folder, *folder.parents) if path.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    return {"path": str(folder), "writable": writable, "free_bytes": free_bytes(folder)}


def _settings_error() -> str | None:
    """What is wrong with the settings, or None."""
    from localllm.errors import ConfigurationError
    from localllm.settings import Settings

    try:
        Settings.load()
    except ConfigurationError as error:
        return str(error)
    return None


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@click.command()
@click.option("--quick", is_flag=True, help="Do not measure the memory bandwidth.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def doctor(quick: bool, as_json: bool) -> None:
    """Look at this machine: processor, memory, GPU, compiled kernels, optional parts and how to get them."""
    facts = collect(not quick)
    if as_json:
        click.echo(json.dumps(facts))
        return
    gib = 2**30
    click.echo(f"localllm {facts['localllm']}, Python {facts['python']}, {facts['system']}")
    click.echo(f"processor   {facts['processor']}: {facts['cores']} cores, {facts['instruction_set']} kernels")
    total, available = facts["memory_total_bytes"] / gib, facts["memory_available_bytes"] / gib
    click.echo(f"memory      {available:.1f} of {total:.1f} GiB available")
    for threads, rate in facts.get("memory_bandwidth", {}).items():
        click.echo(f"            {rate / 1e9:.1f} GB/s read by {threads} thread{'s' if threads != '1' else ''}")
    for gpu in facts["gpus"]:
        click.echo(
            f"GPU         {gpu['name']}: {gpu['free_bytes'] / gib:.1f} of {gpu['total_bytes'] / gib:.1f} GiB free"
        )
    if not facts["gpus"]:
        click.echo(f"GPU         none: {facts['gpu_note']} ({GET_DRIVER})")
    cache = facts["kernel_cache"]
    click.echo(f"kernels     {cache['files']} compiled files, {cache['bytes'] / 2**20:.1f} MiB in {cache['path']}")
    cache = facts["gpu_kernel_cache"]
    if facts["packages"]["triton"]:
        click.echo(f"GPU kernels {cache['files']} compiled files, {cache['bytes'] / 2**20:.1f} MiB in {cache['path']}")
    for name, folder in facts["folders"].items():
        remedy = "" if folder["writable"] else "; CANNOT BE WRITTEN: set LOCALLLM_HOME to a folder that can"
        click.echo(f"{name:<12}{folder['path']}, {folder['free_bytes'] / gib:.1f} GiB free{remedy}")
    if facts["settings_error"]:
        click.echo(f"            {facts['settings_error']}")
    for name, (purpose, remedy) in OPTIONAL.items():
        version = facts["packages"][name]
        note = f"; kernels may be slow, they were tried with Triton {TRITON}: {remedy}"
        shown = version or f"not installed ({purpose}): {remedy}"
        click.echo(f"{name:<12}{shown}{note if name == 'triton' and version and not tried(version) else ''}")


def tried(version: str) -> bool:
    """Whether a version of Triton is one of TRITON."""
    least, below = (tuple(map(int, part.lstrip("<>=").split("."))) for part in TRITON.split(","))
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return least <= numbers < below
