"""`init` and `migrate`: bring the fleet to what the topology has."""
