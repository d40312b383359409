"""Which servers are nodes: one comes, goes, gets another name, or is lost."""
