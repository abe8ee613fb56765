"""Runs a model on two halves at once: what is read most on a device with little memory, the rest on the CPU."""
