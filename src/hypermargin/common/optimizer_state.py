"""Which entries of an optimiser's state belong to single elements of a parameter, and so to single classes."""

from __future__ import annotations

from torch import Tensor

# Entries of the parameter's own shape, for the optimisers of torch.optim: SGD, Adam, AdamW, Adamax, RMSprop,
# Adadelta, Adagrad, NAdam, RAdam. What is not listed is one for all classes, like the number of steps, or cannot
# be cut by class, like Adafactor's factors. All begin at 0, so that 0 is right for a new class, but for Adagrad's
# "sum", which begins at its initial_accumulator_value.
PER_ELEMENT = frozenset({
    "momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "grad_avg", "acc_delta",
    "sum",
})  # fmt: skip

# Entries with one number for all of a parameter in torch's optimisers, and one for each row in SampledAdamW.
PER_ROW = frozenset({"step"})


def goes_by_row(name: str, value: Tensor, parameter: Tensor) -> bool:
    """Tell whether an entry has numbers for each row of its parameter, and fits it."""
    if name in PER_ROW:
        return value.dim() == 1 and value.shape == parameter.shape[:1]
    return name in PER_ELEMENT and value.shape == parameter.shape
