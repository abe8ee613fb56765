"""Whether models fit: by their parts where the file is here, by size where it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from localllm.chat.fitting import Fitting, fit_of_parts, fit_of_size
from localllm.chat.models import LocalModels
from localllm.gguf_io import open_gguf
from localllm.hardware import GraphicsCard, Hardware
from localllm.models import load_spec
from localllm.paths import Paths
from localllm.placement import Machine, ModelParts, parts_of
from localllm.placement.remembered import supposed_machine
from localllm.store import Store

GB = 10**9
MACHINE = Machine(cpu_bandwidth=2e10, cpu_multiplications=1e11, cpu_bytes=8 * GB, launch=0.0)


def hardware(available: int = 8 * GB, card: int = 0) -> Hardware:
    cards = (GraphicsCard("a card", card, card, (8, 9)),) if card else ()
    return Hardware("a processor", 4, 16 * GB, available, cards, "" if card else "no NVIDIA driver was found")


@pytest.fixture(scope="module")
def parts(data_folder: Path) -> ModelParts:
    with open_gguf(data_folder / "models" / "llama_relu.gguf") as file:
        return parts_of(load_spec(file), context=128)


def test_by_parts(parts: ModelParts) -> None:
    size = parts.nbytes
    answer, note = fit_of_parts(parts, MACHINE, hardware())
    assert answer == "yes"
    assert "on the CPU, with 128 tokens of context, about" in note
    assert "tok/s" not in fit_of_parts(parts, replace(MACHINE, measured=False), hardware())[1]
    answer, note = fit_of_parts(parts, replace(MACHINE, gpu_bytes=8 * GB), hardware(card=8 * GB))
    assert (answer, note.split(",")[0]) == ("yes", "on the GPU")
    assert fit_of_parts(parts, replace(MACHINE, cpu_bytes=size // 2), hardware())[0] == "partly"
    small = replace(hardware(), total_bytes=size // 2)
    answer, note = fit_of_parts(parts, replace(MACHINE, cpu_bytes=size // 2), small)
    assert answer == "no"
    assert "this machine has" in note


def test_a_part_on_the_gpu(parts: ModelParts) -> None:
    workspace = 192 * 2**20 + 128 * 2**20
    cards = [workspace + parts.nbytes * tenth // 10 for tenth in range(1, 10)]
    answers = [fit_of_parts(parts, replace(MACHINE, gpu_bytes=card), hardware(card=card)) for card in cards]
    assert {answer for answer, _ in answers} == {"partly"}
    assert any("on the GPU, the rest on the CPU" in note for _, note in answers)


@pytest.mark.parametrize(
    ("size", "available", "card", "expected"),
    [
        (None, 8, 0, "unknown"),
        (4, 8, 0, "yes"),
        (10, 8, 0, "partly"),
        (20, 8, 0, "no"),
        (4, 8, 6, "yes"),
        (10, 8, 6, "partly"),
        (40, 8, 6, "no"),
    ],
)
def test_by_size(size: int | None, available: int, card: int, expected: str) -> None:
    fit = fit_of_size(None if size is None else size * GB, hardware(available * GB, card * GB))
    assert fit[0] == expected


def test_files_are_looked_at_once_and_broken_ones_by_size(data_folder: Path, tmp_path: Path) -> None:
    fitting = Fitting(hardware(), MACHINE, 64)
    path = str(data_folder / "models" / "llama_relu.gguf")
    seen: dict[str, tuple[tuple[int, int], ModelParts]] = {}
    assert "with 64 tokens" in fitting.of_file(path, 1000, seen)[1]
    first = seen[path][1]
    fitting.of_file(path, 1000, seen)
    assert seen[path][1] is first
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    assert fitting.of_file(str(broken), 1000, seen) == ("yes", "in memory, on the CPU")
    assert fitting.of_file(str(tmp_path / "missing.gguf"), 1000, seen)[0] == "yes"


def test_an_unknown_machine_is_supposed_and_says_nothing_of_speed(tmp_path: Path) -> None:
    machine = supposed_machine(hardware(card=GB), tmp_path)
    assert not machine.measured
    assert (machine.cpu_bytes, machine.gpu_bytes) == (8 * GB, GB)
    (tmp_path / "machine.json").write_text('{"products on a processor, 4 cores": 3e10}')
    assert supposed_machine(hardware(), tmp_path).measured


def test_the_choices_of_an_empty_store_are_the_catalogue(tmp_path: Path) -> None:
    store = Store(Paths.from_environment({"LOCALLLM_HOME": str(tmp_path)}))
    choices = LocalModels(store, {}).choices()
    assert choices
    assert not any(choice.here for choice in choices if choice.name == "smollm2:135m")
