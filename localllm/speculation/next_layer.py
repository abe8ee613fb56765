"""A layer in the model's own file that predicts one token further ("nextn", multi-token prediction) guesses.

For the row of token t with vector h behind the final norm, and the token t' chosen after it:
x = eh_proj [enorm(embedding of t'), hnorm(h)]; one more decoder layer; the shared head's norm; the head. The guess is
its largest value; the next one comes from the vector behind that norm and the guess, through the same layer.
DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 2.2. docs/speculation.md lists the tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from localllm.cache import KVCache, PoolSizes, ScheduledRows, build_step
from localllm.cache.full import FullPolicy
from localllm.errors import ConfigurationError
from localllm.gguf_io import QuantType, Tensor, dequantize
from localllm.kernels.kv_layout import PAGE_SIZE
from localllm.kernels.spec import Embed, Head, Linear, Norm
from localllm.kernels.step import Output

from .draft import MOST_GUESSES, NOTHING, Draft, chain, sure

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from localllm.cache import CachedSequence
    from localllm.gguf_io import GGUFFile
    from localllm.kernels.executor import Executor
    from localllm.kernels.spec import Layer, ModelSpec

    Floats = npt.NDArray[np.float32]

_ROWS = MOST_GUESSES + 1  # vectors that go through the layer at a time
_LEAST_CHANCE = 0.1  # of a line of guesses, as the layer sees it: what is less likely is not drawn


@dataclass(frozen=True, slots=True)
class Entrance:
    """What joins a vector and a token into the layer's input."""

    project: Callable[[Floats], Floats]
    embeddings: Tensor
    scale: float
    token_gain: Floats
    hidden_gain: Floats
    eps: float

    def input(self, hidden: Floats, token: int) -> Floats:
        """[hidden]."""
        table = self.embeddings
        part = replace(table, shape=(1, table.columns), data=table.data[token : token + 1])
        embedding = np.asarray(dequantize(part), np.float32)[0] * np.float32(self.scale)
        return self.project(
            np.concatenate([self._norm(embedding) * self.token_gain, self._norm(hidden) * self.hidden_gain])
        )

    def _norm(self, x: Floats) -> Floats:
        result: Floats = x / np.sqrt(np.square(x).mean() + np.float32(self.eps))
        return result


class NextLayer:
    """The layer with an executor of its own, and the keys and values of all sequences that it guesses for.

    Its "tokens" are rows of a table that holds the inputs of the moment.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layer: Layer,
        entrance: Entrance,
        head: Head,
        open_executor: Callable[[ModelSpec], Executor],
        *,
        context: int,
        parallel: int,
    ) -> None:
        self.entrance, self.context = entrance, context
        self._inputs = np.zeros((_ROWS, spec.hidden_size), np.float32)
        table = Tensor("inputs", QuantType.F32, self._inputs.shape, self._inputs.view(np.uint8))
        one = replace(spec, embed=Embed(table), layers=(layer,), head=head, context_length=context)
        self.executor = open_executor(one)
        pages = parallel * (-(-context // PAGE_SIZE) + 1)
        groups = len(self.executor.layout.groups)
        self.executor.allocate_kv((pages,) * groups, "f16", (0,) * groups)
        self.cache = KVCache(self.executor.layout, PoolSizes((pages,) * groups), FullPolicy(context), reuse=False)

    def run(self, sequence: CachedSequence, inputs: Floats) -> tuple[Floats, Floats] | None:
        """(logits [vocabulary], vector [hidden]) behind the last of `inputs` [n, hidden]; None without room.

        There is room then for MOST_GUESSES calls of `go_on`, whose rows are forgotten when `sequence` is made shorter.
        """
        found: tuple[Floats, Floats] | None = None
        for first in range(0, len(inputs), _ROWS):
            part = inputs[first : first + _ROWS]
            rows = len(part) + MOST_GUESSES
            if self.cache.room(sequence) < rows or not self.cache.reserve(sequence, rows):
                return None
            found = self.go_on(sequence, part)
        return found

    def go_on(self, sequence: CachedSequence, inputs: Floats) -> tuple[Floats, Floats]:
        """`run`, where there is room."""
        hidden = np.zeros((1, inputs.shape[1]), np.float32)
        self._inputs[: len(inputs)] = inputs
        rows = ScheduledRows(sequence, np.arange(len(inputs), dtype=np.int32), 1)
        logits = self.executor.forward(build_step(self.cache, [rows], Output.LOGITS, hidden))[0]
        sequence.tokens.extend(range(len(inputs)))
        self.cache.commit(sequence, len(inputs))
        return logits, hidden[0]

    def close(self) -> None:
        """Free the layer."""
        self.executor.close()


class NextLayerDrafter:
    """Guesses for one sequence. The grade is the step and how sure the layer is.

    The layer attends to what it was given: rows of the answer. Those that were computed while nobody asked for guesses
    are missing, which makes guesses worse and nothing else.
    """

    cheap, wants_hidden = False, True

    def __init__(self, layer: NextLayer) -> None:
        self._layer = layer
        self._sequence: CachedSequence | None = None
        self._text = 0  # tokens of the text when the layer was given rows last
        self._before = self._given = 0  # its rows of the text, before that time and after

    def draft(self, tokens: Sequence[int], most: int, hidden: npt.NDArray[np.float32] | None) -> Draft:
        """The layer's likeliest tokens. `hidden` [n, hidden]: of the rows before the last n tokens."""
        if hidden is None or not np.isfinite(hidden[0, 0]) or most < 1:
            return NOTHING
        layer, count = self._layer, len(hidden)
        if self._given + count + MOST_GUESSES > layer.context:
            self.close()
        sequence = self._sequence = self._sequence or layer.cache.open([])
        if self._text != len(tokens):
            self._before, self._text = self._given, len(tokens)
        sequence.length = self._before
        del sequence.tokens[self._before :]
        enter = layer.entrance.input
        inputs = [enter(row, tokens[index - count]) for index, row in enumerate(hidden)]
        found = layer.run(sequence, np.stack(inputs))
        self._given = sequence.length
        line: list[int] = []
        grades: list[int] = []
        chance = 1.0
        while found is not None:
            logits, state = found
            best = int(np.argmax(logits))
            sureness = 1 / float(np.exp(logits - logits[best]).sum())
            chance *= sureness
            if not np.isfinite(sureness):
                break
            if line and chance < _LEAST_CHANCE:
                break
            grades.append(sure(sureness))
            line.append(best)
            found = layer.go_on(sequence, enter(state, best)[None]) if len(line) < min(most, MOST_GUESSES) else None
        return chain(line, grades)

    def close(self) -> None:
        """Give the pages back."""
        if self._sequence is not None:
            self._layer.cache.release(self._sequence, publish=False)
            self._sequence, self._text, self._before, self._given = None, 0, 0, 0


def load_next_layer(
    file: GGUFFile,
    spec: ModelSpec,
    product: Callable[[Tensor], Callable[[Floats], Floats]],
    open_executor: Callable[[ModelSpec], Executor],
    *,
    context: int,
    parallel: int,
) -> NextLayer:
    """The first layer of `file` that predicts ahead; ConfigurationError if there is none or it is not as expected."""
    from localllm.models import load_layers_ahead

    ahead = load_layers_ahead(file)
    if not ahead:
        raise ConfigurationError(
            "this model's file has no layer that predicts further tokens (nextn)", hint="Choose lookup or auto."
        )
    prefix, hidden = f"blk.{len(spec.layers)}.nextn.", spec.hidden_size

    def tensor(name: str, *shape: int) -> Tensor:
        found = file.tensors.get(f"{prefix}{name}.weight")
        if found is None or found.shape != shape:
            size = " x ".join(str(length) for length in shape)
            raise ConfigurationError(f"{file.path}: {prefix}{name}.weight should be {size}")
        return found

    def optional(name: str, *shape: int) -> Tensor | None:
        return tensor(name, *shape) if f"{prefix}{name}.weight" in file.tensors else None

    eps = ahead[0].feed_forward.norm.eps if ahead[0].feed_forward.norm is not None else 1e-6
    entrance = Entrance(
        product(tensor("eh_proj", hidden, 2 * hidden)),
        optional("embed_tokens", *spec.embed.table.shape) or spec.embed.table,
        spec.embed.scale,
        np.asarray(dequantize(tensor("enorm", hidden)), np.float32),
        np.asarray(dequantize(tensor("hnorm", hidden)), np.float32),
        eps,
    )
    norm, linear = optional("shared_head_norm", hidden), optional("shared_head_head", spec.vocabulary_size, hidden)
    head = replace(
        spec.head,
        norm=spec.head.norm if norm is None else Norm(norm, eps),
        linear=spec.head.linear if linear is None else Linear(linear),
    )
    return NextLayer(spec, ahead[0], entrance, head, open_executor, context=context, parallel=parallel)
