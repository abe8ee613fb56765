"""Draws the screens of the docs: `python scripts/screens.py [FOLDER]` writes SVG files made by the app itself."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from app_driver import Stage  # noqa: E402
from scripted_app import PAGE  # noqa: E402
from scripted_chat import ScriptedBackend  # noqa: E402
from scripted_models import ScriptedModels  # noqa: E402

from localllm.chat.backend import ContextState, LayerState, ModelState  # noqa: E402
from localllm.chat.models import LocalModels, ModelChoice  # noqa: E402
from localllm.paths import Paths  # noqa: E402
from localllm.store import Store  # noqa: E402

Scene = Callable[[Stage], Awaitable[None]]


class ShownBackend(ScriptedBackend):
    """A model as a person with a small card would have it."""

    def context(self) -> ContextState:
        """A long chat with a full window."""
        return ContextState(8192, kept=3120, sunk=48, evicted=1536)

    def state(self) -> ModelState:
        """A model that is half on the card."""
        return ModelState(
            "Qwen3 4B (qwen3), 36 layers, CUDA and CPU",
            (("gpu", 1_830_000_000), ("cpu", 667_000_000)),
            (("gpu", 302_000_000),),
            41.5,
            (
                "attention and KV of 36 of 36 layers on the GPU",
                "68% of the feed-forward units on the GPU, the hottest first",
            ),
            tuple(LayerState(11_000_000, 8_400_000, 42_000_000, 19_400_000 + 1_300_000 * (n % 24)) for n in range(36)),
            (("embedding table, on the CPU: one row a token is read", 219_000_000), ("head, on the GPU", 319_000_000)),
        )


class ShownModels(ScriptedModels):
    """The real catalogue; one model is here."""

    def __init__(self, store: Store) -> None:
        super().__init__(*[PAGE[start : start + 5] for start in range(0, len(PAGE), 5)], here=("qwen3:4b",))
        self._catalogue = LocalModels(store, {})
        self.make = lambda name: ShownBackend(*self.pieces, name=name)

    def choices(self) -> list[ModelChoice]:
        """The catalogue, with the model that is here first."""
        found = self._catalogue.choices()
        return [*(choice for choice in found if choice.name == "qwen3:4b"), *(c for c in found if c.name != "qwen3:4b")]


async def chat(s: Stage) -> None:
    """A question and its answer, with Markdown, code, a table and folded thinking."""
    await s.ask("How does quicksort work?")


async def models(s: Stage) -> None:
    """The model picker."""
    await s.press("ctrl+l")


async def chats(s: Stage) -> None:
    """Searching the chats."""
    for question in ("How does quicksort work?", "A packing list for a week in the mountains", "Explain KV caches"):
        await s.ask(question)
        await s.press("ctrl+n")
    await s.press("ctrl+o", *"pivot")


async def plan(s: Stage) -> None:
    """What is where, and why."""
    await s.ask("How does quicksort work?")
    await s.press("f3")


async def nothing(s: Stage) -> None:
    """The first thing that a newcomer sees."""


SCENES: tuple[tuple[str, Scene, tuple[int, int], str], ...] = (
    ("chat", chat, (100, 38), "qwen3:4b"),
    ("models", models, (110, 30), "qwen3:4b"),
    ("chats", chats, (100, 26), "qwen3:4b"),
    ("plan", plan, (100, 30), "qwen3:4b"),
    ("welcome", nothing, (100, 24), "smollm2:135m"),
)


def draw(name: str, scene: Scene, size: tuple[int, int], model: str, folder: Path) -> None:
    """One scene in an app of its own."""
    with tempfile.TemporaryDirectory() as home:
        models = ShownModels(Store(Paths.from_environment({"LOCALLLM_HOME": home})))
        stage = Stage(Path(home), model=model, models=models)

        async def steps(s: Stage) -> None:
            await scene(s)
            await s.pilot.pause(0.3)
            s.app.clear_notifications()
            await s.pilot.pause()
            path = folder / f"{name}.svg"
            path.write_text(s.app.export_screenshot(title="localllm"), encoding="utf-8")
            print(path)

        stage.run(steps, size)


def main() -> None:
    """All scenes."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "screens"
    folder.mkdir(parents=True, exist_ok=True)
    for scene in SCENES:
        draw(*scene, folder)


if __name__ == "__main__":
    main()
