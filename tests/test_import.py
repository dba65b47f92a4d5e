"""What importing costs, in one fresh process: nothing is started, and the extras come when they are asked for."""

import subprocess
import sys

PROGRAM = """
import sys
import hypermargin, torch.distributed as dist
assert not dist.is_initialized()
late = {"torch._dynamo", "torch._inductor", "triton", "torch.distributed.checkpoint", "sklearn", "matplotlib"}
assert not set(sys.modules) & late, set(sys.modules) & late

import numpy as np
from hypermargin.evaluate import verification
from hypermargin.plots import RocDisplay
display = RocDisplay.of(verification(np.random.default_rng(0).normal(size=(8, 4)), np.arange(8) // 2))
assert "matplotlib" not in sys.modules
display.plot()
assert "matplotlib.pyplot" not in sys.modules, "pyplot has global state"

def told(call, words):
    try:
        call()
    except ImportError as error:
        assert words in str(error), error
    else:
        raise SystemExit("it went on without " + words)

for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
    del sys.modules[name]
sys.modules["matplotlib"] = sys.modules["sklearn"] = None
told(display.plot, "pip install matplotlib")
told(lambda: hypermargin.MarginSoftmaxClassifier, "needs scikit-learn, which is not installed. Run: pip install")
print("fine")
"""


def test_importing_starts_nothing_and_extras_are_imported_only_when_asked_for():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")
