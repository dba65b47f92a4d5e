"""Every head of the family on real data, each with the same search: see benchmarks/README.md."""
