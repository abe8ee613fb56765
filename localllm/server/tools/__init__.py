"""Calls of tools: how families of models write them, and how they are asked for."""
