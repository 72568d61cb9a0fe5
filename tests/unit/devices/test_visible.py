"""What ``CUDA_VISIBLE_DEVICES`` means, on a machine of four GPUs and on one with MIG."""

from __future__ import annotations

import pytest

from ccs_workers.devices.cards import Card
from ccs_workers.devices.visible import names_by_index, visible_devices

FOUR = tuple(Card(uuid=f"GPU-{name}") for name in ("aa00", "ab11", "cc22", "dd33"))
DIVIDED = (
    Card(uuid="GPU-aa00", mig=True, instances=("MIG-11", "MIG-12")),
    Card(uuid="GPU-bb11"),
    Card(uuid="GPU-cc22", mig=True),
)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, "aa00 ab11 cc22 dd33"),
        ("", ""),
        ("-1", ""),
        ("NoDevFiles", ""),
        ("none", ""),
        ("0", "aa00"),
        ("2,3", "cc22 dd33"),
        ("3,0", "dd33 aa00"),
        (" 1 , 2 ", "ab11 cc22"),
        ("+1,02", "ab11 cc22"),
        # The list ends at its first invalid entry.
        ("1,-1,2", "ab11"),
        ("1,,2", "ab11"),
        ("7", ""),
        ("0,7,1", "aa00"),
        ("0,x,1", "aa00"),
        # Leading digits count, as C reads numbers.
        ("1gpu2,2ampere", "ab11 cc22"),
        ("GPU-ab", "ab11"),
        ("GPU-dd33,GPU-aa", "dd33 aa00"),
        # Two GPUs begin so: it names none.
        ("GPU-a", ""),
        ("GPU-cc,GPU-a,GPU-dd", "cc22"),
        ("gpu-ab", ""),
        ("GPU-ff", ""),
        ("MIG-x", ""),
        # Repeating a device hides all.
        ("0,1,0", ""),
        ("1,01", ""),
        ("GPU-ab,GPU-ab11", ""),
        # Kinds of entries don't mix.
        ("0,GPU-ab11", "aa00"),
        ("GPU-ab11,0", "ab11"),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(listed, expected):
    assert visible_devices(FOUR, listed) == tuple(f"GPU-{name}" for name in expected.split())


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        (None, "MIG-11 MIG-12 GPU-bb11"),
        ("MIG-12", "MIG-12"),
        ("MIG-12,MIG-11", "MIG-12 MIG-11"),
        ("MIG-12,MIG-19,MIG-11", "MIG-12"),
        ("MIG-1", ""),
        ("MIG-11,MIG-11", ""),
        ("MIG-11,GPU-bb11", "MIG-11"),
        # A divided GPU stands for its first instance; without one it is no device.
        ("0", "MIG-11"),
        ("GPU-aa00", "MIG-11"),
        ("1,0", "GPU-bb11 MIG-11"),
        ("2,1", ""),
        ("GPU-cc22", ""),
    ],
)
def test_a_gpu_in_mig_mode_is_its_instances(listed, expected):
    assert visible_devices(DIVIDED, listed) == tuple(expected.split())


def test_an_instance_may_be_the_beginning_of_another():
    cards = (Card(uuid="GPU-a", mig=True, instances=("MIG-GPU-a/1/0", "MIG-GPU-a/1/01")),)
    assert visible_devices(cards, "MIG-GPU-a/1/0") == ("MIG-GPU-a/1/0",)


@pytest.mark.parametrize(
    ("listed", "matters"), [(None, True), ("1,0", True), ("GPU-ab", False), ("", False), ("MIG-1", False)]
)
def test_the_order_of_gpus_matters_where_they_are_counted(listed, matters):
    assert names_by_index(listed) is matters
