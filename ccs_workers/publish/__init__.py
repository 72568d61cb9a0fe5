"""The publisher: what engines say goes into the jobs' logs and rings their bells."""
