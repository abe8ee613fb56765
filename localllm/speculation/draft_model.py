"""A smaller model with the same vocabulary guesses, one token after the other, until it is no longer sure."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast, get_args

import numpy as np

from localllm.cache import KVCache, PoolSizes, ScheduledRows, build_step
from localllm.cache.full import FullPolicy
from localllm.errors import ConfigurationError
from localllm.kernels.executor import Device
from localllm.kernels.kv_layout import PAGE_SIZE

from .adaptive import AdaptiveSpeculation
from .draft import MOST_GUESSES, NOTHING, Draft, chain, sure

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from localllm.cache import CachedSequence
    from localllm.gguf_io import GGUFFile
    from localllm.kernels.executor import Executor

    from .choice import Target

_LEAST_CHANCE = 0.1  # of a line of guesses, as the draft model sees it: what is less likely is not drawn
_TOKENS = "tokenizer.ggml.tokens"


class DraftModel:
    """The executor and the keys and values of all sequences that it guesses for."""

    def __init__(self, executor: Executor, file: GGUFFile | None, context: int, parallel: int) -> None:
        self.executor = executor
        self.context = context
        self._file = file
        pages = parallel * (-(-context // PAGE_SIZE) + 1)
        groups = len(executor.layout.groups)
        executor.allocate_kv((pages,) * groups, "f16", (0,) * groups)
        self.cache = KVCache(executor.layout, PoolSizes((pages,) * groups), FullPolicy(context), reuse=False)

    def run(self, sequence: CachedSequence, count: int) -> npt.NDArray[np.float32] | None:
        """Compute the sequence's next `count` tokens; logits [vocabulary] behind the last, None without room."""
        logits = None
        while count > 0:
            rows = min(count, self.executor.max_rows, self.cache.room(sequence))
            if rows < 1 or not self.cache.reserve(sequence, rows):
                return None
            start = sequence.length
            tokens = np.array(sequence.tokens[start : start + rows], np.int32)
            logits = self.executor.forward(build_step(self.cache, [ScheduledRows(sequence, tokens, 1)]))[0]
            self.cache.commit(sequence, rows)
            count -= rows
        return logits

    def close(self) -> None:
        """Free the model."""
        self.executor.close()
        if self._file is not None:
            self._file.close()


class ModelDrafter:
    """Guesses for one sequence. The grade is how sure the draft model is, in tenths."""

    cheap, wants_hidden = False, False

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._sequence: CachedSequence | None = None
        self._checked = 0  # tokens of the sequence that are the text's for certain

    def draft(self, tokens: Sequence[int], most: int, hidden: npt.NDArray[np.float32] | None = None) -> Draft:
        """The draft model's likeliest tokens, behind all of `tokens`."""
        model = self._model
        if len(tokens) + most > model.context:
            self.close()
            return NOTHING
        sequence = self._sequence = self._sequence or model.cache.open(tokens)
        self._follow(sequence, tokens)
        logits = model.run(sequence, len(tokens) - sequence.length)
        found: list[int] = []
        grades: list[int] = []
        chance = 1.0
        while logits is not None and len(found) < min(most, MOST_GUESSES):
            best = int(np.argmax(logits))
            sureness = 1 / float(np.exp(logits - logits[best]).sum())
            chance *= sureness
            if not np.isfinite(sureness):
                break
            if chance < _LEAST_CHANCE:
                break
            found.append(best)
            grades.append(sure(sureness))
            sequence.tokens.append(best)
            logits = model.run(sequence, 1) if len(found) < most else None
        return chain(found, grades)

    def _follow(self, sequence: CachedSequence, tokens: Sequence[int]) -> None:
        """Keep what was computed for the text as it is now; the keys of wrong guesses are written over."""
        common = min(self._checked, len(tokens) - 1)
        while common < min(sequence.length, len(tokens) - 1) and sequence.tokens[common] == tokens[common]:
            common += 1
        sequence.length = min(sequence.length, common)
        del sequence.tokens[sequence.length :]
        sequence.tokens.extend(tokens[sequence.length :])
        self._checked = sequence.length

    def close(self) -> None:
        """Give the pages back."""
        if self._sequence is not None:
            self._model.cache.release(self._sequence, publish=False)
            self._sequence, self._checked = None, 0


def draft_device(choice: str, target: Device) -> tuple[str, Device]:
    """(model, device) of what was chosen, NAME or NAME@DEVICE.

    Without a device it is the target's own; beside a target that is divided, it is the card if the model fits there.
    """
    name, _, device = choice.rpartition("@")
    if name and device in get_args(Device):
        return name, cast("Device", device)
    return choice, "auto" if target == "hybrid" else target


def open_draft_model(choice: str, target: Target) -> AdaptiveSpeculation:
    """Load the model that `choice` names; ConfigurationError if its vocabulary is not the target's."""
    from localllm.gguf_io import open_gguf
    from localllm.kernels.executor import ExecutorOptions
    from localllm.kernels.registry import open_executor
    from localllm.models import load_spec
    from localllm.store import resolve_model

    name, device = draft_device(choice, target.device)
    file = open_gguf(resolve_model(name).path)
    try:
        own, others = (each.metadata.strings(_TOKENS) for each in (file, target.file))
        spec = load_spec(file)
        # A table may have more rows than there are tokens; the other model could not read what is guessed from those.
        differ = len(own) != len(others) or spec.vocabulary_size != target.spec.vocabulary_size
        if differ or any(a != b for a, b in zip(own, others, strict=True)):
            raise ConfigurationError(
                f"{name} cannot guess for this model: their vocabularies differ",
                hint="take a smaller model of the same family",
            )
        context = min(spec.context_length, target.context)
        executor = open_executor(spec, device, ExecutorOptions(threads=target.threads, progress=target.progress))
        try:
            model = DraftModel(executor, file, context, target.parallel)
        except BaseException:
            executor.close()
            raise
    except BaseException:
        file.close()
        raise
    lookup = target.lookups()
    return AdaptiveSpeculation(lambda: (lookup(), ModelDrafter(model)), shared=model.close)
