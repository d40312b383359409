"""Hosts: run a command here or, later, elsewhere."""
