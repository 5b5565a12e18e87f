# What a person types while working on metpipe. `.ci/run` does the same from nothing.

# Format, lint, types, layers.
check:
    ruff format .
    ruff check .
    mypy --strict metpipe
    lint-imports
    codespell .

# The tests of the CPU parts.
test *ARGS:
    python -m pytest -q -n 2 {{ARGS}}

# The tests that need an NVIDIA GPU.
test-gpu *ARGS:
    python -m pytest -q -m gpu {{ARGS}}

# Everything, in a clean environment.
ci:
    .ci/run
