"""Stands for modules of the original's inside that its users import, but of which Backpass has no part: asking for one
of their names says so (`backpass._ort.absent`)."""
