"""Lowerings of aten operators: a file or folder for each family, each operator beside its gradient. The dispatcher
loads all of them."""
