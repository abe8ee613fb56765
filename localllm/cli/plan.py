"""`localllm plan`: what would go where, how fast that would be, and what more or less memory would change."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from .completion import ModelName
from .options import Size

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt

    from localllm.kernels.kv_layout import KVType
    from localllm.placement import Machine, ModelParts, Plan

STEP = 2 * 2**30  # what "2 GB more" and "2 GB less" mean


def facts_of(plan: Plan) -> dict[str, Any]:
    """A plan as JSON facts; other tools rely on planned_bytes and predicted_decode_tokens_per_second."""
    return {
        "shape": plan.shape,
        "budget_bytes": plan.budget,
        "planned_bytes": {"gpu": plan.gpu_bytes, "cpu": plan.cpu_bytes},
        "predicted_decode_tokens_per_second": plan.prediction.decode,
        "predicted_prefill_tokens_per_second": plan.prediction.prefill,
        "head_on_gpu": plan.head_on_gpu,
        "layers": [
            {"attention_on_gpu": p.attention, "gate_on_gpu": p.gate, "units_on_gpu": p.units} for p in plan.layers
        ],
        "reasons": plan.reasons,
    }


def alternatives(parts: ModelParts, machine: Machine, budget: int) -> list[tuple[str, Plan]]:
    """The same model with 2 GB more and less of GPU memory, and without a GPU."""
    from localllm.placement import plan_placement

    choices = [("2 GiB more", budget + STEP), ("2 GiB less", budget - STEP), ("no GPU", 0)]
    return [(name, plan_placement(parts, machine, vram=size)) for name, size in choices if size >= 0]


def frequencies_of(path: Path, layers: int) -> list[npt.NDArray[np.float64] | None] | None:
    """Activation rates by layer from the model's profile, if there is one that fits; a line on stderr if not."""
    from localllm.errors import ConfigurationError
    from localllm.profiles import load_profile, profile_path

    where = profile_path(path)
    if not where.exists():
        return None
    try:
        profile = load_profile(where, path)
    except ConfigurationError as error:
        click.echo(f"planned without a profile: {error}", err=True)
        return None
    return [profile.frequency(layer) for layer in range(layers)]


@click.command()
@click.argument("model", type=ModelName())
@click.option("--vram", type=Size(), help="GPU memory to plan for, such as 6GiB; default: what is free now.")
@click.option("--context", "-c", type=click.IntRange(1), default=4096, show_default=True, help="Tokens of context.")
@click.option("--kv", type=click.Choice(["f16", "f32", "q8", "q4", "q2"]), default="f16", help="How KV is stored.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def plan(model: str, vram: int | None, context: int, kv: KVType, as_json: bool) -> None:
    """Show what of MODEL would sit on the GPU and on the CPU, why, and the speed to expect. Loads nothing."""
    from localllm.gguf_io import open_gguf
    from localllm.hardware import detect
    from localllm.models import load_spec
    from localllm.placement import measure_machine, parts_of, plan_placement
    from localllm.store import resolve_model

    from .predictor import saved_lines

    path = resolve_model(model).path
    hardware = detect()
    machine = measure_machine(hardware)
    with open_gguf(path) as file:
        spec = load_spec(file, context=context)
        frequencies = frequencies_of(path, len(spec.layers))
        parts = parts_of(spec, context=context, kv_type=kv, frequencies=frequencies)
        chosen = plan_placement(parts, machine, vram=vram)
        others = alternatives(parts, machine, chosen.budget) if chosen.budget else []
    if as_json:
        extra = {name: facts_of(other) for name, other in others}
        facts = {"model": model, **facts_of(chosen), "profiled": frequencies is not None}
        click.echo(json.dumps({**facts, "alternatives": extra}))
        return
    mib = 2**20
    click.echo(f"{model}: {parts.nbytes / mib:.0f} MiB with KV for {context} tokens ({kv})")
    fits = "fits" if chosen.cpu_bytes <= machine.cpu_bytes else "does NOT fit"
    available = machine.cpu_bytes / mib
    click.echo(f"CPU: {chosen.cpu_bytes / mib:.0f} MiB, {fits} into the {available:.0f} MiB that are available")
    if chosen.budget:
        known = any(card.bandwidth is not None for card in hardware.cards)
        speed = f"{machine.gpu_bandwidth / 1e9:.0f} GB/s ({'by its driver' if known else 'supposed'})"
        budget = f"{chosen.gpu_bytes / mib:.0f} MiB of the {chosen.budget / mib:.0f} MiB budget"
        click.echo(f"GPU: {budget}, on a card whose memory reads {speed}")
        for reason in chosen.reasons:
            click.echo(f"  - {reason}")
    else:
        click.echo(f"GPU: none ({hardware.gpu_note or 'no memory was given'}); everything runs on the CPU")
    click.echo(f"expected: {chosen.prediction.decode:.1f} tok/s writing, {chosen.prediction.prefill:.0f} tok/s reading")
    for line in saved_lines(path):
        click.echo(line)
    for name, other in others:
        click.echo(f"  with {name}: {other.prediction.decode:.1f} tok/s writing")
