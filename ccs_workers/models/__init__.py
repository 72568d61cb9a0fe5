"""Models: the file that declares them, the folders prepared from wheels, and the checks on both."""

from ccs_workers.models.check import CheckReport, ProbeResult, check
from ccs_workers.models.modelfile import ModelFile, load_model_file
from ccs_workers.models.spec import ModelSpec

__all__ = ["CheckReport", "ModelFile", "ModelSpec", "ProbeResult", "check", "load_model_file"]
