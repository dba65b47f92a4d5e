"""Where margins matter: thousands of characters in many typefaces as classes. See benchmarks/README.md."""
