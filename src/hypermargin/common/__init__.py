"""Helpers that several packages of the application share, one module per subject. The core uses none of them.

environment      versions, the time, cores, and the device that "auto" means
arrays           types of arrays by what is in them, and arrays of whatever holds numbers
plain            checks of plain data from JSON files, before anything is done with it
text             a line for whoever watches, the first line of an error, settings written as name:key=value
tensor_files     tensors and arrays in .safetensors, .pt, .npy and .npz files, without running anything in them
optimizer_state  which entries of an optimiser's state have one row per class
union_find       groups of what is connected by pairs
"""
