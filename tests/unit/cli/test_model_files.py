"""Preparing models elsewhere than on a terminal: a line where a stage begins, and one where it ends."""

from __future__ import annotations

import io

from rich.console import Console

from ccs_workers.cli.model_files import prepare_shown


def test_each_stage_begins_and_ends_once(monkeypatch, tmp_path):
    def prepare(target, names, *, progress):
        for done in (0, 5, 10, 10, 10):
            progress("m: download", done, 10)
        progress("other: waiting", 0, 0)
        progress("m: download", 10, 10)
        progress("m: convert", 1, 1)

    monkeypatch.setattr("ccs_workers.models.prepare.prepare", prepare)
    console = Console(file=io.StringIO(), width=80)
    prepare_shown(tmp_path, None, console=console)
    assert console.file.getvalue().splitlines() == [
        "m: download ...",
        "m: download: done",
        "other: waiting ...",
        "m: convert ...",
        "m: convert: done",
    ]
