"""The sandbox: real servers on this machine for every node that owns shards."""
