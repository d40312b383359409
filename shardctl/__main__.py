"""Make `python -m shardctl` the same as `shardctl`."""

from shardctl.cli.app import main

if __name__ == "__main__":
    main()
