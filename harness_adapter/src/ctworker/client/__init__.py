"""The worker as a client sees it: the wire, jobs and results, checkpoints, the worker's own process."""
