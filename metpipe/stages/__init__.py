"""The work of each stage: the only place where config, engine, diff, memory and report meet."""
