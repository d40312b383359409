"""Poolers: what they offer, their admin console, the file that shardctl owns, the guard."""
