"""Lowerings of aten operators, one file per family. Every module in this folder is loaded by the dispatcher."""
