"""One training job from beginning to end: prepare or take up again, train, measure."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hypermargin.common.environment import cores
from hypermargin.common.text import Say, say
from hypermargin.data import Data, DataError, Pairs, Scaling, Split, decode_once, split
from hypermargin.data.exclusion import excluded, without
from hypermargin.files import write_text
from hypermargin.training import by_counts, checkpoint, paths, watch
from hypermargin.training.announce import announce
from hypermargin.training.budget import decide as decide_budget
from hypermargin.training.build import (
    build_head,
    read_again,
    read_data,
    resolve,
    resolve_head,
)
from hypermargin.training.config import Config, given_in, read_config, resumed
from hypermargin.training.ending import Finish, hand_over, of_pairs, save_thresholds
from hypermargin.training.evaluation import MOST, check_same
from hypermargin.training.loop import Trainer
from hypermargin.training.models import create_model
from hypermargin.training.monitor import Monitor
from hypermargin.training.pairs import UNNAMED, familiar, read_pairs
from hypermargin.training.process import left_as_found, make_repeatable
from hypermargin.training.ranks import Ranks, joined
from hypermargin.training.run import (
    About,
    RunError,
    describe,
    find,
    locked,
    read_split,
    save_split,
)
from hypermargin.training.start import first_weights, start_from, start_head_from
from hypermargin.training.trust import code_in, refusal, sign, state_directory
from hypermargin.training.verdict import judge


@dataclass(frozen=True)
class Result:
    """The result of a run: the numbers on the test part (and on the pairs), and where the run is."""

    folder: Path
    step: int
    metrics: dict[str, dict[str, float]]  # "test", and each file of pairs
    why: str = ""  # that step and no other
    warnings: tuple[str, ...] = ()  # what tells that it is not trained


def train(
    config: Config,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    data: Data | None = None,
    network: nn.Module | None = None,
    quiet: bool = False,
    trust: bool = False,
    finish: Finish | None = None,
) -> Result:
    """Train in the folder `out`, or go on with the run there if `resume`.

    `data` and `network` of your own take the place of those that `config` names; a resumed run needs them again.
    A run that is there may name code for its network (MODULE:FUNCTION). To go on with it, this user must have begun
    it, or `config` names the same, or `trust` is True.

    `finish` is called when everything is written, in a run of one process; what it raises is said, no more.

    Ctrl-C saves and raises Interrupted. A loss that is not finite raises DivergedError.

    Under torchrun all processes call it alike and train together: each holds a slice of the classes and takes its
    share of every batch. All must see the folder `out`. A run may be resumed by any number of them. A process group
    of your own is used and left to you: destroy it before the program ends, or gloo may abort it.
    """
    with joined(config) as ranks:
        return _train(config, Path(out), ranks, resume, data, network, quiet, trust, finish)


def _train(
    config: Config,
    folder: Path,
    ranks: Ranks,
    resume: bool,
    data: Data | None,
    network: nn.Module | None,
    quiet: bool,
    trust: bool,
    finish: Finish | None,
) -> Result:
    with contextlib.ExitStack() as stack:
        tell: Say = (lambda _: None) if quiet or ranks.rank else say
        old = ranks.lead(lambda: _enter(folder, resume, stack))
        ranks.together(lambda: _check_seen(folder))
        stack.enter_context(left_as_found())
        found_at = {k: v for k, v in paths.absolutes(vars(config)).items() if k != "data" or data is None}
        config = dataclasses.replace(config, **found_at)
        if old:
            saved = read_config(folder)
            if network is None and not trust:
                ranks.lead(lambda: check_code(folder, config))
            config = resumed(saved, given_in(config))
        if config.threads and ranks.world == 1:  # of several processes each has what torchrun gave it
            torch.set_num_threads(config.threads)
        if config.precision != "float32":
            # oneDNN's AMX bf16 kernels die with SIGILL on some virtual CPUs; this keeps to what they have.
            os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
        data = data or (read_again if old else read_data)(config, tell)
        workers = config.workers if config.workers is not None else min(8, cores())
        data = decode_once(data, memory=config.memory, workers=workers, on_bad=config.on_bad, say=tell)
        verify = _read_pairs(config, data.shape)  # an error in them should come now, not after days
        trainer = (_again if old else _anew)(config, folder, data, network, ranks, tell)
        places = {name: getattr(config, name) for name in paths.PATHS}
        if old and any(getattr(saved, name) != place for name, place in places.items()):
            text = dataclasses.replace(saved, **places).to_toml()
            ranks.lead(lambda: write_text(folder / "config.toml", text))  # found there from now on
        if trainer.config.deterministic:
            make_repeatable()
        return _run(trainer, verify, quiet, finish)


def check_code(folder: Path, given: Config) -> None:
    """Refuse code that a run names, unless `given` names the same or this user did when the run was begun."""
    saved = read_config(folder)
    why = refusal(folder, (saved.model, saved.model_set), (given.model, given.model_set))
    if why is not None:
        raise RunError(why)


def _check_seen(folder: Path) -> None:
    if not (folder / ".lock").exists():
        raise RunError(f"{folder} is not the same folder for all processes. Give an --out that every machine sees.")


def _enter(folder: Path, resume: bool, stack: contextlib.ExitStack) -> bool:
    """Make the folder this run's own until the end; tell whether there is a run in it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".lock").touch()
    stack.enter_context(locked(folder))
    old = (folder / "run.json").exists()  # written last
    if old and not resume:
        raise RunError(f"{folder} holds a run already. Add --resume to go on with it, or choose another --out.")
    return old


def _anew(config: Config, folder: Path, data: Data, network: nn.Module | None, ranks: Ranks, tell: Say) -> Trainer:
    """Start a new run: decide what was left open, write it down."""
    config = resolve(config, data, network, sharded=ranks.world > 1)
    parts = split(data, config.split, validation=config.validation, test=config.test, seed=config.seed)
    if config.exclude is not None:
        left_out = excluded(Path(config.exclude), data)
        before = len(parts.train)
        parts = without(parts, left_out, data)
        tell(f"left out of training: {before - len(parts.train):,} of {before:,} samples, as {config.exclude} says")
    config, advised = resolve_head(config, len(parts.classes))
    config, budget = decide_budget(config, len(parts.train), len(parts.classes))
    scaling = Scaling.fit(data, parts.train, as_they_are=config.model == "none")
    about = describe(data, parts, scaling, network)
    if len(set(ranks.gathered(about.data["fingerprint"]))) > 1:
        raise RunError(f"{data.name} is not the same for all processes. Give every machine the same data.")
    trainer = _trainer(config, folder, data, parts, about, network, ranks)
    if config.init:
        start_from(trainer.network, first_weights(trainer.network, Path(config.init)), config.init)
    if config.init_head:
        start_head_from(trainer.head, Path(str(config.init)), about.classes)
    announce(trainer, bool(advised), budget, tell)

    def write() -> None:
        write_text(folder / "config.toml", config.to_toml())
        if code_in(config.model, config.model_set) and not sign(folder, config.model, config.model_set):
            tell(f"{state_directory()} cannot be written, so --resume will need --trust for {config.model}.")
        save_split(folder / "split.npz", parts)
        write_text(folder / "run.json", about.to_json())

    ranks.lead(write)
    return trainer


def _again(config: Config, folder: Path, data: Data, network: nn.Module | None, ranks: Ranks, tell: Say) -> Trainer:
    """Take up the run that is there, at its last whole checkpoint."""
    about = About.read(folder)
    ranks.together(lambda: check_same(folder, about, data, "Restore the data, or start a new run."))
    parts = read_split(folder / "split.npz", len(data), len(data.classes))
    trainer = _trainer(config, folder, data, parts, about, network, ranks)
    kept = folder / "checkpoints"
    found = checkpoint.load_last(kept, tell, held=trainer.held, ranks=ranks)
    ranks.lead(lambda: checkpoint.forget_after(kept, found.step if found else -1))
    if found is None:
        tell(f"{folder} has no checkpoint yet: starting at the beginning.")
        return trainer
    trainer.resume(found)
    ranks.lead(lambda: checkpoint.prune(kept, config.keep, trainer.choice.step))
    tell(f"resuming {folder} at step {trainer.step} of {trainer.total}")
    return trainer


def _trainer(
    config: Config,
    folder: Path,
    data: Data,
    parts: Split,
    about: About,
    network: nn.Module | None,
    ranks: Ranks,
) -> Trainer:
    _seed(config.seed)
    if network is None:
        network = create_model(str(config.model), data.shape, config.dim, **config.model_set)
    counts = by_counts.counts_of(data, parts)
    head = build_head(config, len(parts.classes), counts=counts, sharded=ranks.world > 1)
    trainer = Trainer(config, data, parts, about.scaling, network, head, folder, ranks)
    if ranks.rank:  # the networks are the same; what they drop in training should not be
        _seed(config.seed + 1_000_003 * ranks.rank)
    return trainer


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _run(trainer: Trainer, verify: dict[str, Pairs], quiet: bool, finish: Finish | None) -> Result:
    """Train to the end, then measure the best weights on the test part and the pairs."""
    config, folder, ranks = trainer.config, trainer.folder, trainer.ranks
    monitor: Monitor = Monitor(
        folder,
        total=trainer.total,
        step=trainer.step,
        tensorboard=config.tensorboard,
        quiet=quiet,
        watched=ranks.rank == 0,
    )
    checkpoint.note(monitor.say)
    with monitor.running():
        trainer.fit(monitor)
        if doubt := watch.doubt_of_lengths(trainer.head.margin, trainer.seen.get("length_angle", 0.0)):
            monitor.say(f"warning: {doubt}")
        choice = copy.copy(trainer.choice)
        said: list[str] = []
        best = find(folder, "best", allow_older=True, say=said.append, held=trainer.held, ranks=ranks)
        for text in said:
            monitor.say(text)
        trainer.resume(best)
        verdict = judge(trainer, choice)
        for doubt in verdict.warnings:
            monitor.say(f"warning: {doubt}")
        metrics: dict[str, dict[str, float]] = {}
        if len(trainer.split.test):
            if trainer.split.open_set and len(trainer.split.test) > MOST:
                monitor.say(f"of the test part's {len(trainer.split.test):,} samples {MOST:,} are compared")
            try:
                metrics["test"] = trainer.evaluate(trainer.split.test)
            except DataError:
                raise
            except ValueError as error:
                monitor.say(f"the test part cannot be measured: {error}")
        for name, pairs in verify.items():
            metrics[name] = of_pairs(trainer, pairs)
            known = familiar(pairs, About.read(folder).classes)
            monitor.say(f"{name}: {known or UNNAMED}")
        found: dict[str, Any] = {"step": best.step, "best": choice.summary(), "metrics": metrics}
        found |= {"why": verdict.why, "warnings": verdict.warnings, **({"passed_over": said} if said else {})}
        text = json.dumps(found, indent=1)
        ranks.lead(lambda: write_text(folder / "result.json", text))
        ranks.lead(lambda: save_thresholds(trainer, best.step, monitor.say))
        for kind, values in metrics.items():
            monitor.record(
                kind, trainer.total, trainer.budget.epochs - 1, values, tested=best.step, why=verdict.why
            )
        if finish is not None and ranks.world == 1:
            hand_over(trainer, best.step, finish, monitor.say)
    left_out = {where: bad for each in ranks.gathered(trainer.feed.bad) for where, bad in each.items()}
    for bad in left_out.values():
        monitor.say(f"left out: {bad}")
    return Result(folder, best.step, metrics, verdict.why, verdict.warnings)


def _read_pairs(config: Config, shape: tuple[int, ...]) -> dict[str, Pairs]:
    """Read the pairs to verify in the end."""
    images = Path(config.verify_images or config.data)
    return read_pairs(config.verify, images if images.is_dir() else None, shape, config.on_bad)
