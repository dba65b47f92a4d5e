"""Run the tests of the GPU where pytest is not installed, several at once: they need torch, numpy and Triton alone.

    PYTHONPATH=src python tests/on_gpu.py                     everything
    PYTHONPATH=src python tests/on_gpu.py --jobs 12 rules     what has "rules" in its name, by twelve processes
    PYTHONPATH=src python tests/on_gpu.py --list              what there is

Most of the time Triton compiles, on the CPU, so as many processes as cores are good. A test that takes fixtures or
pytest.raises is left to pytest.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "core"), HERE, os.path.dirname(HERE)]
MODULES = ("test_cuda", "test_fused", "test_fused_rules")


def tests(parts):
    """(module, test, case) of every test without a fixture; `case` is None for one that is not run over several."""
    found = []
    for module in MODULES:
        for name, test in vars(importlib.import_module(module)).items():
            if not name.startswith("test_") or not callable(test) or "raises" in test.__code__.co_names:
                continue
            cases = getattr(test, "cases", None)
            if test.__code__.co_argcount != (cases is not None):
                continue
            found += [(module, name, case) for case in cases or [None]]
    return [each for each in found if not parts or any(part in in_words(each) for part in parts)]


def in_words(each):
    module, name, case = each
    return f"{module}.{name}" + (f"[{case}]" if case is not None else "")


def work(queue, results):
    """Run tests until one fails: an error on the GPU may leave nothing usable in its process."""
    while (each := queue.get()) is not None:
        module, name, case = each
        results.put((each, os.getpid(), "began", 0.0))
        start, said = time.monotonic(), ""
        try:
            getattr(importlib.import_module(module), name)(*[case] * (case is not None))
        except BaseException:
            said = traceback.format_exc()
        results.put((each, os.getpid(), said, time.monotonic() - start))
        if said:
            return


def run(every, jobs, seconds):
    """Print a line per test; return whether all passed in time."""
    context = multiprocessing.get_context("spawn")
    queue, results = context.Queue(), context.SimpleQueue()
    for each in every:
        queue.put(each)
    for _ in range(jobs):
        queue.put(None)
    workers, left, failed, begun = [], set(every), [], {}
    end = time.monotonic() + seconds
    while left and time.monotonic() < end:
        for dead in [w for w in workers if not w.is_alive()]:
            workers.remove(dead)
            each = begun.pop(dead.pid, None)
            if each in left and results.empty():  # ended without a word
                left.discard(each)
                failed.append(each)
                print(f"FAILED {in_words(each)}: its process ended with {dead.exitcode}", flush=True)
        while len(workers) < min(jobs, len(left)):
            workers.append(context.Process(target=work, args=(queue, results)))
            workers[-1].start()
        if results.empty():
            time.sleep(0.05)
            continue
        each, pid, said, took = results.get()
        if said == "began":
            begun[pid] = each
            continue
        begun.pop(pid, None)
        left.discard(each)
        failed += [each] * bool(said)
        print(f"{'FAILED' if said else 'passed'} {in_words(each)} {took:.0f} s\n{said}".rstrip(), flush=True)
    for worker in workers:
        worker.kill()
    print(f"{len(every) - len(left) - len(failed)} passed, {len(failed)} failed, {len(left)} not run in time")
    for each in failed:
        print("FAILED", in_words(each))
    return not failed and not left


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="parts of the names of the tests to run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--seconds", type=float, default=3600, help="when to give up")
    parser.add_argument("--list", action="store_true", help="only print the names")
    given = parser.parse_args()
    every = tests(given.parts)
    if not every:
        parser.error(f"no test has {' or '.join(given.parts)} in its name.")
    if given.list:
        print("\n".join(map(in_words, every)))
    elif not run(every, given.jobs, given.seconds):
        sys.exit(1)


if __name__ == "__main__":
    main()
