"""Benchmarks: ratios measured in one run, against the stock part or the raw part beside ours; never timed tests."""
