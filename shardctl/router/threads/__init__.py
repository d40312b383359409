"""The router for threads."""

# `make docs` writes this from router/tasks: do not edit.
