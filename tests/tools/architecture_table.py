"""Runs the fixtures of every architecture and writes, or checks, the table in docs/architectures.md.

    python tests/tools/architecture_table.py [--check] [--devices reference,cpu,cuda]

A device that is not run keeps what the document says of it. `--check` writes nothing and fails when the table differs.
The cuda column is about the GPU's kernels: without a GPU they run with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2]))

from localllm.gguf_io import open_gguf
from localllm.kernels.executor import Device, Executor, ExecutorOptions
from localllm.kernels.spec import ModelSpec
from localllm.models import ARCHITECTURES, load_spec

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "architectures.md"
FOLDER = ROOT / "tests" / "data" / "models"
DEVICES: tuple[Device, ...] = ("reference", "cpu", "cuda")
BEGIN, END = "<!-- table: tests/tools/architecture_table.py -->\n", "<!-- end of table -->\n"
HEADER = "| architecture | models | fixtures | reference | cpu | gpu |\n| --- | --- | --- | --- | --- | --- |\n"


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
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    old, _, after = rest.partition(END)
    table = make_table(devices, old)
    if not arguments.check:
        DOCUMENT.write_text(before + BEGIN + table + END + after, encoding="utf-8")
    elif table != old:
        fresh, known = table.splitlines(), set(old.splitlines())
        sys.exit("docs/architectures.md is out of date:\n" + "\n".join(line for line in fresh if line not in known))


def make_table(devices: list[Device], old: str) -> str:
    """All rows; columns of devices that are not run come from `old`."""
    known = {row.split("|")[1].strip(): row.split("|")[4:7] for row in old.splitlines() if row.startswith("| `")}
    rows = []
    for architecture, fixtures in fixtures_by_architecture().items():
        cells = [cell.strip() for cell in known.get(f"`{architecture}`", ["", "", ""])]
        for device in devices:
            right = sum(is_right(path, device) for path in fixtures)
            cells[DEVICES.index(device)] = f"{right} of {len(fixtures)}"
        names = ", ".join(path.stem for path in fixtures)
        rows.append(f"| `{architecture}` | {title_of(architecture)} | {names} | {' | '.join(cells)} |\n")
    return HEADER + "".join(rows)


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


def is_right(path: Path, device: Device) -> bool:
    """Whether the device's logits are the fixture's: to 1e-4, or to the rounding of its activations."""
    from localllm.kernels.single_sequence import logits_of

    with np.load(path.with_suffix(".npz")) as data:
        tokens, expected = data["tokens"], data["logits"]
    executor = open_device(load_spec(open_gguf(path)), device)
    try:
        error = logits_of(executor, tokens) - expected
    finally:
        executor.close()
    if device == "reference":
        return bool(np.abs(error).max() < 1e-4)
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
