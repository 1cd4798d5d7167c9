"""Reading and writing by index, and orders along an axis."""
