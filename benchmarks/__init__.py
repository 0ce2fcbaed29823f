"""Speed, memory and quality against the peers: one file a workload, each ends in one JSON line."""
