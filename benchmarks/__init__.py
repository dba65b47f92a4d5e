"""How fast, how much memory, how exact, beside the peers: run from a checkout, as `python -m benchmarks.NAME`.

head, fused, ranks, slices, partial_fc, overhead   the loss and its head
loader, step                                       training
evaluate, shallow, heads                           evaluation, the scikit-learn estimator, every head on real data

What they share:

command     flags and error messages
contenders  one training step of every implementation beside ours
measure     time by interleaved rounds; memory by the kernel's high-water mark in a fresh process
crew        processes that do as they are told, for ranks
record      versions, device and date; the stored JSON and Markdown
plot        the picture of head's sweep
"""
