"""The command line: the only place that knows typer and rich."""
