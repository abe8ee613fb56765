"""Activation profiles: which neurons fire and which experts are chosen, counted over a text."""

from .measure import measure_profile
from .record import ActivationProfile, LayerProfile, load_profile, profile_path, save_profile

__all__ = ["ActivationProfile", "LayerProfile", "load_profile", "measure_profile", "profile_path", "save_profile"]
