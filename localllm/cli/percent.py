"""Shares on the command line."""

from __future__ import annotations

import math

import click


class Percent(click.ParamType[float]):
    """A share written as 2% or 0.02, from above 0 to 100%; a bare 1 could mean either and is refused."""

    name = "percent"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share as a fraction."""
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = math.nan
        if share == 1 and not text.endswith("%"):
            self.fail(f"{value!r} could be 1% or 100%: write it with the sign", param, ctx)
        if not 0 < share <= 1:
            self.fail(f"{value!r} is no share such as 2% (above 0, at most 100%)", param, ctx)
        return share
