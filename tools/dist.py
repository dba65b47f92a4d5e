"""Build sdist and wheel, check their metadata, and try the wheel in fresh environments; `make dist` runs it.

One environment without extras, one with each extra, one with all of them. torch is installed once, into an
environment that the others see, because it is large; everything else is installed as a user's pip would, within
constraints.txt. What is tried is in SMOKE: small, but to the end, with the packages of that extra and no others.

    python tools/dist.py                     every environment
    python tools/dist.py --extra plot        one of them; repeatable
    python tools/dist.py --demo              and the whole demo, in the environment with all extras
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVERYTHING = "cli,export,learn,plot,train"
TRAINED = """
import numpy as np, hypermargin as hm
from hypermargin.data import from_arrays
from hypermargin.training import Config, train
rng = np.random.default_rng(0)
data = from_arrays(rng.normal(size=(90, 6)).astype(np.float32), np.arange(90) % 3, open_set=False)
config = Config(model="mlp", dim=4, epochs=1, batch=16, tensorboard=False)
train(config, "run", data=data, quiet=True)
assert hm.load("run").embed(data.samples[:5]).shape == (5, 4)
"""
BARE = (
    TRAINED
    + """
import torch
head = hm.create_head("arcface", 8, 20)
head(torch.randn(6, 8), torch.arange(6)).backward()
assert hm.advise.recommend(classes=10, dim=16).s > 1
assert hm.evaluate.evaluate(rng.normal(size=(40, 4)), np.arange(40) // 4).verification.eer > 0
for call, package in ((lambda: hm.MarginSoftmaxClassifier, "scikit-learn"),
                      (lambda: hm.plots.make("boundary-circle").save("x.svg"), "matplotlib")):
    try:
        call()
    except ModuleNotFoundError as error:
        assert str(error).endswith("pip install " + package), error
    else:
        raise SystemExit("it went on without " + package)
"""
)
PICTURES = """
import hypermargin as hm
from hypermargin.plots import explorer
hm.plots.make("boundary-circle").save("x.svg")
explorer.write("explorer.html")
"""
IMAGES = """
import numpy as np, hypermargin as hm
from pathlib import Path
from PIL import Image
from hypermargin.training import Config, train
rng = np.random.default_rng(0)
for name in "abcdef":
    for k in range(6):
        path = Path("photos", name, f"{k}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(path)
config = Config(data="photos", model_set={"width": 4}, dim=4, epochs=1, batch=8)
train(config, "run", quiet=True)
assert list(Path("run").rglob("model.safetensors")) and list(Path("run").rglob("events*"))
assert hm.load("run").embed(np.zeros((2, 16, 16, 3), np.uint8)).shape == (2, 4)
"""
ESTIMATOR = """
from sklearn.datasets import load_wine
from sklearn.preprocessing import scale
import hypermargin as hm
X, y = load_wine(return_X_y=True)
assert hm.MarginSoftmaxClassifier("arcface", m=0.1).fit(scale(X), y).score(scale(X), y) > 0.95
"""
SHIPPED = TRAINED + 'from hypermargin.deploy import export\nexport("run", "model.onnx")\n'
# By extra: a program in Python, commands that must end well, and commands that must say which packages they miss.
SMOKE: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "": (BARE, [], {"hypermargin": "pip install typer rich"}),
    "cli": (
        "import hypermargin",
        ["hypermargin --version", "hypermargin advise --classes 10 --dim 8"],
        {"hypermargin demo": "pip install matplotlib pillow scikit-learn"},
    ),
    "export": (SHIPPED, [], {}),
    "learn": (ESTIMATOR, [], {}),
    "plot": (PICTURES, [], {}),
    "train": (IMAGES, [], {}),
    EVERYTHING: (
        IMAGES,
        [
            "hypermargin data photos",
            "hypermargin evaluate run",
            "hypermargin verify run photos/a/0.png photos/a/1.png",
            "hypermargin export run --format onnx",
            "hypermargin plot psi --out psi.png",
            "hypermargin compare --data digits --head softmax --head arcface --seeds 1 --plane 0 --epochs 1",
        ],
        {},
    ),
}


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command; on failure show what it said and stop."""
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"failed ({done.returncode}): {' '.join(map(str, command))[:200]}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def environment(folder: Path, python: str, sees: Path | None = None) -> Path:
    """Make a fresh environment and return its Python; `sees` is another whose packages count as installed."""
    run(python, "-m", "venv", folder)
    if sees is not None:
        (site_packages(folder) / "seen.pth").write_text(f"{site_packages(sees)}\n")
    return folder / "bin" / "python"


def site_packages(folder: Path) -> Path:
    """Return where an environment keeps its packages."""
    return next((folder / "lib").glob("python3.*")) / "site-packages"


def install(python: Path, *what: str) -> None:
    """Install within the constraints."""
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(python, *pip, "-c", ROOT / "constraints.txt", *what)


def build(folder: Path, python: str) -> Path:
    """Build both files into dist/, check what an index would read of them, and return the wheel."""
    tools = environment(folder / "tools", python)
    run(tools, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "build", "twine")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    run(tools, "-m", "build", "--outdir", ROOT / "dist", ROOT)
    made = sorted((ROOT / "dist").glob(f"hypermargin-{version}*"))
    run(tools, "-m", "twine", "check", "--strict", *made)
    for path in made:
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e6:.1f} MB, metadata as an index wants it")
    return next(path for path in made if path.suffix == ".whl")


def smoke(extra: str, wheel: Path, folder: Path, python: str, base: Path) -> None:
    """Install the wheel with an extra into a fresh environment, and use it there."""
    here = folder / (extra.replace(",", "-") or "bare")
    interpreter = environment(here, python, base)
    install(interpreter, f"{wheel}[{extra}]" if extra else str(wheel))
    program, good, bad = SMOKE[extra]
    work = here / "work"
    work.mkdir()
    run(interpreter, "-I", "-c", program, cwd=work)
    for command in good:
        run(interpreter.parent / command.split()[0], *command.split()[1:], cwd=work)
    for command, words in bad.items():
        words_of = [str(interpreter.parent / command.split()[0]), *command.split()[1:]]
        done = subprocess.run(words_of, cwd=work, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if done.returncode != 1 or words not in said or "Traceback" in said:
            raise SystemExit(
                f"{command} should end with 1 and say: {words}\nIt ended with {done.returncode}: {said}"
            )
    print(f"with {extra or 'no extra'}: fine", flush=True)


def main() -> None:
    """Do all of it, or what the flags say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--extra", action="append", choices=list(SMOKE), help='"" is none')
    parser.add_argument("--demo", action="store_true", help="run the whole demo too")
    parser.add_argument("--python", default=sys.executable, help="the Python to try it with")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hypermargin-dist-") as name:
        folder = Path(name)
        wheel = build(folder, asked.python)
        base = folder / "torch"
        install(environment(base, asked.python), "torch")
        for extra in [EVERYTHING] if asked.demo and not asked.extra else asked.extra or list(SMOKE):
            smoke(extra, wheel, folder, asked.python, base)
        if asked.demo:
            every = folder / EVERYTHING.replace(",", "-")
            print(run(every / "bin" / "hypermargin", "demo", cwd=every / "work").strip())


if __name__ == "__main__":
    main()
