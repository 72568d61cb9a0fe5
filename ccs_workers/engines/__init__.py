"""Engines: loaded models behind one protocol, each in a process of its own; torch is imported only below here."""
