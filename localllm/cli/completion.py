"""`localllm completion`: what a shell needs to complete commands, options and models' names."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, FishComplete, ShellComplete, ZshComplete

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "_LOCALLLM_COMPLETE"

# Click has a function for bash, which takes words as bash cuts them: at the colon of a model's name, too. This one
# takes the line up to the cursor, and gives back what comes behind the last colon, which is all that bash replaces.
BASH = """\
_localllm_completion() {
    local line="${COMP_LINE:0:COMP_POINT}" current before answer kind value
    local -a words
    read -ra words <<< "$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    current="${words[-1]}"
    before=""
    [[ "$current" == *:* && "$COMP_WORDBREAKS" == *:* ]] && before="${current%:*}:"
    answer=$(env COMP_WORDS="$line" COMP_CWORD=$((${#words[@]} - 1)) VARIABLE=bash_complete "$1")
    COMPREPLY=()
    while IFS=, read -r kind value; do
        if [[ "$kind" == dir ]]; then
            compopt -o dirnames
        elif [[ "$kind" == file ]]; then
            compopt -o default
        elif [[ "$kind" == plain ]]; then
            COMPREPLY+=("${value#"$before"}")
        fi
    done <<< "$answer"
}
complete -o nosort -F _localllm_completion localllm
""".replace("VARIABLE", VARIABLE)


class ModelName(click.ParamType[str]):
    """A model's name or file. Completes to models that are here, those of the catalogue, and files."""

    name = "model"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Any word: what it names is looked up when the command runs."""
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Names that begin so, and files."""
        found = [CompletionItem(name) for name in dict.fromkeys(_names()) if name.startswith(incomplete)]
        return [*found, CompletionItem(incomplete, type="file")]


def _names() -> Iterator[str]:
    """Pulled models, then the catalogue; nothing is said of a store or catalogue that cannot be read."""
    from localllm.errors import LocalLLMError
    from localllm.paths import Paths
    from localllm.store import Store, load_catalogue

    paths = Paths.from_environment()
    with contextlib.suppress(LocalLLMError, OSError):
        yield from (manifest.name for manifest in Store(paths).models())
    with contextlib.suppress(LocalLLMError, OSError):
        yield from (entry.name for entry in load_catalogue(paths))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion of SHELL, to be read by its start-up file.

    bash (4.4 or newer): eval "$(localllm completion bash)" in ~/.bashrc. zsh: the same with zsh in ~/.zshrc, after
    compinit. fish: localllm completion fish > ~/.config/fish/completions/localllm.fish
    """
    from .main import cli

    if shell == "bash":
        click.echo(BASH, nl=False)
        return
    kind: type[ShellComplete] = ZshComplete if shell == "zsh" else FishComplete
    click.echo(kind(cli, {}, "localllm", VARIABLE).source())
