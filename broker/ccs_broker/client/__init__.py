"""The client: submits jobs, follows their streams, looks at queues and workers, and at what was quarantined."""

from ccs_broker.client.aio import AsyncClient
from ccs_broker.client.core import BulkJob, SubmitOptions
from ccs_broker.client.handles import AsyncJobHandle, JobHandle
from ccs_broker.client.pipeline import AsyncPipeline, AsyncPipelineHandle, Pipeline, PipelineHandle
from ccs_broker.client.records import (
    DeadJob,
    DeadJobDetails,
    DeadLetter,
    DeadLetterDetails,
    DeadReport,
    JobState,
    JobStatus,
    Purged,
    QueueDepth,
    QueueReport,
    TenantShare,
    WorkerInfo,
)
from ccs_broker.client.sync import Client

__all__ = [
    "AsyncClient",
    "AsyncJobHandle",
    "AsyncPipeline",
    "AsyncPipelineHandle",
    "BulkJob",
    "Client",
    "DeadJob",
    "DeadJobDetails",
    "DeadLetter",
    "DeadLetterDetails",
    "DeadReport",
    "JobHandle",
    "JobState",
    "JobStatus",
    "Pipeline",
    "PipelineHandle",
    "Purged",
    "QueueDepth",
    "QueueReport",
    "SubmitOptions",
    "TenantShare",
    "WorkerInfo",
]
