"""Before a byte of the weights is fetched: will the model fit here, and how fast would it be?

Only the heads of the remote files are read (by ranges), and this machine's memory is measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.errors import DownloadError, LocalLLMError, UnsupportedModelError
from localllm.gguf_io import TruncatedGGUFError, outline_gguf

from .events import FitEstimated, Note
from .text import printable
from .transfer import RemoteFile
from .transfer.client import HttpStatusError
from .transfer.retry import TransientError

if TYPE_CHECKING:
    from .plan import PullPlan
    from .transfer import Client

FIRST_BYTES = 1 << 20
LONGEST_HEAD = 96 << 20  # vocabularies of a quarter million tokens need about 10 MB
CONTEXT = 4096  # tokens that the estimate makes room for


def estimate_fit(client: Client, plan: PullPlan) -> FitEstimated | Note:
    """Memory and speed to expect, or why that is not known: files inside archives, heads that cannot be read.

    A model that no executor here can run gives an estimate without speed whose `problem` says so.
    """
    remotes = [file.pieces[0].origin for file in plan.files if len(file.pieces) == 1 and file.pieces[0].member is None]
    if len(remotes) != len(plan.files):
        return Note("whether it fits is known once it is here: its files lie in an archive")
    try:
        heads = [read_head(client, remote) for remote in remotes if isinstance(remote, RemoteFile)]
        return _estimate(plan, heads)
    except HttpStatusError:
        raise
    except UnsupportedModelError as error:
        return FitEstimated(plan.name, plan.size_bytes or 0, 0, CONTEXT, 0, 0, False, None, error.message)
    except TransientError as error:
        return Note(f"whether it fits is not known: {printable(error.reason)}")
    except (LocalLLMError, ValueError) as error:
        reason = error.message if isinstance(error, LocalLLMError) else str(error)
        return Note(f"whether it fits is not known: {printable(reason)}")


def read_head(client: Client, remote: RemoteFile) -> tuple[str, bytes]:
    """The name and the first bytes of a remote GGUF file, as many as its metadata and tensor table need."""
    head = b""
    wanted = FIRST_BYTES
    while True:
        head += _read_range(client, remote, len(head), wanted)
        try:
            outline_gguf([(remote.name, head)])
        except TruncatedGGUFError as error:
            if len(head) < wanted or wanted >= LONGEST_HEAD:
                raise DownloadError(f"{remote.name}: its head cannot be read") from error
            wanted = min(LONGEST_HEAD, max(2 * wanted, error.needed_bytes))
        else:
            return remote.name, head


def _read_range(client: Client, remote: RemoteFile, start: int, stop: int) -> bytes:
    received = bytearray()
    with client.stream(remote.url, {"Range": f"bytes={start}-{stop - 1}"}, remote.credentials) as response:
        skip = 0 if response.status_code == 206 else start
        for piece in response.iter_raw():
            received += piece
            if len(received) >= skip + stop - start:
                break
    return bytes(received[skip : skip + stop - start])


def _estimate(plan: PullPlan, heads: list[tuple[str, bytes]]) -> FitEstimated:
    from localllm.hardware import detect
    from localllm.models import load_spec
    from localllm.placement import measure_machine, parts_of, plan_placement

    spec = load_spec(outline_gguf(heads), context=CONTEXT)
    context = min(CONTEXT, spec.context_length)
    parts = parts_of(spec, context=context)
    machine = measure_machine(detect())
    placed = plan_placement(parts, machine)
    kv_bytes = sum(layer.kv_bytes for layer in parts.layers)
    fits = placed.cpu_bytes <= machine.cpu_bytes
    problem = None if fits else "it needs more memory than is free; a smaller quantisation may fit"
    return FitEstimated(
        name=plan.name,
        weight_bytes=parts.nbytes - kv_bytes,
        kv_bytes=kv_bytes,
        context=context,
        memory_bytes=machine.cpu_bytes,
        gpu_bytes=machine.gpu_bytes,
        fits=fits,
        tokens_per_second=placed.prediction.decode if fits else None,
        problem=printable(problem) if problem is not None else None,
    )
