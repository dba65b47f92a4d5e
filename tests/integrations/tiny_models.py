"""Small models of transformers with random weights, and a batch for each; nothing is downloaded."""

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import Dataset

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
LAYER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
SOUND = {
    "conv_dim": (8, 8), "conv_kernel": (4, 4), "conv_stride": (2, 2), "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
N, CLASSES, DIM = 6, 5, 16


def lengths(most, *shorter):
    """A mask of N rows, the first ones shorter."""
    mask = torch.ones(N, most, dtype=torch.long)
    for row, length in enumerate(shorter):
        mask[row, length:] = 0
    return mask


def vit():
    config = transformers.ViTConfig(**LAYER, image_size=16, patch_size=8, num_channels=1)
    return transformers.ViTModel(config), {"pixel_values": torch.randn(N, 1, 16, 16)}


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_channels=1
    )
    return transformers.ResNetModel(config), {"pixel_values": torch.randn(N, 1, 16, 16)}


def bert():
    model = transformers.BertModel(transformers.BertConfig(**LAYER, vocab_size=50), add_pooling_layer=False)
    return model, {"input_ids": torch.randint(50, (N, 7)), "attention_mask": lengths(7, 3, 5)}


def distilbert():
    config = transformers.DistilBertConfig(dim=16, n_layers=1, n_heads=2, hidden_dim=32, vocab_size=50)
    return transformers.DistilBertModel(config), {"input_ids": torch.randint(50, (N, 7))}


def wav2vec2():
    model = transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**LAYER, **SOUND, mask_time_prob=0.0))
    return model, {"input_values": torch.randn(N, 200), "attention_mask": lengths(200, 90)}


def x_vector():
    config = transformers.Wav2Vec2Config(
        **LAYER, **SOUND, mask_time_prob=0.0, tdnn_dim=(16, 16, 24), tdnn_kernel=(3, 2, 1), tdnn_dilation=(1, 1, 1),
        xvector_output_dim=DIM, num_labels=CLASSES,
    )  # fmt: skip
    return transformers.Wav2Vec2ForXVector(config), {"input_values": torch.randn(N, 200)}


BACKBONES = (vit, resnet, bert, distilbert, wav2vec2)


class Pictures(Dataset):
    """Pictures of which each class has a bright place of its own."""

    def __init__(self, count=60):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.arange(count) % CLASSES
        self.pictures = 0.3 * torch.randn(count, 1, 16, 16, generator=generator)
        for picture, label in zip(self.pictures, self.labels, strict=True):
            picture[:, :, 3 * label : 3 * label + 3] += 2.0

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"pixel_values": self.pictures[i], "labels": self.labels[i]}


class Samples(Dataset):
    """Rows of what a processor returns, of different lengths, with the label as datasets have it."""

    def __init__(self, rows):
        self.rows = [row | {"label": k % CLASSES} for k, row in enumerate(rows)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def sentences(count=60):
    """Words of which one in three is the class's own; and the tokenizer, which pads."""
    words = {f"w{k}": k for k in range(50)} | {"[PAD]": 50, "[UNK]": 51}
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]")
    random = torch.Generator().manual_seed(0)
    rows = []
    for k in range(count):
        drawn = torch.randint(CLASSES, 50, (4 + k % 5,), generator=random).tolist()
        rows.append(tokenizer(" ".join(f"w{word}" for word in [*drawn, *[k % CLASSES] * (len(drawn) // 2)])))
    return Samples(rows), tokenizer


def tones(count=60):
    """Sounds of which each class has a pitch of its own; and the feature extractor, which pads."""
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    random, rows = torch.Generator().manual_seed(0), []
    for k in range(count):
        time = torch.arange(150 + 10 * (k % 6))
        sound = (0.3 + 0.5 * (k % CLASSES)) * time + 6 * torch.rand(1, generator=random)
        rows.append({"input_values": extractor(sound.sin().numpy(), sampling_rate=16_000).input_values[0]})
    return Samples(rows), extractor


def small_bert():
    return transformers.BertModel(transformers.BertConfig(**LAYER, vocab_size=52), add_pooling_layer=False)
