"""Imported by old scripts for a repair of torch's exporter, which Backpass does not use."""
