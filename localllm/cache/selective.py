"""The selective KV policies by name, as users write them: `h2o:256` or `sparq:16:128`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from localllm.errors import ConfigurationError
from localllm.kernels.selective import HeavyHitters, QuerySparse

if TYPE_CHECKING:
    from localllm.kernels.selective import SelectivePolicy

MOST_TOKENS = 2**20
HINT = "write h2o:TOKENS[:RECENT] or sparq:COMPONENTS:TOKENS[:RECENT], such as h2o:512 or sparq:16:128"


def parse_kv_policy(text: str) -> SelectivePolicy:
    """`h2o:TOKENS[:RECENT]` (recent: half) or `sparq:COMPONENTS:TOKENS[:RECENT]` (recent: a quarter).

    Raises ConfigurationError for anything else.
    """
    name, *rest = text.strip().lower().split(":")
    if not all(number.isascii() and number.isdigit() and len(number) < 8 for number in rest):
        raise ConfigurationError(f"the KV policy {text!r} has something else than numbers in it", hint=HINT)
    numbers = [int(number) for number in rest]
    if name == "h2o" and len(numbers) in (1, 2):
        tokens = numbers[0]
        recent = numbers[1] if len(numbers) == 2 else tokens // 2
        if not 2 <= tokens <= MOST_TOKENS or not 1 <= recent < tokens:
            raise ConfigurationError(
                f"h2o keeps 2 or more tokens, of which 1 to all but one are the latest, not {tokens} and {recent}",
                hint=HINT,
            )
        return HeavyHitters(tokens, recent)
    if name == "sparq" and len(numbers) in (2, 3):
        components, tokens = numbers[:2]
        recent = numbers[2] if len(numbers) == 3 else tokens // 4
        if not components >= 1 or not 1 <= tokens <= MOST_TOKENS or not 0 <= recent <= tokens:
            raise ConfigurationError(
                f"sparq reads 1 or more components and tokens, of which some may be the latest, not {components}, "
                f"{tokens} and {recent}",
                hint=HINT,
            )
        return QuerySparse(components, tokens, recent)
    raise ConfigurationError(f"there is no KV policy {text!r}", hint=HINT)
