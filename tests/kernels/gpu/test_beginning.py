"""What is done beside the start on a card."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")


def test_garbage_is_collected_again_after_the_imports() -> None:
    from localllm.kernels.gpu.beginning import quick_imports

    assert gc.isenabled()
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), quick_imports():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with quick_imports():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_compiler_is_hashed_once() -> None:
    from triton.runtime.cache import triton_key

    from localllm.kernels.gpu.beginning import hash_compiler

    thread = hash_compiler()
    assert thread is not None
    thread.join(60)
    known = triton_key.cache_info().hits
    assert triton_key()
    assert triton_key.cache_info().hits == known + 1


def test_the_driver_opens_beside_the_import_or_is_missed_in_silence() -> None:
    """In a fresh process, as torch is imported here already."""
    code = (
        "import sys\n"
        "from localllm.kernels.gpu.beginning import quick_imports\n"
        "assert 'torch' not in sys.modules\n"
        "with quick_imports():\n"
        "    import threading\n"
        "    [thread.join(60) for thread in threading.enumerate() if thread.name == 'cuda-context']\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_line_ends_in_silence_with_triton_loaded() -> None:
    """Triton's bindings list on stderr what is left when the process ends."""
    code = "import triton\nfrom localllm.cli.main import main\nmain(['--version'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
