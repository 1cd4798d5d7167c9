"""Rows of the operator suite: see README.md."""
