"""Moving shards: plan, steps, cutover, prune."""
