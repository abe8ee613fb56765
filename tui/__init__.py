"""The terminal chat."""

import os

# A key is drawn at the next frame: 60 a second would add 17 ms to every echo. Nothing is drawn where nothing changed.
os.environ.setdefault("TEXTUAL_FPS", "200")
