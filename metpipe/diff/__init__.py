"""The diff: whether two forwards give the same bits, and whether the evidence counts.

Pure: data to data. It drives no model; the stages feed it logits, digests and timings.
"""
