"""Rollouts: migrations in waves, with checks between them, and their way back."""
