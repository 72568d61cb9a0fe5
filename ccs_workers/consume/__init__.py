"""The queue side of a worker: Celery on the threads pool, one slot a thread that waits for an engine."""
