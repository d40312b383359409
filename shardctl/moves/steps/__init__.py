"""The steps of a move, one file each."""
