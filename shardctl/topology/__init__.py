"""The topology: what should be, as one file says it."""
