"""Feed random input to everything that reads what strangers wrote, and keep what breaks it.

    python bench/fuzz files FOLDER [--minutes 10] [--seed 1] [--keep FOLDER] [--json FILE]
    python bench/fuzz templates FOLDER ...     chat templates and conversations (FOLDER holds .jinja and .json)
    python bench/fuzz tokenizers FOLDER ...    texts (FOLDER holds .gguf files with vocabularies)
    python bench/fuzz api MODEL ...            requests to `localllm serve MODEL`

A case is made from the seed and its number alone, so it can be made again: `--only NUMBER`. The cases run in a process
of their own, which is started again after it died. A LocalLLMError is a good answer; anything else is a finding:
another exception, a case of more than 30 seconds of the processor, more than 6 GiB of memory, a crash of the process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

AREAS = {"files": "fuzz_files", "templates": "fuzz_templates", "tokenizers": "fuzz_tokenizers", "api": "fuzz_api"}
LONGEST = 30  # seconds of a case on the processor
MEMORY = 6 << 30


class TooSlowError(Exception):
    """A case took longer than LONGEST."""


def work(options: argparse.Namespace) -> None:
    """In the worker: cases until the time is over, a line of JSON for each finding and every second."""
    from localllm.errors import LocalLLMError

    sys.path.insert(0, str(Path(__file__).parent))
    case = importlib.import_module(AREAS[options.area]).make_case(options.target)
    if options.area != "api":  # a server has limits of its own
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    def late(*_: object) -> None:
        raise TooSlowError

    signal.signal(signal.SIGPROF, late)
    end, said = time.monotonic() + options.seconds, 0.0
    number, refused = options.first, 0
    while time.monotonic() < end:
        Path(options.progress).write_text(str(number), encoding="ascii")
        try:
            signal.setitimer(signal.ITIMER_PROF, LONGEST)  # not by the clock: the machine may be busy
            case(random.Random(f"{options.seed} {number}"), options.keep)
        except LocalLLMError:
            refused += 1
        except Exception as error:
            frames = traceback.extract_tb(error.__traceback__)
            place = next((f for f in reversed(frames) if "localllm" in f.filename or "fuzz" in f.filename), frames[-1])
            where = f"{Path(place.filename).name}:{place.lineno}"
            found = {"number": number, "error": f"{type(error).__name__}: {str(error)[:200]}", "where": where}
            print(json.dumps({"finding": found, "trace": traceback.format_exc()[-1500:]}), flush=True)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        number += 1
        if options.once:
            break
        if time.monotonic() - said > 1:
            said = time.monotonic()
            print(json.dumps({"number": number, "refused": refused}), flush=True)
    print(json.dumps({"number": number, "refused": refused}), flush=True)


def lead(options: argparse.Namespace) -> dict[str, Any]:
    """Start workers until the time is over; collect what they say."""
    began, end = time.monotonic(), time.monotonic() + 60 * options.minutes
    number, refused = options.only or 0, 0
    findings: list[dict[str, Any]] = []
    options.keep.mkdir(parents=True, exist_ok=True)
    progress = options.keep / f"{options.area}.number"
    while (left := end - time.monotonic()) > 0:
        command = [sys.executable, __file__, options.area, options.target, "--seed", str(options.seed), "--worker"]
        command += ["--first", str(number), "--seconds", str(left), "--progress", str(progress)]
        command += ["--keep", str(options.keep), *(["--once"] if options.only is not None else [])]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        last = 0
        for line in worker.stdout:
            said = json.loads(line)
            if "finding" in said:
                findings.append(said["finding"])
                print(said["trace"], said["finding"], flush=True)
            else:
                number, last = said["number"], said["refused"]
        refused += last
        if worker.wait() == 0:
            break
        died = int(progress.read_text(encoding="ascii"))
        findings.append({"number": died, "error": f"the process ended with {worker.returncode}", "where": ""})
        print(findings[-1], flush=True)
        number = died + 1
    return {
        "area": options.area,
        "seed": options.seed,
        "minutes": round((time.monotonic() - began) / 60, 1),
        "cases": number - (options.only or 0),
        "refused": refused,
        "findings": findings,
    }


def main() -> None:
    """Fuzz one area; exit 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("area", choices=list(AREAS))
    parser.add_argument("target", help="a folder of good input, or a model")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="make this case again")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--json", type=Path)
    for name in ("--first", "--seconds", "--progress"):
        parser.add_argument(name, type=str if name == "--progress" else int if name == "--first" else float)
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    os.environ["LOCALLLM_HOME"] = str(options.keep.absolute() / "home")
    facts = lead(options)
    if options.json:
        options.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(facts, indent=1))
    raise SystemExit(1 if facts["findings"] else 0)


if __name__ == "__main__":
    main()
