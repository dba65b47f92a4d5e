"""The end of a run: what its best weights make of pairs, the thresholds they ask for, what the caller does last."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hypermargin.common.text import Say
from hypermargin.data import Feed, Pairs
from hypermargin.evaluate import Thresholds, from_scores
from hypermargin.training import watch
from hypermargin.training.evaluation import Parts, choose_thresholds, lengths_against_images
from hypermargin.training.loop import Trainer
from hypermargin.training.pairs import score_pairs
from hypermargin.training.run import About, Trained

# What is done last, with the best weights and what they make of the data; thresholds if some could be chosen.
Finish = Callable[[Parts, Thresholds | None], None]


def of_pairs(trainer: Trainer, pairs: Pairs) -> dict[str, float]:
    """Return EER, TAR and AUC of a list of pairs."""
    config = trainer.config
    feed = Feed(pairs.samples, trainer.device, workers=config.workers or 0, on_bad=config.on_bad)
    with trainer.averaged():
        features, read = trainer.embed(feed, np.arange(len(pairs.samples)))
    trainer.feed.bad.update(feed.bad)
    scored = score_pairs(pairs, features, read)
    found = from_scores(scored.scores, scored.same)
    return {"eer": found.eer, "tar": found.tar[1e-3], "auc": found.auc}


def _parts(trainer: Trainer, step: int) -> Parts:
    """Return the parts of the data as the weights see them that `load` gives; averages must be in place."""
    network, head = trainer.network.eval(), trainer.head.eval()
    trained = Trained(network, head, trainer.config, About.read(trainer.folder), step)
    return Parts(trained, trainer.data, trainer.split, feed=trainer.feed)


def save_thresholds(trainer: Trainer, step: int, say: Say) -> None:
    """Save thresholds for `hypermargin verify`, from the weights that `load` gives.

    Their samples also say whether long features are those of the poor images.
    """
    try:
        with trainer.averaged():
            parts = _parts(trainer, step)
            chosen = choose_thresholds(parts)
            chosen.save(trainer.folder)
            if doubt := watch.doubt_of_images(trainer.head.margin, lengths_against_images(parts, chosen.part)):
                say(f"warning: {doubt}")
    except Exception as error:  # whatever it is, the training is finished and its result must not be lost
        say(f"no thresholds saved: {error}")


def hand_over(trainer: Trainer, step: int, finish: Finish, say: Say) -> None:
    """Let the caller look at what came out; whatever happens, the run stands."""
    try:
        with trainer.averaged():
            finish(_parts(trainer, step), Thresholds.read(trainer.folder))
    except Exception as error:
        say(f"no report written: {error}")
