"""Checked reads of one model file: metadata under the architecture's prefix, tensors of an expected shape.

A file is untrusted input: every number is bounded here, and every tensor has the shape that the numbers imply, so that
no executor can read outside of one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from localllm.errors import UnsupportedModelError
from localllm.gguf_io import GGUFError, QuantType
from localllm.kernels.spec import Activation, Linear, Norm

if TYPE_CHECKING:
    from localllm.gguf_io import GGUFFile, Tensor

_LARGEST_SIZE = 1 << 24  # of any dimension that a file states
_PLAIN_TYPES = (QuantType.F32, QuantType.F16, QuantType.BF16, QuantType.F64)
_NOT_WEIGHTS = (QuantType.I8, QuantType.I16, QuantType.I32, QuantType.I64, QuantType.Q8_1, QuantType.Q8_K)
_ACTIVATIONS = {
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
}


class Source:
    """One file while its spec is built; remembers which tensors were read, so that none is ignored unnoticed.

    `context` is the length that the model will be run at (None: short), which chooses longrope factors. `ahead`: the
    layers that predict further tokens are layers like the others.
    """

    __slots__ = ("ahead", "architecture", "context", "file", "unread")

    def __init__(self, file: GGUFFile, architecture: str, context: int | None, *, ahead: bool = False) -> None:
        self.file = file
        self.architecture = architecture
        self.context = context
        self.ahead = ahead
        self.unread = set(file.tensors)

    def key(self, name: str) -> str:
        """The full metadata key of an architecture-specific `name`."""
        return f"{self.architecture}.{name}"

    def has(self, name: str) -> bool:
        """Whether the file states `name` for this architecture."""
        return self.key(name) in self.file.metadata

    def integer(self, name: str, default: int | None = None, *, low: int = 1, high: int = _LARGEST_SIZE) -> int:
        """A whole number within [low, high]; GGUFError when it is missing without a default, mistyped or outside."""
        key = self.key(name)
        value = self.file.metadata.integer(key) if default is None else self.file.metadata.integer(key, default)
        return _within(key, value, low, high)

    def integer_of_layer(
        self, name: str, layer: int, default: int | None = None, *, low: int = 1, high: int = _LARGEST_SIZE
    ) -> int:
        """`integer`, for a key that may hold one number for all layers or an array with one for each."""
        key = self.key(name)
        if not self.file.metadata.is_array(key):
            return self.integer(name, default, low=low, high=high)
        values = self.file.metadata.integers(key)
        if layer >= len(values):
            raise GGUFError(f"{key}: {len(values)} values, but there is a layer {layer}")
        return _within(f"{key}[{layer}]", values[layer], low, high)

    def floating(self, name: str, default: float | None = None, *, positive: bool = True) -> float:
        """A finite number, above zero unless told otherwise."""
        key = self.key(name)
        value = self.file.metadata.floating(key) if default is None else self.file.metadata.floating(key, default)
        if not math.isfinite(value) or (positive and value <= 0):
            raise GGUFError(f"{key}: {value} is not a {'positive ' if positive else ''}finite number")
        return value

    def optional_floating(self, name: str) -> float | None:
        """A positive finite number, or None where the file is silent or says 0 (which means unused)."""
        if not self.has(name):
            return None
        value = self.floating(name, positive=False)
        return self.floating(name) if value else None

    def boolean(self, name: str, default: bool) -> bool:
        """A truth value."""
        return self.file.metadata.boolean(self.key(name), default)

    def string(self, name: str, default: str) -> str:
        """A text."""
        return self.file.metadata.string(self.key(name), default)

    def activation(self, default: Activation) -> Activation:
        """The feed-forward nonlinearity: `hidden_activation` where the file has it, else the architecture's own.

        Models retrained with ReLU rarely say so: PowerInfer's files always are, others are known by their name.
        """
        if not self.has("hidden_activation"):
            return _retrained(self.file.metadata.string("general.name", ""), self.file.magic, default)
        name = self.string("hidden_activation", "")
        if name not in _ACTIVATIONS:
            raise UnsupportedModelError(
                f"{self.key('hidden_activation')}: {name!r} is not supported",
                hint=f"supported: {', '.join(_ACTIVATIONS)}",
            )
        return _ACTIVATIONS[name]

    def refuse(self, name: str, reason: str) -> None:
        """UnsupportedModelError when the file asks for something that no executor can do."""
        if self.optional_floating(name):
            raise UnsupportedModelError(f"{self.key(name)}: {reason} is not supported")

    def has_tensor(self, name: str) -> bool:
        """Whether the file holds a tensor of this name."""
        return name in self.file.tensors

    def ignore(self, name: str) -> None:
        """Say that a tensor is known and not needed."""
        self.unread.discard(name)

    def ignore_prefix(self, prefix: str) -> None:
        """`ignore`, for all tensors whose name starts so."""
        self.unread = {name for name in self.unread if not name.startswith(prefix)}

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A tensor of exactly `shape`, of a type that holds weights; GGUFError names what was expected."""
        tensor = self.file.tensors.get(name)
        if tensor is None:
            raise GGUFError(f"tensor {name} is missing; architecture {self.architecture} needs it with shape {shape}")
        if tensor.shape != shape:
            raise GGUFError(f"tensor {name}: shape {tensor.shape}, expected {shape} from the metadata")
        if tensor.quant_type in _NOT_WEIGHTS:
            raise GGUFError(f"tensor {name}: type {tensor.quant_type.name} does not hold weights")
        self.unread.discard(name)
        return tensor

    def vector(self, name: str, *shape: int) -> Tensor:
        """An unquantised tensor (a gain, a bias) of `shape`."""
        tensor = self.tensor(name, shape)
        if tensor.quant_type not in _PLAIN_TYPES:
            expected = ", ".join(t.name for t in _PLAIN_TYPES)
            raise GGUFError(f"tensor {name}: type {tensor.quant_type.name}, expected one of {expected}")
        return tensor

    def optional_vector(self, name: str, *shape: int) -> Tensor | None:
        """`vector`, or None where the file has none."""
        return self.vector(name, *shape) if self.has_tensor(name) else None

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """The shape that the file states for a tensor, None where it has none."""
        tensor = self.file.tensors.get(name)
        return None if tensor is None else tensor.shape

    def linear(self, name: str, outputs: int, inputs: int) -> Linear:
        """`name`.weight (outputs, inputs), with `name`.bias where the file has one."""
        weight = self.tensor(f"{name}.weight", (outputs, inputs))
        return Linear(weight, self.optional_vector(f"{name}.bias", outputs))

    def stacked_linear(self, name: str, experts: int, outputs: int, inputs: int) -> Linear:
        """`linear` with a leading dimension of experts."""
        weight = self.tensor(f"{name}.weight", (experts, outputs, inputs))
        return Linear(weight, self.optional_vector(f"{name}.bias", experts, outputs))

    def norm(self, name: str, *shape: int, layer_norm: bool = False) -> Norm:
        """`name`.weight as an RMS norm, or with `layer_norm` as a layer norm with an optional bias."""
        weight = self.vector(f"{name}.weight", *shape)
        if not layer_norm:
            return Norm(weight, self.floating("attention.layer_norm_rms_epsilon"))
        bias = self.optional_vector(f"{name}.bias", *shape)
        return Norm(weight, self.floating("attention.layer_norm_epsilon"), bias, subtract_mean=True)

    def optional_norm(self, name: str, *shape: int, layer_norm: bool = False) -> Norm | None:
        """`norm`, or None where the file has none."""
        return self.norm(name, *shape, layer_norm=layer_norm) if self.has_tensor(f"{name}.weight") else None

    def finish(self) -> None:
        """Every tensor has been read: one without a meaning would make the answer silently wrong."""
        unread = sorted(name for name in self.unread if ".attn_rot_embd." not in name)  # angles: the metadata has them
        if unread:
            raise UnsupportedModelError(
                f"architecture {self.architecture} has no use for {len(unread)} tensors of this file: "
                f"{', '.join(unread[:5])}",
                hint="The file has a variant of the architecture that is not supported.",
            )


def _retrained(name: str, magic: str, default: Activation) -> Activation:
    """What a model without a stated activation uses, by its published name or PowerInfer's magic."""
    name = name.lower()
    if default is Activation.RELU_BOTH or any(known in name for known in ("turbosparse", "bamboo")):
        return Activation.RELU_BOTH
    if magic == "PWRI" or any(known in name for known in ("relullama", "relufalcon", "prosparse")):
        return Activation.RELU
    return default


def _within(key: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise GGUFError(f"{key}: {value} is outside {low}..{high}")
    return value
