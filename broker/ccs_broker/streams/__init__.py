"""Streams: a job's replayable log and its bell, put together into one sequence without holes."""

from ccs_broker.streams.follower import Follower
from ccs_broker.streams.records import LogPage, bell_ends_stream, event_from_bell, event_from_log, read_log

__all__ = ["Follower", "LogPage", "bell_ends_stream", "event_from_bell", "event_from_log", "read_log"]
