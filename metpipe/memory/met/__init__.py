"""The `met` accounting: what the engine of that name allocates for a serve, term by term.

It is held to boots of that engine. Sections in docstrings are those of that engine's own account of
its memory.
"""
