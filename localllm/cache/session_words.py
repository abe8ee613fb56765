"""How a saved session differs from what it is to be continued with, in words for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

from localllm.kernels.kv_layout import KVType

if TYPE_CHECKING:
    from collections.abc import Mapping


def differences(saved: Mapping[str, Any], here: Mapping[str, Any], bound_name: str) -> list[str]:
    """What the fields of two `SessionKey`s say that is not the same; `saved` is untrusted.

    `bound_name`: what the user calls the field `window` here.
    """
    changed = {name for name in here if name not in saved or saved[name] != here[name]}
    told = []
    if "model" in changed or "groups" in changed:
        told.append("another model, or with another version of it")
    if "device" in changed:
        told.append("another device")
    if "kv_type" in changed:
        told.append(_kv_type(saved.get("kv_type"), here["kv_type"]))
    elif "seal_tokens" in changed:
        told.append("a quantised KV cache whose blocks have another size")
    if "window" in changed:
        told.append(_bound(saved.get("window"), here["window"], bound_name))
    if "selective" in changed:
        told.append("another KV policy (--kv-policy)")
    return told or ["settings that this version does not know"]


def _kv_type(saved: object, here: str) -> str:
    known = saved if saved in get_args(KVType) else "another type"
    return f"a KV cache of {known} (here {here}, see --kv)"


def _bound(saved: object, here: int | None, name: str) -> str:
    now = "a context that ends when it is full" if here is None else f"a {name} of {here} tokens"
    if isinstance(saved, int) and 0 < saved < 2**40:
        return f"a context or window of {saved} tokens that slides (here {now})"
    return f"a context that ends when it is full (here {now} that slides)"
