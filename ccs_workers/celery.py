"""What ``celery -A ccs_workers worker|flower|inspect`` finds: the app, built from the environment."""

from ccs_workers.consume.app import build_app
from ccs_workers.settings import worker_settings_from_environment

app = build_app(worker_settings_from_environment())
