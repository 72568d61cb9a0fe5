"""What Celery's tracer leaves of a task on our workers."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, signals
from celery.app.trace import build_tracer
from celery.exceptions import Ignore

from ccs_broker.errors import InternalError, JobFailedError
from ccs_workers.consume.app import follow_tasks
from ccs_workers.consume.task import ContainedTask

if TYPE_CHECKING:
    from collections.abc import Iterator


class Full(MemoryError):
    """One that a weak reference may follow."""


class Medium(bytearray):
    """Something large that came with the task."""


@pytest.fixture
def app() -> Iterator[Celery]:
    made = Celery("traced", broker="memory://", task_cls=ContainedTask, set_as_current=False)
    follow_tasks()
    yield made
    for signal, uid in ((signals.task_prerun, "ccs-begin"), (signals.task_postrun, "ccs-end")):
        assert signal.disconnect(dispatch_uid=uid)
    made.close()


@pytest.fixture
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
@pytest.mark.parametrize("kind", [JobFailedError, Ignore, Full])
def test_an_error_goes_as_soon_as_celery_is_through_with_it(app: Celery, kind: type[Exception]) -> None:
    """In a cycle it would wait, with all that its frames hold, for a collection of everything there is."""
    left: list[weakref.ref[Any]] = []

    def error() -> Exception:
        made = kind("told")
        left.append(weakref.ref(made))
        return made

    def failing(_medium: Medium) -> None:
        raise error()

    # An error that isn't expected is logged with its traceback, and pytest keeps that.
    task = app.task(name="failing", shared=False, ignore_result=True, throws=(JobFailedError, InternalError))(
        failing
    )

    def run() -> None:
        medium = Medium()
        left.append(weakref.ref(medium))
        build_tracer("failing", task, app=app)("task-1", (medium,), {}, {"delivery_info": {}})

    run()
    assert len(left) == 2
    assert [one() for one in left] == [None, None]
