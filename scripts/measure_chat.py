"""How much of a core the chat's screen takes while a long answer streams: 10,000 tokens with a 1,000-line code fence.

Run it on an idle machine: `python scripts/measure_chat.py [TOKENS_PER_SECOND]`. The app runs in a pseudo-terminal of
120 x 40; the model is a script, so what is measured is the app alone: its main thread (the screen), and the process.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import resource
import struct
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support")]

TOKENS = 10_000
FENCE_LINES = 1000


def answer() -> list[str]:
    """About 10,000 tokens of four characters: prose, a list, the fence, prose."""
    prose = "Some **strong** words, `code`, and a sentence that goes on until the line is full enough to wrap.\n\n"
    code = "".join(f"    total_{n} = add(x_{n}, y)  # {n}\n" for n in range(FENCE_LINES))
    listing = "".join(f"{n}. an item of a list\n" for n in range(1, 40))
    text = f"{prose * 20}{listing}\n```python\n{code}```\n\n"
    text += prose * ((4 * TOKENS - len(text)) // len(prose) + 1)
    return [text[start : start + 4] for start in range(0, 4 * TOKENS, 4)]


def child(rate: float, folder: Path, report: Path) -> None:
    """The app, which asks itself a question, and leaves when it is answered."""
    from scripted_chat import ScriptedBackend
    from scripted_models import ScriptedModels

    from localllm.chat.desk import ChatDesk
    from localllm.conversations import ConversationStore
    from localllm.events import Event, Finished, PromptProgress, TextDelta, Timings, Usage
    from localllm.paths import Paths
    from localllm.tui.app import ChatApp

    class Steady(ScriptedBackend):
        def stream(self, messages: Sequence[dict[str, Any]], sampling: dict[str, Any]) -> Generator[Event, None, None]:
            return self._steady()

        def _steady(self) -> Generator[Event, None, None]:
            yield PromptProgress(10, 0, 10)
            started = time.monotonic()
            for number, piece in enumerate(answer()):
                ahead = started + number / rate - time.monotonic()
                if ahead > 0:
                    time.sleep(ahead)
                yield TextDelta(piece, (number,))
            yield Finished("stop", Usage(10, TOKENS), Timings(0, 0.1, 0.1, time.monotonic() - started))

    class Measured(ChatApp):
        def on_ready(self) -> None:
            self.set_timer(1.0, self.begin)

        def begin(self) -> None:
            self.began = (time.monotonic(), time.thread_time(), time.process_time())
            self.ask("go")
            self.set_interval(0.5, self.look)

        def look(self) -> None:
            if not self.busy:
                now = (time.monotonic(), time.thread_time(), time.process_time())
                wall, screen, process = (after - before for after, before in zip(now, self.began, strict=True))
                facts = {"seconds": wall, "screen_share": screen / wall, "process_share": process / wall}
                facts["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
                report.write_text(json.dumps(facts))
                self.exit()

    paths = Paths.from_environment({"LOCALLLM_HOME": str(folder)})
    store = ConversationStore(paths.chats)
    models = ScriptedModels()
    models.make = lambda name: Steady(name=name)
    Measured(ChatDesk(store, models, "scripted"), paths).run()
    store.close()


def main() -> None:
    """Run the child in a terminal, drain what it draws, print what it measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rate", type=float, nargs="?", default=250.0, help="tokens a second")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rate = options.rate
    with tempfile.TemporaryDirectory() as name:
        report = Path(name) / "report.json"
        process, terminal = pty.fork()
        if not process:
            os.environ["TERM"] = "xterm-256color"
            child(rate, Path(name) / "home", report)
            os._exit(0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        drawn = 0

        def drain() -> None:
            nonlocal drawn
            try:
                while data := os.read(terminal, 65536):
                    drawn += len(data)
            except OSError:
                return  # the child has closed its side

        reader = threading.Thread(target=drain)
        reader.start()
        os.waitpid(process, 0)
        reader.join(5)
        facts = json.loads(report.read_text())
    print(f"{TOKENS} tokens in {facts['seconds']:.1f} s ({rate:.0f} a second), {drawn / 1e6:.1f} MB drawn")
    print(f"screen (main thread): {facts['screen_share']:.1%} of a core; whole process: {facts['process_share']:.1%}")
    print(f"peak memory: {facts['peak_megabytes']:.0f} MB")
    if options.json:
        options.json.write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
