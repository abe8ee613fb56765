"""`localllm tokenize`: text to token ids."""

from __future__ import annotations

import json
import sys

import click

from .completion import ModelName
from .options import Text


def shown_piece(piece: bytes) -> str:
    """A token's text in quotes; bytes that are only part of a letter as escapes."""
    try:
        return repr(piece.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(piece)[1:]


@click.command()
@click.argument("model", type=ModelName())
@click.argument("text", type=Text(), required=False)
@click.option("--special", is_flag=True, help="Read the text of control tokens as those tokens.")
@click.option("--bos/--no-bos", default=None, help="Put the begin-of-text token in front; default: as the model wants.")
@click.option("--ids", is_flag=True, help="Print only the ids, on one line.")
@click.option("--count", is_flag=True, help="Print only the number of tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object with ids and pieces.")
def tokenize(
    model: str, text: str | None, special: bool, bos: bool | None, ids: bool, count: bool, as_json: bool
) -> None:
    """Show how MODEL splits TEXT (or standard input) into tokens."""
    from localllm.tokenizer import Tokenizer

    from .loading import resolve
    from .run import read_prompt

    content = text if text is not None else read_prompt(None, None)
    tokenizer = Tokenizer.from_gguf(resolve(model).path)
    tokens = tokenizer.encode(content, add_bos=bos, parse_special=special)
    pieces = tokenizer.pieces(tokens)
    if as_json:
        shown = [piece.decode("utf-8", "backslashreplace") for piece in pieces]
        click.echo(json.dumps({"count": len(tokens), "ids": tokens, "pieces": shown}, ensure_ascii=False))
    elif count:
        click.echo(len(tokens))
    elif ids:
        click.echo(" ".join(map(str, tokens)))
    else:
        for token, piece in zip(tokens, pieces, strict=True):
            click.echo(f"{token:>7}  {shown_piece(piece)}")
    sys.stdout.flush()
