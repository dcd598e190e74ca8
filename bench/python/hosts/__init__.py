"""Emulates several machines on one, with network namespaces and rate-limited links (scripts/hosts_check)."""
