"""What goes where: sizes of a model's parts, a machine's speeds, and the plan that minimises the time of a token."""

from .cost import Prediction, predict
from .machine import Machine, measure_machine
from .parts import FeedForwardParts, LayerParts, ModelParts, parts_of
from .planner import Plan, plan_placement

__all__ = [
    "FeedForwardParts",
    "LayerParts",
    "Machine",
    "ModelParts",
    "Plan",
    "Prediction",
    "measure_machine",
    "parts_of",
    "plan_placement",
    "predict",
]
