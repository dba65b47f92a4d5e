"""Train speaker embeddings in SpeechBrain with a margin, on AudioMNIST, and verify unseen speakers.

    python examples/with_speechbrain.py audiomnist_logmel.npz --head arcface --steps 300

The file holds `logmel_u8` (N, 32 frames, 40 mels) and `speaker` (N,). The first 40 speakers are for training,
the other 20 for the test; who says which digit differs between samples. The loss is made from YAML, as recipes of
SpeechBrain make theirs.
"""

import argparse

import numpy as np
import torch
from hyperpyyaml import load_hyperpyyaml
from speechbrain.core import Brain, Stage

from hypermargin.evaluate import verification

TRAINED = 40
RECIPE = """
embedding_model: !new:speechbrain.lobes.models.ECAPA_TDNN.ECAPA_TDNN
    input_size: 40
    channels: [64, 64, 64, 64, 192]
    kernel_sizes: [5, 3, 3, 3, 1]
    dilations: [1, 2, 3, 4, 1]
    attention_channels: 32
    res2net_scale: 4
    se_channels: 32
    lin_neurons: 64
classifier: !new:hypermargin.integrations.speaker.Classifier
    input_size: 64
    out_neurons: 40
    head: !ref <head>
    scale: advised
compute_cost: !new:hypermargin.integrations.speaker.ClassifierLoss
    classifier: !ref <classifier>
modules:
    embedding_model: !ref <embedding_model>
    classifier: !ref <classifier>
head: arcface
"""

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("data")
parser.add_argument("--head", default="arcface")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--tested", type=int, default=60, help="samples of each unseen speaker")


class Speakers(Brain):
    """A recipe's Brain, as short as it can be."""

    def compute_forward(self, batch, stage):
        """Return what the classifier makes of the embeddings."""
        return self.modules.classifier(self.modules.embedding_model(batch[0]))

    def compute_objectives(self, predictions, batch, stage):
        """Return the loss."""
        return self.hparams.compute_cost(predictions, batch[1][:, None])

    def on_stage_end(self, stage, loss, epoch=None):
        """Say what it came to."""
        if stage == Stage.TRAIN:
            print(f"loss of the training {loss:.3f}")


def main(args):
    """Train on known speakers, and verify unseen ones before and after."""
    torch.manual_seed(0)
    with np.load(args.data, allow_pickle=False) as file:
        sound, names = torch.from_numpy(file["logmel_u8"]), file["speaker"]
    speaker = torch.from_numpy(np.unique(names, return_inverse=True)[1])  # 0 to 59, whatever they are called
    random = np.random.default_rng(0)
    known, unseen = (np.flatnonzero(mask.numpy()) for mask in (speaker < TRAINED, speaker >= TRAINED))

    def batch(rows):
        return sound[rows].float() / 128 - 1, speaker[rows]

    drawn = [batch(random.choice(known, args.batch_size)) for _ in range(args.steps)]
    batches = torch.utils.data.DataLoader(drawn, batch_size=None)  # they are batches already
    held = [
        random.choice(unseen[speaker[unseen] == one], args.tested, replace=False)
        for one in speaker[unseen].unique()
    ]
    test, tested = batch(np.concatenate(held))

    parts = load_hyperpyyaml(RECIPE, {"head": args.head})
    brain = Speakers(parts["modules"], lambda p: torch.optim.AdamW(p, lr=2e-3), parts, run_opts={"device": "cpu"})
    network = parts["embedding_model"]

    def report(when):
        network.eval()
        with torch.no_grad():
            embeddings = torch.cat([network(part)[:, 0] for part in test.split(256)])
        found = verification(embeddings.numpy(), tested.numpy())
        print(f"{when}: EER of {len(held)} unseen speakers {found.eer:.1%}")

    report("before")
    brain.fit(range(1), batches, progressbar=False)
    report("after ")


if __name__ == "__main__":
    main(parser.parse_args())
