"""The worker's commands of `ccs`; importing them loads neither torch nor Celery."""

from ccs_workers.cli.demo import demo_command, up_command
from ccs_workers.cli.models import models_command
from ccs_workers.cli.verify import verify_command
from ccs_workers.cli.worker import worker_command

__all__ = ["demo_command", "models_command", "up_command", "verify_command", "worker_command"]
