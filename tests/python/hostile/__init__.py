"""Malformed and hostile models: one row each, with the kind of error and what its message must say."""

from hostile import conformance, files, graphs, operators, runs, tensors

LOAD_CASES = [*files.CASES, *graphs.CASES, *tensors.CASES, *operators.CASES, *conformance.CASES]
RUN_CASES = runs.CASES
