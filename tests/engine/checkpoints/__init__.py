"""Tests of metpipe.engine.checkpoints."""
