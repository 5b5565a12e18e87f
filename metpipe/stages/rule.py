from metpipe.pipeline import StageContext


def run_rule(context: StageContext) -> dict[str, object]:
    raise RuntimeError("being built")
