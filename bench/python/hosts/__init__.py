"""Several machines out of one: network namespaces joined by links of a known rate (scripts/hosts_check)."""
