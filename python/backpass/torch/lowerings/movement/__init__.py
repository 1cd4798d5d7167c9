"""Views, copies and shapes: what is moved, not what is computed."""
