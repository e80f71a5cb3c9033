"""Checkpoints: what a training changes → bytes → what it was."""
