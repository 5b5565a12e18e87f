"""The `met` accounting: what the engine of that name allocates for a serve, term by term.

It is held to boots of that engine. Sections named in docstrings are of its description, memory.md.
"""
