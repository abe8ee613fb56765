"""Runs the fixtures of every architecture and writes, or checks, the tables in docs/architectures.md.

    python tests/tools/architecture_table.py [--check] [--devices reference,cpu,cuda]

A device that is not run keeps what the document says of it; so do the golden files where LOCALLLM_FIXTURES is not set.
`--check` writes nothing and fails when a table differs. The cuda column is about the GPU's kernels: where there is no
card they run through Triton's interpreter.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2]))

from localllm.gguf_io import open_gguf
from localllm.kernels.executor import Device, Executor, ExecutorOptions
from localllm.kernels.spec import ModelSpec
from localllm.models import ARCHITECTURES, load_spec

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "architectures.md"
FOLDER = ROOT / "tests" / "data" / "models"
DEVICES: tuple[Device, ...] = ("reference", "cpu", "cuda")
BEGIN, END = "<!-- table: tests/tools/architecture_table.py -->\n", "<!-- end of table -->\n"
COLUMNS = "reference | cpu | gpu (interpreter)"
HEADER = f"| architecture | models | fixtures | {COLUMNS} |\n| --- | --- | --- | --- | --- | --- |\n"
GOLDEN_BEGIN, GOLDEN_END = "<!-- golden files -->\n", "<!-- end of golden files -->\n"
GOLDEN_HEADER = f"| folder | {COLUMNS} |\n| --- | --- | --- | --- |\n"
GOLDEN = {"golden/arch": 5e-4, "golden/quant": 1e-3}  # and how far the reference may be from the exact logits


def main() -> None:
    """Write or check the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--devices", default="reference")
    arguments = parser.parse_args()
    asked = arguments.devices.split(",")
    devices = [device for device in DEVICES if device in asked]
    if len(devices) != len(asked):
        parser.error(f"--devices takes some of {','.join(DEVICES)}")
    use_interpreter_without_card(devices)
    document = DOCUMENT.read_text(encoding="utf-8")
    fresh = replace_table(document, BEGIN, END, devices, make_table)
    shared = os.environ.get("LOCALLLM_FIXTURES")
    if shared:
        folder = Path(shared)
        fresh = replace_table(
            fresh, GOLDEN_BEGIN, GOLDEN_END, devices, lambda devices, old: make_golden_table(devices, old, folder)
        )
    if not arguments.check:
        DOCUMENT.write_text(fresh, encoding="utf-8")
    elif fresh != document:
        known = set(document.splitlines())
        sys.exit(
            "docs/architectures.md is out of date:\n"
            + "\n".join(line for line in fresh.splitlines() if line not in known)
        )


def use_interpreter_without_card(devices: list[Device]) -> None:
    """Have Triton's kernels interpreted where no card can run them; this must be said before they are imported."""
    if "cuda" in devices and find_spec("torch") is not None:
        import torch

        if not torch.cuda.is_available():
            os.environ["TRITON_INTERPRET"] = "1"


def replace_table(
    document: str, begin: str, end: str, devices: list[Device], make: Callable[[list[Device], str], str]
) -> str:
    """The document with the table between two marks made anew."""
    before, _, rest = document.partition(begin)
    old, _, after = rest.partition(end)
    return before + begin + make(devices, old) + end + after


def make_table(devices: list[Device], old: str) -> str:
    """All rows; columns of devices that are not run come from `old`."""
    known = {row.split("|")[1].strip(): row.split("|")[4:7] for row in old.splitlines() if row.startswith("| `")}
    rows = []
    for architecture, fixtures in fixtures_by_architecture().items():
        cells = fill_cells(known.get(f"`{architecture}`"), devices, fixtures, 1e-4)
        names = ", ".join(path.stem for path in fixtures)
        rows.append(f"| `{architecture}` | {title_of(architecture)} | {names} | {' | '.join(cells)} |\n")
    return HEADER + "".join(rows)


def make_golden_table(devices: list[Device], old: str, shared: Path) -> str:
    """A row for each folder of golden models."""
    known = {row.split("|")[1].strip(): row.split("|")[2:5] for row in old.splitlines() if row.startswith("| `")}
    rows = []
    for name, tolerance in GOLDEN.items():
        cells = fill_cells(known.get(f"`{name}`"), devices, sorted((shared / name).glob("*.gguf")), tolerance)
        rows.append(f"| `{name}` | {' | '.join(cells)} |\n")
    return GOLDEN_HEADER + "".join(rows)


def fill_cells(known: list[str] | None, devices: list[Device], fixtures: list[Path], tolerance: float) -> list[str]:
    """How many fixtures are right, for each device; what is wrong goes to stderr."""
    cells = [cell.strip() for cell in known or ["", "", ""]]
    for device in devices:
        wrong = [path for path in fixtures if not is_right(path, device, tolerance)]
        for path in wrong:
            print(f"{path.parent.name}/{path.stem} is wrong on {device}", file=sys.stderr)
        cells[DEVICES.index(device)] = f"{len(fixtures) - len(wrong)} of {len(fixtures)}"
    return cells


def fixtures_by_architecture() -> dict[str, list[Path]]:
    """The model files of the repository."""
    found: dict[str, list[Path]] = {architecture: [] for architecture in ARCHITECTURES}
    for path in sorted(FOLDER.glob("*.gguf")):
        with open_gguf(path) as file:
            found[file.metadata.string("general.architecture")].append(path)
    return found


def title_of(architecture: str) -> str:
    """What the architecture's file says of itself, without importing it."""
    source = (ROOT / "localllm" / "models" / f"{architecture.replace('-', '_')}.py").read_text(encoding="utf-8")
    lines = (ast.get_docstring(ast.parse(source)) or "").splitlines()
    return lines[0].split(" https://")[0].rstrip(".:")


def is_right(path: Path, device: Device, tolerance: float) -> bool:
    """Whether the device's logits are the fixture's: the reference's to `tolerance`, others' to activation rounding."""
    from localllm.kernels.single_sequence import logits_of

    with np.load(path.with_suffix(".npz")) as data:
        tokens, expected = data["tokens"], data["logits" if "logits" in data else "logits_exact"]
    executor = open_device(load_spec(open_gguf(path)), device)
    try:
        error = logits_of(executor, tokens) - expected
    finally:
        executor.close()
    if device == "reference":
        return bool(np.abs(error).max() < tolerance)
    spread = np.sqrt((error**2).mean(axis=1)) / expected.std()  # of each row: a near-tie of two experts may flip one
    return bool(np.median(spread) < 0.05)


def open_device(spec: ModelSpec, device: Device) -> Executor:
    """The executor of a device name."""
    if device == "reference":
        from localllm.kernels.reference import ReferenceExecutor

        return ReferenceExecutor(spec)
    from localllm.kernels.registry import open_executor

    return open_executor(spec, device, ExecutorOptions(max_rows=64))


if __name__ == "__main__":
    main()
