"""Fetching one file whole and verified: ranged chunks in parallel, a journal to resume by, a hash over all of it."""

from .client import Client, NetworkOptions, RemoteFile
from .engine import FetchedFile, Transfer

__all__ = ["Client", "FetchedFile", "NetworkOptions", "RemoteFile", "Transfer"]
