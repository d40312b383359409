"""Hosts: run a command, put a file, here or on another machine over SSH."""
