"""What tests/on_gpu.py would run; that it runs is seen on a GPU."""

import on_gpu
from test_fused_rules import HEADS


def test_it_finds_the_tests_that_need_no_pytest():
    found = [on_gpu.in_words(each) for each in on_gpu.tests([])]
    assert {f"test_fused_rules.test_every_rule_against_float64[{name}]" for name in HEADS} <= set(found)
    assert "test_cuda.test_tf32_is_not_used" in found
    assert not any("a_rule_of_your_own" in name for name in found)  # it says pytest.raises
    assert all("slices" in on_gpu.in_words(each) for each in on_gpu.tests(["slices"]))
