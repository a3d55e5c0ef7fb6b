"""The cases of tests/storm.py: what disturbs runs, and what must be left afterwards."""
