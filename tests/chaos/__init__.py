"""Moves and faults, made up by a seed, and an independent checker of what clients saw."""
