"""Parts of a screen."""
