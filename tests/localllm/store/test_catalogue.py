"""The catalogue: shipped entries, user overrides, mistakes that are named, edits that keep comments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from localllm.errors import ConfigurationError
from localllm.paths import Paths
from localllm.sampling import SamplingParameters
from localllm.store import load_catalogue
from localllm.store.catalogue import shipped_catalogue_file
from localllm.store.catalogue_edit import parse_value, remove_entry, set_entry
from localllm.store.entry import _OPTION_TYPES
from localllm.store.reference import HubReference, PackageReference


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(config=tmp_path, data=tmp_path, cache=tmp_path / "cache")


def test_the_shipped_catalogue_is_complete(paths: Paths) -> None:
    catalogue = load_catalogue(paths)
    assert catalogue.default == "smollm2:135m"
    hub = [entry for entry in catalogue if isinstance(entry.source, HubReference)]
    assert len(hub) >= 8
    for entry in catalogue:
        assert entry.licence
        assert entry.size_bytes
        assert entry.quant
        assert entry.parameters
        assert entry.description
        if isinstance(entry.source, HubReference):
            assert entry.source.file is not None
    families = {name.partition(":")[0] for name in catalogue.entries}
    assert {"smollm2", "gemma3", "qwen3", "llama3.2", "mistral", "phi4-mini", "gpt-oss"} <= families
    assert any(entry.sparse for entry in catalogue)


def test_the_two_models_of_the_package_index(paths: Paths) -> None:
    catalogue = load_catalogue(paths)
    small, parts = catalogue.find("smollm2:135m"), catalogue.find("gemma3:270m")
    assert small is not None
    assert parts is not None
    assert isinstance(parts.source, PackageReference)
    assert len(parts.source.packages) == len(parts.members) == 4
    assert (small.size_bytes, parts.size_bytes) == (98362432, 253113024)


def test_sampling_keys_are_those_of_the_sampler() -> None:
    assert set(_OPTION_TYPES["sampling"]) <= set(SamplingParameters.__dataclass_fields__)


def test_names_aliases_and_families_find_entries(paths: Paths) -> None:
    paths.catalogue_file.write_text('[models."my:1b"]\nsource = "hf:a/b/c.gguf"\naliases = ["mine"]\n')
    catalogue = load_catalogue(paths)
    for name in ("my:1b", "MY:1B", "mine", "my"):
        found = catalogue.find(name)
        assert found is not None
        assert found.name == "my:1b"
    assert catalogue.find("nothing") is None
    assert [entry.name for entry in catalogue.search("a/b")] == ["my:1b"]


def test_the_users_file_is_merged_key_by_key(paths: Paths) -> None:
    paths.catalogue_file.write_text(
        'default = "qwen3:4b"\n[models."qwen3:4b"]\ncontext = 8192\nsampling = { temperature = 0.1 }\n'
    )
    catalogue = load_catalogue(paths)
    entry = catalogue.find("qwen3:4b")
    assert entry is not None
    assert (catalogue.default, entry.context, entry.licence) == ("qwen3:4b", 8192, "Apache-2.0")
    assert entry.sampling["temperature"] == 0.1
    assert entry.sampling["top_k"] == 20


HEAD = '[models."x:1b"]\n'
SOURCE = 'source = "hf:a/b/c.gguf"\n'
MISTAKES = [
    ("nonsense", "cannot be read"),
    ("modles = 1", "did you mean models"),
    ("schema = 2", "schema 2"),
    ("models = 3", "must hold tables"),
    ("[models]\nx = 3", "must hold tables"),
    ("default = 3", "default"),
    ('default = "smolm2"', "did you mean smollm2"),
    (HEAD, "source: missing"),
    (HEAD + 'source = "x"', "is no source"),
    (HEAD + 'source = "/etc/passwd"', "is no source"),
    (HEAD + 'source = "hf:a"', "hf:OWNER/REPO"),
    (HEAD + SOURCE + "licnce = 1", "did you mean licence"),
    (HEAD + SOURCE + "licence = 1", "licence: must be a text"),
    (HEAD + SOURCE + 'size_bytes = "5"', "whole number"),
    (HEAD + SOURCE + "size_bytes = -5", "whole number"),
    (HEAD + SOURCE + 'sha256 = "12"', "64 hexadecimal"),
    (HEAD + SOURCE + 'gated = "yes"', "true or false"),
    (HEAD + SOURCE + "sampling = { temprature = 1 }", "did you mean temperature"),
    (HEAD + SOURCE + 'sampling = { temperature = "hot" }', "a number"),
    (HEAD + SOURCE + "sampling = { top_k = true }", "whole number"),
    (HEAD + SOURCE + "sampling = 1", "must be a table"),
    (HEAD + SOURCE + 'members = "x"', "list of texts"),
    (HEAD + 'source = "pypi:a,b"\nmembers = ["x"]', "as many members"),
    ('[models."../x"]\n' + SOURCE, "catalogue name"),
    (HEAD + SOURCE + 'aliases = ["qwen3:4b"]', "names another model"),
]


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_mistakes_are_named_with_file_entry_and_key(paths: Paths, text: str, said: str) -> None:
    paths.catalogue_file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_catalogue(paths)
    assert said in str(caught.value)


def test_edits_keep_comments_and_never_write_a_mistake(paths: Paths) -> None:
    text = '# mine\n[models."my:1b"] # one\nsource = "hf:a/b/c.gguf" # there\n'
    paths.catalogue_file.write_text(text)
    set_entry(paths, "my:1b", {"licence": "MIT", "sampling.temperature": 0.5}, create=False)
    changed = paths.catalogue_file.read_text()
    for comment in ("# mine", "# one", "# there"):
        assert comment in changed
    entry = load_catalogue(paths).entries["my:1b"]
    assert (entry.licence, entry.sampling) == ("MIT", {"temperature": 0.5})
    for values, create in (({"licnce": "x"}, False), ({"size_bytes": -1}, False), ({"source": "hf:a/b"}, True)):
        with pytest.raises(ConfigurationError):
            set_entry(paths, "my:1b", values, create=create)
        assert paths.catalogue_file.read_text() == changed
    with pytest.raises(ConfigurationError, match="did you mean my:1b"):
        set_entry(paths, "my:1c", {"licence": "x"}, create=False)
    set_entry(paths, "my:1b", {"licence": None}, create=False)
    assert load_catalogue(paths).entries["my:1b"].licence is None
    remove_entry(paths, "my:1b")
    assert "my:1b" not in load_catalogue(paths).entries
    with pytest.raises(ConfigurationError, match="has no model"):
        remove_entry(paths, "my:1b")


def test_a_first_entry_makes_the_file(paths: Paths) -> None:
    set_entry(paths, "my:1b", {"source": "hf:a/b/c.gguf"}, create=True)
    set_entry(paths, "qwen3:4b", {"context": 4096}, create=False)
    catalogue = load_catalogue(paths)
    assert catalogue.entries["qwen3:4b"].context == 4096
    assert catalogue.entries["my:1b"].source == HubReference("a", "b", file="c.gguf")


def test_values_as_toml_spells_them() -> None:
    assert [parse_value(text) for text in ("5", "0.5", "true", '"5"', "plain text", '["a"]')] == [
        5, 0.5, True, "5", "plain text", ["a"],
    ]  # fmt: skip


def test_a_catalogue_holds_no_code() -> None:
    text = shipped_catalogue_file().read_text()
    assert not re.search(r"\b(import|exec|eval|os\.|subprocess)\b", text)
