"""What came after ArcFace on Omniglot: clean, with wrong labels, with a long tail. See benchmarks/README.md."""
