"""How fast, how much memory, how exact: a head's training step beside its peers, in one run.

contenders  what is measured: ours, torch.compile, the peers, and the floor of the three matrix products
measure     time by interleaved rounds; memory by the kernel's high-water mark in a fresh process
head        the tables, the files and the picture
ranks       the same step with the classes on several processes, which crew starts and asks
slices      on a GPU, what one of many ranks would compute
"""
