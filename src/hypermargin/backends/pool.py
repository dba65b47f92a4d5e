"""The columns that rivals are counted in, of a block of rows: the rows themselves, or their classes."""

from __future__ import annotations

from torch import Tensor

from hypermargin.centers import Centers, from_text


class Pool:
    """What the centers of a class make of it, where a class is one rival; `text` is "" where every row is one."""

    def __init__(self, text: str, local: Tensor, length: Tensor | None) -> None:
        self.centers: Centers | None = from_text(text) if text else None
        self.length = length
        self.K = K = 1 if self.centers is None else self.centers.count
        self.labels = local if K == 1 else local[:, ::K] // K  # in the columns that rivals are counted in

    def columns(self, block: slice) -> slice:
        """Return the columns that rivals of these rows are counted in."""
        return slice(block.start // self.K, block.stop // self.K)

    def score(self, z: Tensor) -> Tensor:
        """Return z by column from z by row; the same tensor where each row is a column."""
        if self.centers is None:
            return z
        z = self.centers.by_class(z)
        return self.centers.score(z, self.length) if self.centers.soft else z.amax(-1)

    def spread(self, P: Tensor, z: Tensor) -> Tensor:
        """Return the gradient by row, in z's memory, from that by column."""
        if self.centers is None:
            return P
        by_class = self.centers.by_class(z)
        if self.centers.soft:
            by_class.copy_(self.centers.spread(P, by_class, self.length))
        elif z.is_cuda:
            nearest = by_class.argmax(-1, keepdim=True)
            by_class.zero_().scatter_(-1, nearest, P.unsqueeze(-1))
        else:  # an argmax of so few takes the CPU as long as the product
            by_class.eq_(by_class.amax(-1, keepdim=True))
            if by_class.count_nonzero() != P.numel():  # of equally near ones it is the first
                by_class.mul_(by_class.cumsum(-1) <= 1)
            by_class.mul_(P.unsqueeze(-1))
        return z

    def by_length(self, P: Tensor, z: Tensor) -> Tensor | None:
        """Return what the gradient by |f| gets by way of "soft"'s weights, (N, 1)."""
        if self.centers is None or not self.centers.soft or self.length is None:
            return None
        each = self.centers.slope_by_length(self.centers.by_class(z), self.length)
        return (P * each).sum(1, keepdim=True)
