"""The client: submits jobs, follows their streams, and looks at queues and workers."""

from ccs_broker.client.aio import AsyncClient, AsyncJobHandle
from ccs_broker.client.core import BulkJob, SubmitOptions
from ccs_broker.client.records import JobState, JobStatus, QueueDepth, QueueReport, WorkerInfo
from ccs_broker.client.sync import Client, JobHandle

__all__ = [
    "AsyncClient",
    "AsyncJobHandle",
    "BulkJob",
    "Client",
    "JobHandle",
    "JobState",
    "JobStatus",
    "QueueDepth",
    "QueueReport",
    "SubmitOptions",
    "WorkerInfo",
]
