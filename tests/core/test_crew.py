"""The threads of the chunked backend: the same bits for every number of them, and no harm to anybody else."""

import multiprocessing
import os
import signal
import threading
import time

import pytest
import torch

import hypermargin as hm
from hypermargin.backends import Chunked
from hypermargin.backends.crew import in_order
from hypermargin.functional import margin_softmax
from hypermargin.margins import ArcFace
from hypermargin.rules import MVSoftmax, SphereFace2


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def _gradients(**options):
    torch.manual_seed(0)
    x, W, b = (torch.randn(*shape, requires_grad=True) for shape in ((32, 24), (700, 24), (700,)))
    y = torch.randint(0, 700, (32,))
    options = {"scale": 64.0, "bias": b, "backend": Chunked(chunk=64)} | options
    loss = margin_softmax(x, W, y, ArcFace(), **options)
    return [loss.detach(), *torch.autograd.grad(loss, (x, W, b))]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 300.0, "label_smoothing": 0.1},
        {"rule": MVSoftmax(t=0.2), "backend": Chunked(chunk=64, keep=0)},
        {"rule": SphereFace2()},
        {"unit_features": False, "unit_weight": False},
    ],
    ids=["bounded", "maximum", "rule", "softplus", "free"],
)
def test_the_number_of_threads_changes_no_bit(options, threads):
    threads(1)
    alone = _gradients(**options)
    for number in (2, 3, 5):
        threads(number)
        for one, several in zip(alone, _gradients(**options), strict=True):
            assert torch.equal(one, several)
        assert torch.get_num_threads() == number


def test_blocks_are_finished_in_their_order_by_several_threads_that_split_nothing():
    seen, finished = set(), []

    def work(number):
        time.sleep(0.002 * (number % 3))
        seen.add((threading.get_ident(), torch.get_num_threads()))
        return number

    in_order(20, 3, work, finished.append)
    assert finished == list(range(20))
    assert len(seen) == 3
    assert {number for _, number in seen} == {1}


def test_torch_keeps_its_number_of_threads_for_threads_to_come(threads):
    threads(4)
    in_order(9, 7, lambda number: number, lambda _: None)  # more than any test before has asked for
    found = []
    later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert found == [4]
    assert torch.get_num_threads() == 4


def test_an_error_in_a_block_is_raised_and_the_next_call_works():
    def fails(number):
        if number == 5:
            raise ValueError("block 5")
        return number

    with pytest.raises(ValueError, match="block 5"):
        in_order(1000, 3, fails, lambda _: None)
    finished = []
    in_order(4, 3, lambda number: number, finished.append)
    assert finished == [0, 1, 2, 3]


def test_ctrl_c_stops_the_blocks():
    done = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background

    def work(number):
        if number == 3:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        done.append(number)

    try:
        with pytest.raises(KeyboardInterrupt):
            in_order(10_000, 2, work, lambda _: None)
    finally:
        signal.signal(signal.SIGINT, before)
    at_the_end = len(done)
    time.sleep(0.05)
    assert len(done) == at_the_end < 1000


def test_a_forked_process_has_threads_of_its_own(threads):
    threads(2)
    expected = float(_gradients()[0])  # the parent has used its threads
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=lambda: there.send(float(_gradients()[0])))
    child.start()
    child.join(60)
    alive = child.is_alive()
    child.kill()
    assert not alive
    assert here.poll()
    assert here.recv() == expected


def test_it_works_in_inference_mode_and_leaves_no_graph(threads):
    threads(2)
    x, W, y = torch.randn(8, 6), torch.randn(400, 6, requires_grad=True), torch.randint(0, 400, (8,))
    plain = margin_softmax(x, W, y, ArcFace(), scale=64.0, backend=Chunked(chunk=50))
    with torch.inference_mode():
        inside = margin_softmax(x, W, y, ArcFace(), scale=64.0, backend=Chunked(chunk=50))
    assert plain.requires_grad
    assert not inside.requires_grad
    assert torch.equal(plain, inside)


def test_small_batches_still_make_several_blocks():
    assert "Blocks of 512 classes" in hm.explain_backend(256, 3000)
