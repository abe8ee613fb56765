"""Chat templates: Jinja in a sandbox with limits, whose output remembers what the template itself wrote.

`localllm.chat_template` is the way in; everything here loads jinja2.
"""
