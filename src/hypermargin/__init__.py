"""Softmax with a margin."""
