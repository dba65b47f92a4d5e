"""What is said of a finished run's network: which step it is and why, and what tells that it is not trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypermargin.training.best import Choice
from hypermargin.training.config import Config
from hypermargin.training.look import Look, known_share

if TYPE_CHECKING:
    from hypermargin.training.loop import Trainer


@dataclass(frozen=True)
class Verdict:
    """Why this step is the one that is tested, and warnings about it."""

    why: str
    warnings: tuple[str, ...] = ()


def judge(trainer: Trainer, choice: Choice) -> Verdict:
    """Judge the weights that the trainer holds now, and what was chosen in training."""
    why = choice.why
    if choice.step not in (None, trainer.step):
        why = f"step {choice.step}, {choice.why}, cannot be read"
    if trainer.budget.epochs == 0:
        why = "no step was taken, as epochs = 0 asks for"
        random = () if pretrained(trainer.config) else (
            "nothing is trained: epochs = 0, and the network starts at random. Give --init RUN or a pretrained "
            "network, or leave --epochs out.",
        )  # fmt: skip
        return Verdict(why, random)
    look = choice.look
    if look is None:  # there was no validation part
        with trainer.averaged():
            look = Look({}, 0, known_share(trainer))
    doubts = look.doubts(choice.classes)
    if not doubts:
        return Verdict(why)
    few = "more --epochs, a smaller --batch or another --lr may help"
    return Verdict(why, (f"the network of step {trainer.step} is hardly trained: {'; '.join(doubts)}; {few}.",))


def pretrained(config: Config) -> bool:
    """Tell whether a run starts from more than random weights, or may: code of one's own may load them."""
    model = str(config.model)
    if model.startswith("timm:"):
        return bool(config.init or config.model_set.get("pretrained"))
    return bool(config.init) or model in ("none", "own") or ":" in model
