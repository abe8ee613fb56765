"""Machine code for kernels: an emit function becomes a Numba `cfunc`, compiled once and kept on disk.

A kernel is `void kernel(int64 record, int64 step, int64 thread)`: the address of its op record, the address of the
step's state, the number of the thread. Everything inside is int64 addresses and float32 vectors. Usage:

    compiler = KernelCompiler(choose_isa())
    kernel = compiler.compile(KernelSource("double", "", emit))      # emit as in emit.py
    kernel.address                                                   # goes into an op table
    kernel.call(record, step, thread)                                # from Python: tests, benchmarks

`key` must say everything that the emitted code depends on beside the sources of this package (layout, token count,
sizes known at compile time...); the instruction set, the CPU and the versions of Numba and llvmlite are added here.

Why not Numba's own cache: it keys on the bytecode and closure of the Python function, which are the same for all our
kernels, and not on what the emit function imports. So the object code is stored by us, one file a kernel, in
`<cache>/kernels/<hash of all that matters>/`, checked by SHA-256 when read. A user's Numba settings stay untouched.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from llvmlite import ir

from localllm.kernels.executor import LoadProgress

from .emit import Emitter
from .ir_types import I64, VOID, Value
from .isa import Isa

_log = logging.getLogger("localllm.kernels")
_MAGIC = b"localllm kernel 1\n"

EmitFunction = Callable[[Emitter, Value, Value, Value], None]


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A kernel to compile. `name` (letters, digits, underscores) is for people; name and key together identify it."""

    name: str
    key: str
    emit: EmitFunction


class Kernel:
    """Machine code in this process. It stays loaded until the process ends: LLVM's engine never unloads."""

    def __init__(self, name: str, address: int) -> None:
        self.name = name
        self.address = address

    @cached_property
    def call(self) -> Callable[[int, int, int], None]:
        """The kernel as a Python function of (record, step, thread); releases the GIL."""
        return ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(self.address)


def cache_directory() -> Path:
    """The directory of everything that can be made again: $LOCALLLM_CACHE_DIR, $LOCALLLM_HOME/cache, or the platform's.

    `localllm.paths.Paths.cache` is the same place.
    """
    configured, home = os.environ.get("LOCALLLM_CACHE_DIR"), os.environ.get("LOCALLLM_HOME")
    if configured:
        return Path(configured).expanduser().absolute()
    if home:
        return Path(home).expanduser().absolute() / "cache"
    import platformdirs

    return Path(platformdirs.user_cache_dir("localllm"))


def _codegen() -> Any:
    """Numba's link to LLVM. Its registries of functions (a third of a second) are left to whoever compiles."""
    from numba.core.registry import cpu_target

    return cpu_target.target_context.codegen()


@lru_cache(maxsize=1)
def environment_hash() -> str:
    """A hash of all that machine code depends on beside a kernel's key: our sources, the compiler, the CPU."""
    import llvmlite
    import numba

    digest = hashlib.sha256()
    settings = (numba.__version__, llvmlite.__version__, str(numba.config.OPT), *_codegen().magic_tuple())
    digest.update("\n".join(settings).encode())
    package = Path(__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(f"\n{path.relative_to(package)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:24]


class KernelCompiler:
    """Compiles kernels for one instruction set, or loads them from the disk; keeps each for the life of this object."""

    def __init__(self, isa: Isa, directory: Path | None = None) -> None:
        """`directory` replaces `cache_directory() / "kernels"`. If it cannot be written, kernels stay in memory."""
        self.isa = isa
        self.directory: Path | None = (directory or cache_directory() / "kernels") / environment_hash()
        self._kernels: dict[str, Kernel] = {}
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            tempfile.TemporaryFile(dir=self.directory).close()
        except OSError as error:
            self._give_up_disk(error)

    def compile(self, source: KernelSource) -> Kernel:
        """The kernel, from memory, from the disk, or compiled now."""
        symbol = self._symbol(source)
        kernel = self._kernels.get(symbol) or self._load(source, symbol) or self._compile(source, symbol)
        self._kernels[symbol] = kernel
        return kernel

    def compile_all(
        self, sources: Sequence[KernelSource], progress: Callable[[LoadProgress], None] | None = None
    ) -> list[Kernel]:
        """All kernels, in order. `progress` hears "compiling kernels (once)" before each that is not on the disk."""
        missing = sum(not self._available(source) for source in sources)
        kernels, done = [], 0
        for source in sources:
            if progress is not None and missing and not self._available(source):
                progress(LoadProgress("compiling kernels (once)", done / missing))
                done += 1
            kernels.append(self.compile(source))
        if progress is not None and missing:
            progress(LoadProgress("compiling kernels (once)", 1.0))
        return kernels

    def _symbol(self, source: KernelSource) -> str:
        identity = f"{source.name}\n{source.key}\n{self.isa.name} {self.isa.row_ahead}\n{environment_hash()}"
        return f"{source.name}_{hashlib.sha256(identity.encode()).hexdigest()[:16]}"

    def _path(self, symbol: str) -> Path | None:
        return None if self.directory is None else self.directory / f"{symbol}.kernel"

    def _available(self, source: KernelSource) -> bool:
        symbol = self._symbol(source)
        path = self._path(symbol)
        return symbol in self._kernels or (path is not None and path.exists())

    def _give_up_disk(self, error: OSError) -> None:
        why = error.strerror or error
        _log.warning("kernels cannot be kept in %s (%s); they are compiled again at every start", self.directory, why)
        self.directory = None

    def _load(self, source: KernelSource, symbol: str) -> Kernel | None:
        path = self._path(symbol)
        if path is None:
            return None
        try:
            content = path.read_bytes()
        except OSError:
            return None
        parts = _unpack(content)
        return None if parts is None else Kernel(source.name, _linked(symbol, *parts))

    def _compile(self, source: KernelSource, symbol: str) -> Kernel:
        function = _numba_function(source.emit, self.isa, symbol)
        function.compile()
        path = self._path(symbol)
        if path is not None:
            try:
                _, _, (object_code, bitcode) = function._library.serialize_using_object_code()
                _write_atomically(path, _pack(function.native_name.encode(), object_code, bitcode))
            except OSError as error:
                self._give_up_disk(error)
            except RuntimeError as error:
                # the note that LLVM has made it is lost when the garbage collector removes another module meanwhile
                _log.info("the kernel %s is not kept on the disk: %s", source.name, error)
        return Kernel(source.name, function.address)


def emit_module(name: str, emit: EmitFunction, isa: Isa, triple: str) -> Any:
    """A kernel as an llvmlite module for any target, without Numba: to look at, or to lower for another machine."""
    module = ir.Module(name)
    module.triple = triple
    function = ir.Function(module, ir.FunctionType(VOID, [I64] * 3), name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emit(Emitter(builder, isa), *function.args)
    builder.ret_void()
    return module


def _numba_function(emit: EmitFunction, isa: Isa, symbol: str) -> Any:
    from numba.core import types
    from numba.core.ccallback import CFunc
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def body(typing_context: Any, record: Any, step: Any, thread: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            emit(Emitter(builder, isa), *arguments)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), generate

    def kernel(record: Any, step: Any, thread: Any) -> None:
        body(record, step, thread)

    # Numba derives the symbol from the name. Two libraries with one symbol in LLVM's engine would be one function.
    kernel.__name__ = kernel.__qualname__ = symbol
    integers = (types.int64, types.int64, types.int64)
    return CFunc(kernel, (integers, types.void), locals={}, options={})


@cache  # LLVM gives no code back, so what many models use one after the other is linked once
def _linked(symbol: str, wrapper: bytes, object_code: bytes, bitcode: bytes) -> int:
    """The address of a kernel of which the disk held the code."""
    library = _codegen().unserialize_library((symbol, "object", (object_code, bitcode)))
    address: int = library.get_pointer_to_function(wrapper.decode())
    return address


def _pack(*parts: bytes) -> bytes:
    body = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return _MAGIC + hashlib.sha256(body).digest() + body


def _unpack(content: bytes) -> tuple[bytes, bytes, bytes] | None:
    start = len(_MAGIC) + 32
    body = content[start:]
    if not content.startswith(_MAGIC) or hashlib.sha256(body).digest() != content[len(_MAGIC) : start]:
        return None
    parts, position = [], 0
    for _ in range(3):
        size = int.from_bytes(body[position : position + 8], "little")
        parts.append(body[position + 8 : position + 8 + size])
        position += 8 + size
    return parts[0], parts[1], parts[2]


def _write_atomically(path: Path, content: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
