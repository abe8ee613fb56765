"""Screens over the chat."""
