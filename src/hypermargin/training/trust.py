"""What in a run's settings is code, and who began the run.

A run's folder may come from a stranger. Its settings can name code in two ways: model = MODULE:FUNCTION is imported
and called, and timm's networks take options that name files, URLs and functions (timm up to 1.0.22 unpickles the
file at `checkpoint_path`). Both need trust, said by whoever uses the run; nothing is imported to find out.

To go on with a run of one's own nothing need be said: whoever begins one whose settings name code leaves in it a
proof that only he can make, RUN/begun.json. It is an HMAC over these settings, with a random key that is kept in
this user's state directory and never leaves it. So a folder's owner, a host's name, or any other thing that a
stranger can write into a file counts for nothing.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hypermargin import checks
from hypermargin.files import write_text

NAME = "begun.json"
Named = tuple[str | None, Mapping[str, Any]]  # a model and its options
KEY_BYTES = 32
MOST = 65_536  # of a number among timm's options
MOST_NUMBERS = 64
# Options of timm's networks that are numbers, true or false, or lists of them. What is not listed needs trust.
NUMBERS = {
    "attn_drop_rate", "avg_down", "base_width", "block_reduce_first", "bn_eps", "bn_momentum", "cardinality",
    "channel_multiplier", "channels", "class_token", "conv_mlp", "depth", "depth_multiplier", "depths", "dims",
    "down_kernel_size", "drop_block_rate", "drop_path_rate", "drop_rate", "dynamic_img_pad", "dynamic_img_size",
    "embed_dim", "embed_dims", "fc_norm", "final_norm", "fix_stem", "head_hidden_size", "head_init_scale",
    "img_size", "in_chans", "init_values", "layers", "ls_init_value", "mlp_ratio", "mlp_ratios", "no_embed_class",
    "num_classes", "num_heads", "output_stride", "patch_drop_rate", "patch_size", "pos_drop_rate", "pre_norm",
    "pretrained", "proj_drop_rate", "qk_norm", "qkv_bias", "reg_tokens", "replace_stem_pool", "stem_chs",
    "stem_width", "strict_img_size", "use_pos_embed", "use_rot_pos_emb", "width", "width_mult", "window_size",
    "zero_init_last",
}  # fmt: skip
WORDS = {
    "act_layer": {"elu", "gelu", "hard_swish", "leaky_relu", "mish", "prelu", "relu", "relu6", "silu", "swish"},
    "global_pool": {"", "avg", "avgmax", "catavgmax", "map", "max", "token"},
    "stem_type": {"", "deep", "deep_tiered", "one", "patch"},
}


def code_in(model: str | None, options: Mapping[str, Any]) -> str | None:
    """Return which code a run's network would run, in words; None if none but this library's and timm's own."""
    model = model or ""
    if ":" not in model:
        return None
    if not model.startswith("timm:"):
        return f"code of its own for the network, model = {checks.shown(model)}"
    for name, value in options.items():
        if not _harmless(name, value):
            return (
                f"the option {checks.shown(name)} = {checks.shown(value)} (model_set) of {checks.shown(model)}, "
                "which is not among those known to name no file, URL or function"
            )
    return None


def refusal(folder: Path, saved: Named, given: Named) -> str | None:
    """Return why not to go on with what is in `folder`, if its code was not named now nor begun by this user."""
    code = code_in(*saved)
    if code is None or given == saved or signed(folder, *saved):
        return None
    return (
        f"{folder} names {code}, and does not hold the proof that you began it on this machine: it was begun by "
        f"another user, elsewhere or with version 0.1, or when {state_directory()} could not be written. If you "
        "know the code, add --trust (trust=True in Python), or name the same model and options again."
    )


def _harmless(name: str, value: object) -> bool:
    if isinstance(value, str):
        return value in WORDS.get(name, ())
    if isinstance(value, list):
        single = not any(isinstance(each, str | list) for each in value)
        return single and len(value) <= MOST_NUMBERS and all(_harmless(name, each) for each in value)
    return name in NUMBERS and isinstance(value, bool | int | float) and abs(value) <= MOST


def sign(folder: Path, model: str | None, options: Mapping[str, Any]) -> bool:
    """Leave the proof that this user began the run; False if he has no key and none can be kept."""
    key = _key(make=True)
    if key is None:
        return False
    name = secrets.token_hex(16)
    proof = {"format": 1, "id": name, "proof": _proof(key, name, model, options)}
    write_text(folder / NAME, json.dumps(proof, indent=1) + "\n")
    return True


def signed(folder: Path, model: str | None, options: Mapping[str, Any]) -> bool:
    """Tell whether this user began the run, with these settings."""
    key = _key(make=False)
    try:
        found = json.loads((folder / NAME).read_text(encoding="utf-8"))
        name, proof = str(found["id"]), str(found["proof"])
        wanted = _proof(key or b"", name, model, options)
        return key is not None and hmac.compare_digest(proof.encode(), wanted.encode())
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def state_directory() -> Path:
    """Return where programs keep a user's state: XDG_STATE_HOME, or ~/.local/state."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    home = os.path.expanduser("~/.local/state")  # without a home it stays, where pathlib's raises
    return (given if given.is_absolute() else Path(home)) / "hypermargin"


def _proof(key: bytes, name: str, model: str | None, options: Mapping[str, Any]) -> str:
    text = json.dumps(["hypermargin run", name, model, options], sort_keys=True)
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def _key(*, make: bool) -> bytes | None:
    """Return this user's key; None if there is none, or it cannot be kept."""
    try:
        path = state_directory() / "key"
        if not path.is_absolute():
            return None
        if make and not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = path.with_name(f".key-{secrets.token_hex(8)}")
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(secrets.token_bytes(KEY_BYTES))
            try:
                os.link(temporary, path)  # fails if another process was first, whose key then counts
            except FileExistsError:
                pass
            finally:
                temporary.unlink()
        key = path.read_bytes()
    except OSError:
        return None
    return key if len(key) == KEY_BYTES else None
