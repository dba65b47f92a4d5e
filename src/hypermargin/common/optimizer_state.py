"""Which entries of an optimiser's state belong to single elements of a parameter, and so to single classes."""

from __future__ import annotations

# Entries of the parameter's own shape, for the optimisers of torch.optim: SGD, Adam, AdamW, Adamax, RMSprop,
# Adadelta, Adagrad, NAdam, RAdam. What is not listed is one for all classes, like the number of steps, or cannot
# be cut by class, like Adafactor's factors. All begin at 0, so that 0 is right for a new class, but for Adagrad's
# "sum", which begins at its initial_accumulator_value.
PER_ELEMENT = frozenset({
    "momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "grad_avg", "acc_delta",
    "sum",
})  # fmt: skip
