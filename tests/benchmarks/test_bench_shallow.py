"""The benchmark of the estimator: its numbers are those of scikit-learn on the same folds, its files are whole."""

import json
from collections import Counter

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import (
    GridSearchCV,
    RepeatedStratifiedKFold,
    StratifiedKFold,
    cross_val_predict,
    cross_val_score,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_info, threadpool_limits

from benchmarks import shallow
from benchmarks import shallow_folds as folds
from benchmarks import shallow_margin as margin
from benchmarks import shallow_parts as others
from benchmarks.shallow_tables import TITLES, as_markdown
from hypermargin import MarginSoftmaxClassifier


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The tests run two at a time, and BLAS threads would wait for each other."""
    with threadpool_limits(1):
        yield


def silent(text):
    pass


def quick(*parts, data=("iris",), **options):
    return shallow.run(parts, data, quick=True, say=silent, **options)


@pytest.fixture(scope="module")
def iris():
    """Accuracy of a quick run, and the samples and folds it should have had."""
    X, y = folds.QUICK.load("iris")
    assert len(y) == 120
    splits = RepeatedStratifiedKFold(n_splits=3, n_repeats=1, random_state=0)
    return quick("accuracy")["parts"]["accuracy"], X, y, list(splits.split(X, y))


@pytest.mark.parametrize(
    ("kernel", "name", "model"),
    [
        ("linear", "LogisticRegression", LogisticRegression()),
        ("linear", "arcface", MarginSoftmaxClassifier("arcface")),
        ("linear", "softmax", MarginSoftmaxClassifier("none", unit_weight=False, unit_features=False)),
        ("rbf", "SVC", SVC()),
        ("rbf", "normface", MarginSoftmaxClassifier("none", kernel="rbf")),
    ],
)
def test_accuracies_are_those_of_cross_val_score(iris, kernel, name, model):
    part, X, y, splits = iris
    (table,) = (one for one in part["tables"] if one["kernel"] == kernel)
    row = table["rows"][name]
    wanted = cross_val_score(make_pipeline(StandardScaler(), model), X, y, cv=splits)
    assert row["accuracies"] == pytest.approx(wanted)
    assert row["accuracy"] == pytest.approx(wanted.mean())
    assert row["spread"] == pytest.approx(wanted.std(ddof=1))
    if name == "SVC":
        assert row["log_loss"] is row["calibration"] is None
        return
    p = cross_val_predict(make_pipeline(StandardScaler(), model), X, y, cv=splits, method="predict_proba")
    assert row["log_loss"] == pytest.approx(log_loss(y, p), rel=1e-6)  # folds of equal size
    assert row["calibration"] == pytest.approx(folds.calibration_error(p, y), abs=1e-9)


@pytest.mark.slow
def test_no_margin_a_chosen_one_and_the_former_default(tmp_path, monkeypatch):
    """On scikit-learn's data, and on tables and texts from files; accuracies by cross_val_score."""
    X, y = folds.QUICK.load("iris")
    rows = [
        ("letter", "a", "b", "c", "d"),
        *((f"k{label}", *map(str, row)) for row, label in zip(X, y, strict=True)),
    ]
    (tmp_path / "letterdata.csv").write_text("\n".join(",".join(row) for row in rows))
    texts = [("spam", f"win cash, {k}0") if k % 3 == 0 else ("ham", f"see you at {k}0") for k in range(30)]
    (tmp_path / "sms_spam.csv").write_text("type,text\n" + "\n".join(f'{kind},"{t}"' for kind, t in texts))
    monkeypatch.setattr(margin, "KERNELS", ("linear",))
    part = quick("margin", files=tmp_path)["parts"]["margin"]
    iris, letter, sms = part["tables"]
    assert (iris["data"], letter["data"], sms["data"]) == ("iris", "letter", "sms")
    assert (letter["samples"], letter["classes"], letter["splits"], iris["splits"]) == (120, 3, 1, 3)
    for one in (iris, letter):
        for who, model in margin.contenders("linear").items():
            splits = folds.QUICK.splits(X, y, 1)[: one["splits"]]
            wanted = cross_val_score(make_pipeline(StandardScaler(), model), X, y, cv=splits)
            assert one["rows"][who]["accuracies"] == pytest.approx(wanted), (one["data"], who)
    assert sum(iris["rows"]['m="auto"']["chosen"].values()) == 3
    assert {row["accuracy"] for row in sms["rows"].values()} == {1.0}
    markdown = as_markdown({"quick": True, "parts": {"margin": part}})
    assert "iris 120 in 3 classes, letter 120 in 3 classes, sms 30 in 2 classes" in markdown
    assert "| no margin (the default) |" in markdown
    with pytest.raises(ValueError, match=r"--files must be a folder with letterdata.csv, sms_spam.csv"):
        quick("margin", files=tmp_path / "none")


def test_calibration_error_by_hand():
    p = np.array([[0.85, 0.15], [0.85, 0.15], [0.25, 0.75], [1.0, 0.0]])
    y = np.array([0, 1, 1, 0])  # the bin of 0.85 is right half the time, the others always
    assert folds.calibration_error(p, y, 10) == pytest.approx((abs(1 - 2 * 0.85) + (1 - 0.75) + 0) / 4)
    exact = np.array([[0.95, 0.05]] * 20)
    assert folds.calibration_error(exact, np.array([0] * 19 + [1])) == pytest.approx(0)
    assert folds.calibration_error(exact, np.zeros(20, int)) == pytest.approx(0.05)


def test_the_t_test_is_the_corrected_one():
    rng = np.random.default_rng(0)
    ours, theirs = rng.normal(0.9, 0.02, (2, 20))
    plain = stats.ttest_rel(ours, theirs)
    found = folds.told_apart(ours, theirs, 0.25)
    assert found["t"] == pytest.approx(plain.statistic * np.sqrt((1 / 20) / (1 / 20 + 0.25)))
    assert found["bound"] == pytest.approx(stats.t.ppf(0.975, 19))
    assert folds.told_apart(ours, theirs, 0.0)["t"] == pytest.approx(plain.statistic)
    noise = 0.001 * rng.standard_normal(20)
    assert folds.told_apart(theirs + 0.1 + noise, theirs, 0.25)["verdict"] == "helps"
    assert folds.told_apart(theirs - 0.1 + noise, theirs, 0.25)["verdict"] == "hurts"
    assert folds.told_apart(theirs + noise, theirs, 0.25)["verdict"] == "not told apart"
    alike = folds.told_apart(theirs, theirs, 0.25)
    assert (alike["t"], alike["verdict"]) == (None, "not told apart")
    assert folds.told_apart(np.ones(20), np.zeros(20), 0.25)["verdict"] == "helps"


def test_everybody_has_six_settings():
    for kernel in folds.KERNELS:
        for name, model in folds.contenders(kernel).items():
            found = folds.settings(name, kernel, 4)
            assert len({json.dumps(setting) for setting in found}) == 6
            for setting in found:
                model.set_params(**setting)


@pytest.mark.slow
def test_a_search_is_nested_and_says_what_it_chose(monkeypatch):
    few = {name: folds.contenders("linear")[name] for name in ("LogisticRegression", "arcface")}
    monkeypatch.setattr(folds, "contenders", lambda kernel: few)
    monkeypatch.setattr(folds, "WITHOUT", {"arcface": "LogisticRegression"})
    monkeypatch.setattr(folds, "KERNELS", ("linear",))
    part = quick("search")["parts"]["search"]
    (table,) = part["tables"]
    for row in table["rows"].values():
        assert sum(row["chosen"].values()) == len(row["accuracies"]) == 3
    X, y = folds.QUICK.load("iris")
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    inner = StratifiedKFold(2, shuffle=True, random_state=0)
    search = GridSearchCV(model, {"logisticregression__C": [0.01, 0.1, 1, 10, 100, 1000]}, cv=inner)
    row = table["rows"]["LogisticRegression"]
    splits = folds.QUICK.splits(X, y)
    assert row["accuracies"] == pytest.approx(cross_val_score(search, X, y, cv=splits))
    chosen = Counter(search.fit(X[rows], y[rows]).best_params_["logisticregression__C"] for rows, _ in splits)
    assert row["chosen"] == {f"C {C:g}": times for C, times in chosen.items()}


def test_digits_with_a_kernel_are_not_searched(monkeypatch):
    asked = []
    monkeypatch.setattr(folds, "cross_validate", lambda *_: asked.append(1) or {"accuracies": [1.0, 0.5, 0.5]})
    tables = folds.search(folds.QUICK, silent)["tables"]
    assert [table["data"] for table in tables if table["kernel"] == "linear"] == list(folds.DATA)
    assert [table["data"] for table in tables if table["kernel"] == "rbf"] == list(folds.SEARCHED_KERNEL)
    assert len(asked) == 4 * 10 + 3 * 9


def test_the_data_stay_where_they_are():
    part = quick("angle")["parts"]["angle"]
    assert [table["unit_features"] for table in part["tables"]] == [True, False]
    for table in part["tables"]:
        rows = table["rows"]
        assert list(rows) == ["angle", "magnitude", "both", "alternated"]
        for key in ("means_apart", "to_own_mean"):
            assert np.ptp([row[key] for row in rows.values()]) < 1e-9
        assert np.ptp([row["intra"] for row in rows.values()]) > 1
        assert rows["angle"]["magnitude_spread"] == pytest.approx(0, abs=1e-12)
        assert rows["alternated"]["magnitude_spread"] > 0


def test_geometry_of_one_fit():
    X, y = load_iris(return_X_y=True)
    model = others.ways(True, 4)["angle"]
    found = others._geometry(model, X, y, np.arange(150), np.arange(150))
    scaled = StandardScaler().fit_transform(X)
    model = MarginSoftmaxClassifier("arcface", m=others.M, scale=others.SCALE).fit(scaled, y)
    theta = np.degrees(np.arccos(model.transform(scaled)))
    own = theta[np.arange(150), y]
    nearest = np.where(np.eye(3, dtype=bool)[y], np.inf, theta).min(1)
    assert found["intra"] == pytest.approx(own.mean())
    assert found["margin"] == pytest.approx((nearest - own).mean())
    assert found["margin_met"] == pytest.approx((nearest - own >= np.degrees(others.M)).mean())
    assert found["accuracy"] == pytest.approx(model.score(scaled, y))
    assert found["magnitude"] == pytest.approx(others.SCALE)


def test_import_vectors_are_as_many_as_asked_for():
    (table,) = quick("import", data=("breast-cancer",))["parts"]["import"]["tables"]
    svc, *rows = table["rows"]
    assert svc["model"] == "SVC"
    assert 0 < svc["points"] < 80
    for row in rows:
        assert row["points"] in (5, 10) if row["how"] != "exact" else row["points"] == 80
        assert row["fit_seconds"] > 0 < row["predict_seconds"]
    assert quick("import")["parts"]["import"]["tables"] == []  # iris is too small for it


def test_time_is_measured_with_all_threads_and_with_one():
    part = quick("time")["parts"]["time"]
    assert [(table["threads"], table["tol"]) for table in part["tables"]] == [
        ("default", 1e-4), ("default", 1e-6), ("one", 1e-4), ("one", 1e-6),
    ]  # fmt: skip
    for table in part["tables"]:
        assert table["unfinished"] == 0
        first, *_ = table["rows"]
        assert first["name"] == "LogisticRegression"
        for row in table["rows"]:
            assert row["ratio"] == pytest.approx(row["seconds"] / first["seconds"])
        X, y = folds.QUICK.load("digits")
        model = LogisticRegression(tol=table["tol"], max_iter=10_000).fit(StandardScaler().fit_transform(X), y)
        assert first["iterations"] == model.n_iter_[0]
    assert all(pool.endswith(" 1") for table in part["tables"][2:] for pool in table["pools"])


@pytest.mark.slow
def test_parts_join_in_one_file(tmp_path):
    before = [pool["num_threads"] for pool in threadpool_info()]
    first = quick("accuracy", out=tmp_path)
    second = quick("angle", out=tmp_path)
    assert [pool["num_threads"] for pool in threadpool_info()] == before
    (written,) = tmp_path.glob("*.json")
    assert written.name == "shallow-quick-iris.json"
    stored = json.loads(written.read_text())
    assert stored == json.loads(json.dumps(second))
    assert list(stored["parts"]) == ["accuracy", "angle"]
    assert stored["parts"]["accuracy"] == json.loads(json.dumps(first["parts"]["accuracy"]))
    assert {"scikit-learn", "scipy", "numpy", "date"} <= set(stored["parts"]["angle"]["environment"])
    markdown = written.with_suffix(".md").read_text()
    assert as_markdown(stored) == markdown  # a table drawn again from the file is the same
    for kernel in folds.KERNELS:
        for name in folds.contenders(kernel):
            assert f"| {TITLES.get(name, name)} |" in markdown
    written.write_text("[]")
    with pytest.raises(ValueError, match=r"--out has a shallow-quick-iris.json that this benchmark did not write"):
        quick("angle", out=tmp_path)


def test_from_the_command_line(bench, tmp_path):
    code, printed, _ = bench(shallow, "--quick", "--part", "time", "--data", "iris", "--out", tmp_path)
    assert code == 0
    assert "## Time of a fit" in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shallow-quick-iris.json", "shallow-quick-iris.md"]
    for flag, value in (("--part", "tme"), ("--data", "irs")):
        code, _, complaint = bench(shallow, flag, value)
        assert code == 2
        assert f"{flag} must be one of" in complaint


def test_whole_data_by_default():
    X, _ = folds.Plan().load("digits")
    assert X.shape == load_digits().data.shape
