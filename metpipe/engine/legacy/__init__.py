"""Hand-written forwards, one file per model family: plain Python that calls one kernel per op."""
