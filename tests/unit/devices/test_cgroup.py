"""Limits of cgroups, read from made-up machines of every kind."""

from __future__ import annotations

import os

import pytest

from ccs_workers.devices.cgroup import cgroup_bounds

MIB = 1 << 20
UNLIMITED = 9223372036854771712
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate"
V2_SIDE_MOUNT = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"
V1_ROW = "4:memory:"
OTHER_ROWS = ("9:name=systemd:/", "3:cpuset,cpu:/elsewhere")


@pytest.fixture
def machine(tmp_path):
    """Write a machine: rows of ``/proc/self/cgroup``, rows of mounts, and the files of its groups."""

    def made(rows, mounts, groups):
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text("".join(f"{row}\n" for row in rows))
        (tmp_path / "proc/self/mountinfo").write_text("".join(f"{row}\n" for row in mounts))
        for folder, files in groups.items():
            path = tmp_path / "sys/fs/cgroup" / folder
            path.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (path / f"memory.{name}").write_text(f"{content}\n")
        return tmp_path

    return made


def v1(limit, used=0, cache=0, hierarchy=1):
    return {
        "limit_in_bytes": limit,
        "usage_in_bytes": used,
        "stat": f"inactive_file 1\ntotal_inactive_file {cache}\ntotal_active_file 77",
        "use_hierarchy": hierarchy,
    }


def v2(limit, used=0, cache=0, high="max"):
    return {
        "max": limit,
        "high": high,
        "current": used,
        "stat": f"anon 5\ninactive_file {cache}\nactive_file 77",
    }


def numbers(root):
    return [(bound.limit_bytes, bound.used_bytes, bound.cache_bytes) for bound in cgroup_bounds(root)]


def test_v2(machine):
    root = machine(
        ["0::/user.slice/app.scope"],
        [V2_MOUNT],
        {
            # The real root has no limit of its own.
            "": {"stat": "anon 1"},
            "user.slice": v2(4000 * MIB, 3000 * MIB, 500 * MIB),
            "user.slice/app.scope": v2(1000 * MIB, 700 * MIB, 200 * MIB),
            "user.slice/other.scope": v2(10 * MIB),
        },
    )
    assert numbers(root) == [
        (1000 * MIB, 500 * MIB, 200 * MIB),
        (4000 * MIB, 2500 * MIB, 500 * MIB),
    ]


def test_v2_high_is_a_limit_too(machine):
    groups = {"app": v2("max", 10, high=600), "": v2(900, 20, high="max")}
    assert numbers(machine(["0::/app"], [V2_MOUNT], groups)) == [(600, 10, 0), (900, 20, 0)]


def test_v2_without_limits(machine):
    assert numbers(machine(["0::/app"], [V2_MOUNT], {"app": v2("max"), "": {}})) == []


def test_v2_namespaced(machine):
    """In a container the group looks like the root, and its mount point has the limit."""
    assert numbers(machine(["0::/"], [V2_MOUNT], {"": v2(512 * MIB, 64 * MIB, 4 * MIB)})) == [
        (512 * MIB, 60 * MIB, 4 * MIB)
    ]


def test_v1(machine):
    root = machine(
        [*OTHER_ROWS, f"{V1_ROW}/a/b"],
        [V1_MOUNT, V1_MOUNT.replace("memory", "cpuset")],
        {"memory": v1(UNLIMITED, 9), "memory/a": v1(300, 120, 20), "memory/a/b": v1(200, 50, 10)},
    )
    # "Unlimited" is a number there, which is above that of any machine.
    assert numbers(root) == [(200, 40, 10), (300, 100, 20), (UNLIMITED, 9, 0)]


def test_v1_beside_other_controllers(machine):
    mount = V1_MOUNT.replace("rw,memory", "rw,cpu,memory").replace(
        "/sys/fs/cgroup/memory", "/sys/fs/cgroup/both"
    )
    assert numbers(machine(["4:cpu,memory:/a"], [mount], {"both/a": v1(200)})) == [(200, 0, 0)]


def test_v1_without_hierarchy_the_parents_limits_mean_nothing(machine):
    groups = {"memory": v1(1), "memory/a": v1(300, hierarchy=0), "memory/a/b": v1(200)}
    assert numbers(machine([f"{V1_ROW}/a/b"], [V1_MOUNT], groups)) == [(200, 0, 0)]


def test_v1_in_a_container(machine):
    """The path is that of the machine; the mount shows only our part of it, as its own root."""
    mount = V1_MOUNT.replace(" / ", " /docker/abc ", 1)
    root = machine([f"{V1_ROW}/docker/abc/inner"], [mount], {"memory": v1(300), "memory/inner": v1(200)})
    assert numbers(root) == [(200, 0, 0), (300, 0, 0)]


def test_of_two_mounts_the_one_that_shows_more_is_read(machine):
    part = V1_MOUNT.replace(" / ", " /a ", 1).replace("/sys/fs/cgroup/memory", "/sys/fs/cgroup/part")
    groups = {"part": v1(200), "memory": v1(100), "memory/a": v1(200)}
    assert numbers(machine([f"{V1_ROW}/a"], [part, V1_MOUNT], groups)) == [(200, 0, 0), (100, 0, 0)]


def test_hybrid(machine):
    """Memory is in the first version's hierarchy; the second's has no files of it."""
    root = machine(
        [f"{V1_ROW}/a", "0::/b"], [V1_MOUNT, V2_SIDE_MOUNT], {"memory/a": v1(200, 50), "unified/b": {}}
    )
    assert numbers(root) == [(200, 50, 0)]


@pytest.mark.parametrize("top", ["/..", "/../..", "/elsewhere"])
def test_a_mount_of_another_namespace_counts_at_its_point(machine, top):
    mount = V2_MOUNT.replace(" / ", f" {top} ", 1)
    assert numbers(machine(["0::/"], [mount], {"": v2(500, 100)})) == [(500, 100, 0)]


def test_a_process_outside_the_namespace_counts_at_the_mount_point(machine):
    assert numbers(machine(["0::/../../other"], [V2_MOUNT], {"": v2(500, 100)})) == [(500, 100, 0)]


def test_a_group_that_is_not_to_be_seen_leaves_those_above(machine):
    assert numbers(machine(["0::/a/b/c"], [V2_MOUNT], {"a": v2(500, 100)})) == [(500, 100, 0)]


def test_mount_points_may_hold_spaces(machine):
    mount = V2_MOUNT.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/with\\040space ")
    assert numbers(machine(["0::/a"], [mount], {"with space/a": v2(500)})) == [(500, 0, 0)]


@pytest.mark.parametrize("rows", [[], ["", "x", "0:", "::", "0::", "4:memory"], ["0::/a"]])
@pytest.mark.parametrize(
    "mounts", [[], ["", "-", " - ", "1 2 3 - cgroup2", "a b c d e f - cgroup2", V2_SIDE_MOUNT]]
)
def test_files_of_another_form_mean_no_limit(machine, rows, mounts):
    assert numbers(machine(rows, mounts, {})) == []


def test_no_files_mean_no_limit(tmp_path):
    assert cgroup_bounds(tmp_path) == []


def test_usage_without_its_statistics_counts_whole(machine):
    for_cache = {"max": 500, "current": 300}
    assert numbers(machine(["0::/a"], [V2_MOUNT], {"a": for_cache})) == [(500, 300, 0)]


@pytest.mark.parametrize(
    "statistics", ["", "inactive_file", "inactive_file x", "inactive_file -5", "inactive"]
)
def test_statistics_of_another_form_count_as_no_cache(machine, statistics):
    group = {"max": 500, "current": 300, "stat": statistics}
    assert numbers(machine(["0::/a"], [V2_MOUNT], {"a": group})) == [(500, 300, 0)]


def test_cache_never_makes_usage_negative(machine):
    """The two files are read one after the other."""
    assert numbers(machine(["0::/a"], [V2_MOUNT], {"a": v2(500, 100, 130)})) == [(500, 0, 100)]


@pytest.mark.parametrize("text", ["garbage", "", "-1", "1e9", "12 MB", "٣"])
@pytest.mark.parametrize("name", ["max", "high"])
def test_a_limit_that_cannot_be_read_is_unknown(machine, name, text):
    (bound,) = cgroup_bounds(machine(["0::/a"], [V2_MOUNT], {"a": v2(500, 100) | {name: text}}))
    assert bound.limit_bytes is None
    assert bound.reason == f"memory.{name} can't be read: {text!r}"


@pytest.mark.parametrize("text", ["garbage", "", "max"])
def test_usage_that_cannot_be_read_is_unknown(machine, text):
    (bound,) = cgroup_bounds(machine(["0::/a"], [V2_MOUNT], {"a": v2(500) | {"current": text}}))
    assert (bound.limit_bytes, bound.used_bytes) == (500, None)
    assert bound.reason == f"memory.current can't be read: {text!r}"


def test_a_missing_usage_is_unknown(machine):
    (bound,) = cgroup_bounds(machine(["0::/a"], [V2_MOUNT], {"a": {"max": 500}}))
    assert (bound.limit_bytes, bound.used_bytes) == (500, None)
    assert "memory.current" in bound.reason


def test_a_file_that_is_not_permitted_is_unknown(machine):
    root = machine(["0::/a"], [V2_MOUNT], {"a": {"current": 100}})
    # A folder of that name refuses to be read for everybody, root included.
    os.mkdir(root / "sys/fs/cgroup/a/memory.max")
    (bound,) = cgroup_bounds(root)
    assert bound.limit_bytes is None
    assert bound.reason == "memory.max can't be read: 'Is a directory'"


def test_one_group_has_one_key_and_two_have_two(machine):
    root = machine(["0::/a/b"], [V2_MOUNT], {"a": v2(500), "a/b": v2(400)})
    inner, outer = cgroup_bounds(root)
    assert inner.key != outer.key
    (root / "proc/self/cgroup").write_text("0::/a\n")
    assert [bound.key for bound in cgroup_bounds(root)] == [outer.key]
