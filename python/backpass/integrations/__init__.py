"""Backpass inside other people's training loops. See docs/integrations.md."""
