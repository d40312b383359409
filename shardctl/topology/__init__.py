"""The topology: the cluster as it should be, from one file."""
