"""What the codes of losses with a memory, and of SoftTriple, give: loss, gradients and state.

The numbers come from the classes themselves, executed outside this project in float64 on the CPU.
"""

import pytest
import torch
from test_published_later import LABELS, C, D, batch, close, row_sums, wave

from hypermargin import create_head


def step(head, x):
    """Losses, and what stands for the gradients, of a step on the batch."""
    x = x.detach().requires_grad_()
    head.zero_grad()
    losses = head(x, LABELS)
    losses.sum().backward()
    return losses.detach(), row_sums(x.grad), row_sums(head.weight.grad)


def head_and_features(name, **words):
    head = create_head(name, D, C, reduction="none", dtype=torch.float64, **words).double()
    x, W = batch(head.settings.centers.count)
    with torch.no_grad():
        head.weight.copy_(W)
    return head, x


BACKENDS = pytest.mark.parametrize("backend", ["dense", "chunked"])


@BACKENDS
def test_kappafaces_margins_after_an_epoch(backend):
    """Leminhbinh0209/KappaFace 5158b2f, with T = 0.4 and a memory of zeros: no older feature has a share."""
    seen = [4, 2, 3, 2, 5, 2, 3, 2, 4]
    y = torch.arange(C).repeat_interleave(torch.tensor(seen))
    epoch = wave(len(y), lambda i: torch.cos(0.3 * i**2)) + 1.5 * batch()[1][y]
    head, x = head_and_features("kappaface", counts=seen, beyond="none", backend=backend)
    head(epoch, y)
    head.end_epoch()
    close(head.row_margin.weights, KAPPAFACE[0])
    for ours, theirs in zip(step(head, x), KAPPAFACE[1:], strict=True):
        close(ours, theirs)


KAPPAFACE = (
    (0.4151027059488, 0.4099003240848, 0.485393493054, 0.4857753486164, 0.4215064294716, 0.6013345319793,
     0.4956027931008, 0.5497394896216, 0.4285100839715),
    (3.837070874175e-05, 0.6018160440825, 43.54089158966, 41.07540800586, 60.78018159919, 94.24219507121,
     116.5278722083, 121.5936574073),
    (-1.20428114355e-05, -0.1097131832614, -1.46948632178, 1.344619308036, -1.912845841024, -0.6775265750111,
     -0.1275952616364, -2.717504300365),
    (25.42012019638, -6.092668012958, 24.83584044677, -37.66167018954, -9.1983175512, -4.586061423221,
     16.86046587445, 0.4944656519281, 3.699963005598),
)  # fmt: skip


@BACKENDS
def test_vpls_second_step(backend):
    """deepinsight/insightface 7fadd42, recognition/vpl, on unit features; the losses without its clamp at 1e-30.

    Rows of the classes seen in the first step are mixed, the other two are not; the last of two features stays.
    """
    head, x = head_and_features("vpl", beyond="none", after=1, within=1, backend=backend)
    step(head, x)
    for ours, theirs in zip(step(head, x), VPL, strict=True):
        close(ours, theirs)
    close(row_sums(head.view_state.last)[:7], LAST_FEATURES)
    assert head.view_state.ago.tolist() == [0] * 7 + [2**24] * 2


VPL = (
    (0.0007327374529314, 4.8215971732, 37.93453486243, 40.43315048622, 57.39730797124, 92.41621243853,
     116.086397085, 118.6171728293),
    (-0.0001991402146402, 0.08648176404277, -0.4569534389032, 1.368332681426, -2.290859343981, -0.5606142961949,
     -0.1343069775572, -3.473510960608),
    (25.49894200834, -3.030496953077, 17.7916274404, -42.84837496483, 2.942535374843, -6.807125126984,
     21.40570854489, 6.682267074477, 0.7627432579147),
)  # fmt: skip
LAST_FEATURES = (
    -0.8008100887276, -0.06948580623757, -0.2243267930359, 0.5513173320397, 0.5671121873459, -0.2568698024887,
    -0.09643952203423,
)  # fmt: skip


@BACKENDS
def test_soft_triple_with_the_distance_of_its_centers(backend):
    """idstcv/SoftTriple cc1c32d, a row at a time, so that each has the distance of the centers in its loss."""
    head, x = head_and_features("soft-triple", centers=3, backend=backend)
    for ours, theirs in zip(step(head, x), SOFT_TRIPLE, strict=True):
        close(ours, theirs)


SOFT_TRIPLE = (
    (0.278502909297, 0.1635704253661, 1.529034717867, 14.61300378493, 21.18237138697, 2.580578491151, 18.453352959,
     19.31809964412),
    (0.002883970900311, 0.02681540054228, 0.558090926197, -0.1682967359289, 0.02156518683845, -0.132963606276,
     0.07545996948523, -4.177569505178),
    (-0.5554505002442, 6.596471939003, -0.4060393160123, -1.847335323417, -0.01322737788357, 0.01507732093872,
     14.12427431541, -0.07109015237406, 2.354742978706, -10.05837074116, -0.1562146927443, -3.55133073196,
     0.7874245245369, 0.1867076398386, 2.634543113102, 0.107782916546, -1.147882420234, 2.353771614828,
     0.008900474791959, 0.2508745455431, -2.802476505933, 5.132379536884, -0.05341142768738, -0.5672030575684,
     -13.59621423951, -0.8891947715139, 0.5915963612427),
)  # fmt: skip
