"""Files of other writers: the golden models against the `gguf` package, the vocabularies, and the real models."""

from __future__ import annotations

from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import pytest

from localllm.gguf_io import dequantize, open_gguf


def test_quantised_golden_models_equal_the_published_reader(shared_fixtures: Path) -> None:
    paths = sorted((shared_fixtures / "golden" / "quant").glob("*.gguf"))
    assert paths
    for path in paths:
        theirs = gguf.GGUFReader(path)
        with open_gguf(path) as ours:
            assert [tensor.name for tensor in theirs.tensors] == list(ours.tensors), path.name
            for tensor in theirs.tensors:
                mine = ours.tensor(tensor.name)
                wanted = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                np.testing.assert_array_equal(dequantize(mine), wanted.reshape(mine.shape), err_msg=path.name)
            for key, field in theirs.fields.items():
                if not key.startswith("GGUF."):
                    wanted = np.asarray(field.contents())
                    np.testing.assert_array_equal(np.asarray(ours.metadata.get_raw(key)), wanted, err_msg=path.name)


def test_golden_architectures_open(shared_fixtures: Path) -> None:
    paths = sorted((shared_fixtures / "golden" / "arch").glob("*.gguf"))
    assert paths
    for path in paths:
        with open_gguf(path) as file:
            architecture = file.metadata.string("general.architecture")
            assert file.metadata.integer(f"{architecture}.block_count", minimum=1) < 10, path.name
            assert all(np.isfinite(dequantize(tensor)).all() for tensor in file.tensors.values()), path.name


def test_vocabulary_files_have_a_type_for_every_token(shared_fixtures: Path) -> None:
    paths = sorted((shared_fixtures / "golden" / "vocab").glob("*.gguf"))
    assert paths
    for path in paths:
        with open_gguf(path) as file:
            assert not file.tensors
            tokens = file.metadata.string_bytes("tokenizer.ggml.tokens")
            assert len(tokens) == file.metadata.array_length("tokenizer.ggml.tokens") > 1000, path.name
            if "tokenizer.ggml.token_type" in file.metadata:
                assert len(file.metadata.integers("tokenizer.ggml.token_type")) == len(tokens), path.name


@pytest.mark.real_model
def test_smollm2_opens(smollm2_path: Path) -> None:
    with open_gguf(smollm2_path) as file:
        assert file.metadata.string("general.architecture") == "llama"
        assert file.metadata.array_length("tokenizer.ggml.tokens") == 49152
        assert file.tensor("token_embd.weight").shape == (49152, 576)
        assert file.size_bytes == smollm2_path.stat().st_size


@pytest.mark.real_model
def test_gemma3_opens(gemma3_path: Path) -> None:
    with open_gguf(gemma3_path) as file:
        assert file.metadata.string("general.architecture") == "gemma3"
        tokens = file.metadata.string_bytes("tokenizer.ggml.tokens")
        assert len(tokens) == len(file.metadata.floats("tokenizer.ggml.scores")) == 262144
        assert tokens[2] == b"<bos>"
        assert file.tensor("token_embd.weight").shape == (262144, 640)
