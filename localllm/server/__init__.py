"""An HTTP server for many clients at once, with OpenAI's interface. Import its modules only where it runs."""
