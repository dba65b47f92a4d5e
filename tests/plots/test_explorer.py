"""The explorer's numbers are the library's, its words are whole in both languages, and it fits every screen."""

import itertools
import json
import math
import re
from dataclasses import asdict, dataclass

import pytest
import torch
from browser import DESKTOP, PHONE, opened

from hypermargin import advise, hinge, margin_cross_entropy, margin_softmax
from hypermargin.margins import ArcFace, Combined, ExpFace, Margin, SphereFace, X2Softmax
from hypermargin.plots import explorer
from hypermargin.plots.style import DARK, LIGHT
from hypermargin.recipes import FAMILY

close = pytest.approx
SLIDERS = ("m1", "m2", "m3", "lambda", "s", "classes", "theta12", "theta")
WORDS = explorer.words()
PAGE = explorer.page()


@dataclass(frozen=True)
class Blended(Margin):
    """ψ with λ, as `margin_softmax(lam=λ)` has it: cos θ + (ψ − cos θ)/(1 + λ)."""

    inner: Margin
    lam: float

    def psi(self, theta, m=None):
        return theta.cos() + (self.inner.psi(theta) - theta.cos()) / (1 + self.lam)


def plain(case):
    if case.get("form"):
        return {"x2": X2Softmax(), "expface": ExpFace()}[case["form"]]
    return Combined(case["m1"], case["m2"], case["m3"])


def blended(case):
    if case["lambda"] and (case["m2"], case["m3"]) == (0, 0) and case["m1"] >= 1 and not case.get("form"):
        return SphereFace(case["m1"], lam=case["lambda"])
    return Blended(plain(case), case["lambda"]) if case["lambda"] else plain(case)


def cases():
    """Every head, the corners (knots, infeasible, reward, λ), and settings drawn at random."""
    draw = torch.Generator().manual_seed(5)
    rest = {"s": 30.0, "classes": 50, "theta": 0.9, "theta12": math.pi / 2, "rivals": "right", "P": 0.99}
    zero = {"m1": 1.0, "m2": 0.0, "m3": 0.0, "lambda": 0.0}
    numbers = ("m1", "m2", "m3", "lambda", "s", "form")
    found = [rest | {key: head[key] for key in numbers} for head in explorer.heads()]
    found += [rest | zero | {"m1": 4.0, "theta": k * math.pi / 4} for k in (1, 2, 3)]
    found += [rest | zero | {"m2": 0.5, "theta": math.pi - 0.5, "rivals": "simplex"}]
    found += [rest | zero | {"m2": 1.0, "theta12": t} for t in (0.5, 1.0, 1.5)]
    found += [
        rest | zero | {"m3": 1.5, "theta12": 1.0},
        rest | zero | {"m3": 1.9, "classes": 2, "theta12": math.pi},
    ]
    found += [rest | zero | {"m1": 0.5}, rest | zero | {"m1": 0.7, "m2": 0.2, "m3": 0.1, "theta12": 2.5}]
    found += [rest | zero | {"m1": 4.0, "lambda": lam} for lam in (0.01, 5.0, 1000.0)]
    found += [rest | zero | {"m2": 0.4, "classes": 10**k, "s": 64.0, "rivals": "simplex"} for k in (5, 6)]
    for _ in range(40):
        u = torch.rand(9, generator=draw, dtype=torch.float64).tolist()
        found.append(
            {
                "m1": 0.5 + 7.5 * u[0], "m2": 3.1 * u[1] ** 2, "m3": 1.9 * u[2] ** 2,
                "lambda": 0.0 if u[3] < 0.4 else 10 ** (5 * u[3] - 2), "s": 1 + 127 * u[4],
                "classes": round(2 * 5000 ** u[5]), "theta": 0.02 + 3.1 * u[6], "theta12": 0.02 + 3.12 * u[7],
                "rivals": "right" if u[8] < 0.5 else "simplex", "P": (0.9, 0.99, 0.999)[int(3 * u[8])],
            }
        )  # fmt: skip
    return found


def by_the_library(case):
    """The same numbers from `margins`, `margin_softmax` and `advise`, in float64."""
    theta = torch.tensor(case["theta"], dtype=torch.float64, requires_grad=True)
    psi = blended(case).psi(theta)
    (slope,) = torch.autograd.grad(psi, theta)
    # A sample at θ from its own class e1, with rivals out of the plane in which it turns: all at 90°, or where a
    # simplex has them, at cosine −cos θ/(C−1).
    C = case["classes"]
    x = torch.stack((theta.cos(), theta.sin(), theta * 0)).unsqueeze(0)
    away = -1 / (C - 1) if case["rivals"] == "simplex" else 0.0
    rival = torch.tensor([away, 0.0, math.sqrt(1 - away * away)], dtype=torch.float64)
    weight = torch.cat((torch.eye(3, dtype=torch.float64)[:1], rival.expand(C - 1, 3)))
    loss = margin_softmax(x, weight, torch.tensor([0]), plain(case), scale=case["s"], lam=case["lambda"])
    (gradient,) = torch.autograd.grad(loss, theta)
    try:
        scale = advise.smallest_scale(C, case["P"], blended(case))
    except ValueError:
        scale = None  # no scale reaches it; JSON has no infinity
    floor = advise.loss_floor(C, case["s"], blended(case))
    return {
        "psi": psi.item(), "slope": slope.item(), "loss": loss.item(), "gradient": gradient.item(),
        "probability": math.exp(-loss.item()), "width": advise.band_width(blended(case), case["theta12"]),
        "scale": scale, "floor": floor, "best": math.exp(-floor),
    }  # fmt: skip


IN_THE_PAGE = """cases => cases.map(c => {
    const e = window.hypermarginExplorer;
    const scale = e.smallestScale(c, c.P);
    return { psi: e.psi(c.theta, c), slope: e.psiSlope(c.theta, c), loss: e.loss(c.theta, c),
      gradient: e.gradient(c.theta, c), probability: e.probability(c.theta, c), width: e.band(c, c.theta12).width,
      scale: scale === Infinity ? null : scale, floor: e.lossFloor(c), best: e.simplexProbability(c) }; })"""


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    """One page for the tests that only look; they set it with `go`."""
    with opened(browser, PAGE, tmp_path_factory.mktemp("explorer")) as found:
        yield found


def go(page, **state):
    page.evaluate("hash => { location.hash = hash }", "&".join(f"{k}={v}" for k, v in {"step": 1, **state}.items()))
    settle(page)


def settle(page):
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def values(page):
    """Every number of the page that is shown, as it holds it."""
    script = "outs => outs.filter(o => o.dataset.value).map(o => [o.dataset.valueOf, o.dataset.value])"
    return {k: json.loads(v) for k, v in page.locator("[data-value-of]").evaluate_all(script)}


def read(text):
    """A shown number: −1.494×10⁻⁵ → -1.494e-05."""
    text = text.replace("−", "-").rstrip("°% ")
    match = re.fullmatch(r"(-?[\d.]+)×10([⁻⁰¹²³⁴-⁹]+)", text)
    if match is None:
        return math.inf if text == "∞" else float(text)
    power = match[2].translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789"))
    return float(f"{match[1]}e{power}")


def slider(page, name, kind="range"):
    return page.locator(f'[data-slider="{name}"] input[type="{kind}"]')


def test_heads_are_the_family():
    heads = {head["name"]: head for head in explorer.heads() if head["name"] == head["of"]}
    classic = {name: recipe for name, recipe in FAMILY.items() if recipe.group == "classic"}
    assert set(heads) >= set(classic)
    # Of these ψ is of another form, or does not tell all.
    assert not set(heads) & {"elasticface-arc", "adaface", "mv-arcface", "subcenter-arcface", "ldam"}
    theta = torch.linspace(0, math.pi, 50, dtype=torch.float64)
    for name, recipe in ((name, FAMILY[name]) for name in heads):
        head = heads[name]
        if not head["form"]:  # one of its own is compared in the page
            plain_psi = Combined(head["m1"], head["m2"], head["m3"]).psi(theta)
            assert torch.allclose(plain_psi, recipe.margin.psi(theta))
        assert (head["s"], head["unit_features"]) == (recipe.scale, recipe.unit_features)
    assert heads["a-softmax"]["lambda"] == 5
    assert heads["l-softmax"]["lambda"] == 0


def test_words_are_whole():
    """Every key is in both languages, is used, takes the same values, and is translated."""
    english, chinese = WORDS["en"], WORDS["zh"]
    assert list(english) == list(chinese)
    _, body, script = explorer.parts()
    code = body + script[: script.index('"words":')]  # without the words themselves
    used = {key for key in english if f'"{key}"' in code}
    assert set(english) - used == set()
    asked = set(re.findall(r'data-word="(\w+)"', body)) | set(re.findall(r'\bsay\("(\w+)"', script))
    assert asked - set(english) == set()
    for key in english:
        named = [sorted(re.findall(r"\{(\w+)\}", words[key])) for words in (english, chinese)]
        assert named[0] == named[1], key
        assert re.search(r"[一-鿿]", chinese[key]), key
        assert not re.search(r"[一-鿿]", english[key]), key


def test_document_and_parts():
    css, body, script = explorer.parts("zh")
    whole = explorer.page("zh")
    assert css in whole
    assert body in whole
    assert script in whole
    assert '<html lang="zh-Hans">' in whole
    assert "</script" not in script.lower()  # it would end the script element
    assert not re.search(r"https?://", whole)
    for selector in re.findall(r"(?:^|[}{;]|\*/)\s*([^{}@;]+)\{", re.sub(r"/\*.*?\*/", "", css, flags=re.S)):
        for one in re.sub(r"\([^()]*\)", "", selector).split(","):
            assert one.strip().startswith((".hm-explorer", ".hm-base")), selector
    for colour in (*asdict(LIGHT).values(), *asdict(DARK).values()):
        assert colour in css


def test_unknown_language_is_refused(tmp_path):
    with pytest.raises(ValueError, match="lang must be one of 'en', 'zh'; got 'fr'"):
        explorer.write(tmp_path / "page.html", lang="fr")
    assert not list(tmp_path.iterdir())
    explorer.write(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == PAGE


def test_maths_is_the_library(page):
    every = cases()
    for case, found in zip(every, page.evaluate(IN_THE_PAGE, every), strict=True):
        expected = by_the_library(case)
        for name, value in expected.items():
            if value is None or found[name] is None:
                assert found[name] is value, (name, case)
            else:
                assert found[name] == close(value, rel=1e-9, abs=1e-9), (name, case)


def test_cases_hold_what_they_should():
    """The corners that the law above relies on are among the cases."""
    widths = [(advise.band_width(blended(c), c["theta12"]), c) for c in cases()]
    assert any(w == c["theta12"] for w, c in widths)
    assert any(w < 0 for w, c in widths)
    assert any(by_the_library(c)["scale"] is None for c in cases() if c["classes"] < 100)


def test_knots(page):
    for case in cases():
        found = page.evaluate("c => window.hypermarginExplorer.knots(c)", case)
        if case.get("form"):
            assert found == []
            continue
        passed = [math.floor((case["m1"] * t + case["m2"]) / math.pi) for t in (0.0, math.pi - 1e-9)]
        assert len(found) == passed[1] - passed[0]
        for knot in found:
            u = case["m1"] * knot + case["m2"]
            assert 0 < knot < math.pi
            assert math.sin(u) == close(0, abs=1e-9)


def test_ladder_is_hinge(page):
    draw = torch.Generator().manual_seed(2)
    label = torch.tensor([0])
    examples = [
        ([0.6, 0.5, 0.4, 0.1, -0.2], 0.35, 10.0),
        ([0.9, 0.3, 0.3, 0.3], 0.8, 30.0),
        ([0.9, -0.5], 0.2, 5.0),
    ]
    for _ in range(12):
        scores = (2 * torch.rand(5, generator=draw, dtype=torch.float64) - 1).tolist()
        examples.append((scores, *(torch.rand(2, generator=draw) * torch.tensor([1.5, 100.0])).add(0.1).tolist()))
    for scores, m, s in examples:
        c = torch.tensor([scores], dtype=torch.float64, requires_grad=True)
        smooth = hinge.softplus_hinge(c, label, m=m, s=s) / s
        angle = m / 2
        expected = {
            "sum": hinge.sum_hinge(c, label, m=m), "max": hinge.max_hinge(c, label, m=m),
            "lse": hinge.lse_hinge(c, label, m=m, s=s), "softplus": smooth, "entropy": smooth,
            "angle": margin_cross_entropy(c, label, ArcFace(angle), s) / s,
        }  # fmt: skip
        for kind, value in expected.items():
            script = "([kind, [y, ...rivals], o]) => window.hypermarginExplorer.ladder[kind](y, rivals, o)"
            found = page.evaluate(script, [kind, scores, {"m": m, "s": s, "angle": angle}])
            (gradient,) = torch.autograd.grad(value, c, retain_graph=True)
            assert found["value"] == close(value.item(), rel=1e-9, abs=1e-9), kind
            assert [found["target"], *found["rivals"]] == close(gradient[0].tolist(), rel=1e-9, abs=1e-9), kind


def test_keyboard_moves_what_is_shown(page):
    """Arrow keys on every slider: the numbers that change are the library's, also as they are written."""
    go(page, m1=1.5, m2=0.3, m3=0.2, s=20, classes=100, theta12=100, theta=40, **{"lambda": 0.5})
    for name in SLIDERS:
        before = values(page)
        slider(page, name).focus()
        page.keyboard.press("ArrowRight")
        settle(page)
        found = values(page)
        assert found != before, name
        case = {key: float(slider(page, key, "number").input_value()) for key in SLIDERS}
        case |= {key: math.radians(case[key]) for key in ("theta", "theta12")}
        case |= {"classes": int(case["classes"]), "rivals": "right", "P": 0.99}
        expected = by_the_library(case)
        b = (case["theta12"] - expected["width"]) / 2
        shown = {
            "psi": expected["psi"], "slope": expected["slope"], "loss": expected["loss"],
            "gradient": expected["gradient"], "probability": expected["probability"],
            "width": math.degrees(expected["width"]), "boundary": math.degrees(b),
            "share": 100 * expected["width"] / case["theta12"], "smallestScale": expected["scale"],
            "lossFloor": expected["floor"], "simplexProbability": expected["best"],
            "simplexAngle": math.degrees(math.acos(-1 / (case["classes"] - 1))),
            "theta": math.degrees(case["theta"]), "cosine": math.cos(case["theta"]),
        }  # fmt: skip
        assert set(shown) | {"knots", "rung", "pull"} == set(found)
        for key, value in shown.items():
            assert found[key] == close(value, rel=1e-9, abs=1e-9), (name, key)
            for text in page.locator(f'[data-value-of="{key}"]').all_text_contents():
                assert read(text) == close(value, rel=6e-4, abs=1e-12), (name, key, text)


def test_every_press_is_a_step(page):
    go(page, classes=2, **{"lambda": 0})
    for name in ("classes", "lambda"):
        seen = [float(slider(page, name, "number").input_value())]
        slider(page, name).focus()
        for _ in range(6):
            page.keyboard.press("ArrowRight")
            settle(page)
            seen.append(float(slider(page, name, "number").input_value()))
        assert seen == sorted(set(seen))
        page.keyboard.press("End")
        settle(page)
        assert float(slider(page, name, "number").input_value()) == {"classes": 1e6, "lambda": 1000}[name]


def test_curve_is_psi(page):
    for state in ({"m1": 4, "m2": 0, "lambda": 5}, {"m1": 1, "m2": 0.5}, {"m1": 0.6, "m2": 1, "m3": 0.4}):
        go(page, **state)
        case = {"m1": 1.0, "m2": 0.5, "m3": 0.0, "lambda": 0.0} | state
        margin = blended(case)
        for plot, f in (("psi", margin.psi), ("slope", lambda t, margin=margin: slope(margin, t))):
            svg = page.locator(f'[data-plot="{plot}"]')
            left, right, bottom, top = json.loads(svg.get_attribute("data-frame"))
            x0, x1, y0, y1 = json.loads(svg.get_attribute("data-range"))
            drawn = svg.locator("path.hm-main").get_attribute("d")
            points = [[float(x) for x in p.split()] for p in re.split("[ML]", drawn)[1:]]
            assert len(points) == 241 + svg.locator("circle.hm-knot").count()
            for px, py in points:
                theta = math.radians(x0 + (px - left) / (right - left) * (x1 - x0))
                y = f(torch.tensor(theta, dtype=torch.float64)).item()
                assert py == close(bottom - (y - y0) / (y1 - y0) * (bottom - top), abs=0.05), (plot, theta)
            assert [points[0][0], points[-1][0]] == [left, right]


def slope(margin, theta):
    theta = theta.clone().requires_grad_()
    return torch.autograd.grad(margin.psi(theta), theta)[0]


def test_presets_set_the_sliders(page):
    for head in explorer.heads():
        page.locator('[data-choice="head"]').select_option(head["name"])
        settle(page)
        for key in ("m1", "m2", "m3", "lambda", "s"):
            assert float(slider(page, key, "number").input_value()) == head[key], (head["name"], key)
        for key in ("m1", "m2", "m3", "s"):
            assert float(slider(page, key).input_value()) == head[key], (head["name"], key)
        assert slider(page, "lambda").get_attribute("aria-valuetext") == f"{head['lambda']:g}"
        assert page.locator('[data-shows="head"]').text_content() == head["paper"]
        free = page.locator('[data-shows="free"]').text_content()
        assert bool(free) == (not head["unit_features"])
        assert page.locator('[data-choice="head"]').input_value() == head["name"]
    slider(page, "m3").focus()
    page.keyboard.press("ArrowRight")
    settle(page)
    assert page.locator('[data-choice="head"]').input_value() == ""
    page.locator('[data-do="reset"]').click()
    settle(page)
    assert page.locator('[data-choice="head"]').input_value() == "arcface"


def test_fields_take_numbers_in_range_only(page):
    go(page, s=30)
    field = slider(page, "s", "number")
    field.fill("500")
    assert field.get_attribute("aria-invalid") == "true"
    settle(page)
    assert float(slider(page, "s").input_value()) == 30
    field.press("Enter")
    settle(page)
    assert float(field.input_value()) == float(slider(page, "s").input_value()) == 128
    field.fill("12.345")
    settle(page)
    assert values(page)["simplexProbability"] == close(math.exp(-advise.loss_floor(1000, 12.345, ArcFace(0.5))))


def test_link_restores_everything(browser, page, tmp_path):
    go(page, m1=1.3, m2=0.21, m3=0.1, s=33.5, classes=777, theta12=66, theta=22.5, rivals="simplex", P=0.999)
    slider(page, "theta").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.hash.includes('theta=23')")
    anchor = page.evaluate("() => location.hash")
    assert page.locator(".hm-link").get_attribute("href") == anchor
    with opened(browser, PAGE, tmp_path, anchor=anchor) as other:
        assert values(other) == values(page)
        assert other.locator('[value="simplex"]').is_checked()
        assert other.locator('[data-choice="P"]').input_value() == "0.999"
    with opened(browser, PAGE, tmp_path, anchor="#m1=nan&m2=9&s=&classes=2.5&head=x&theta=-1&step=7&P=2") as other:
        go(page, head="arcface")
        assert values(other) == values(page)


def test_languages(page):
    go(page, m1=4, m2=0.5)
    for lang in ("zh", "en"):
        page.locator('[data-choice="lang"]').select_option(lang)
        settle(page)
        script = "places => places.map(p => [p.dataset.word, p.textContent])"
        for key, text in page.locator("[data-word]").evaluate_all(script):
            assert text == WORDS[lang][key].replace("_", ""), key
        shown = page.locator(".hm-explorer").inner_text()
        assert bool(re.search(r"[一-鿿]", shown.replace("中文", ""))) == (lang == "zh")
        other = WORDS["en" if lang == "zh" else "zh"]
        for key in ("band_some", "sample_first", "scale_enough", "why_sum", "bar_target"):
            assert other[key].split("{")[0] not in shown
        # What the page says of its numbers, in every case there is: no key fails, no {name} stays.
        for state in (
            {"m2": 1.5, "theta12": 30}, {"m1": 0.6, "m2": 0, "theta": 45}, {"m2": 0}, {"theta12": 20, "theta": 50},
            {"m3": 1.9, "m2": 1}, {"theta": 0}, {"theta": 90}, {"s": 1}, {"head": "softmax", "m2": 0, "s": 1},
            {"head": "a-softmax", "m1": 4, "m2": 0, "lambda": 5, "s": 1},
        ):  # fmt: skip
            go(page, lang=lang, **state)
            assert "{" not in page.locator(".hm-explorer").inner_text()


def test_what_it_says_of_the_band(page):
    for state, key in (
        ({"m2": 0.5, "theta12": 90}, "band_some"), ({"m2": 0}, "band_none"),
        ({"m2": 1, "theta12": 30}, "band_infeasible"), ({"m1": 0.5, "m2": 0}, "band_overlap"),
    ):  # fmt: skip
        go(page, **state)
        words = page.locator('[data-shows="band"]').text_content()
        assert words.startswith(WORDS["en"][key].split("{")[0]), state
    go(page, m3=1.9, classes=1000)
    assert page.locator('[data-value-of="smallestScale"]').text_content() == "∞"
    assert WORDS["en"]["scale_never"] in page.locator('[data-shows="scale"]').text_content()


def test_step_through(page):
    go(page)
    page.locator("#hm-score-1").fill("0.7")
    c = torch.tensor([[0.6, 0.7, 0.4, 0.1, -0.2]], dtype=torch.float64, requires_grad=True)
    label = torch.tensor([0])
    smooth = hinge.softplus_hinge(c, label, m=0.35, s=10) / 10
    rungs = [
        hinge.sum_hinge(c, label, m=0.35), hinge.max_hinge(c, label, m=0.35),
        hinge.lse_hinge(c, label, m=0.35, s=10), smooth, smooth,
        margin_cross_entropy(c, label, ArcFace(0.5), 10) / 10,
    ]  # fmt: skip
    titles = set()
    for k, value in enumerate(rungs, 1):
        settle(page)
        assert page.locator('[data-shows="step"]').text_content() == f"Step {k} of 6"
        titles.add(page.locator('[data-shows="rung"]').text_content())
        (gradient,) = torch.autograd.grad(value, c, retain_graph=True)
        assert values(page)["rung"] == close(value.item(), rel=1e-9)
        assert values(page)["pull"] == close(gradient.abs().sum().item(), rel=1e-9)
        shown = page.locator(".hm-bars output").all_text_contents()
        assert [read(text) for text in shown] == close(gradient[0].tolist(), rel=6e-3, abs=1e-9)
        if k < 6:
            page.locator('[data-do="next"]').press("Enter")
    assert len(titles) == 6
    assert page.locator('[data-do="next"]').is_disabled()
    page.locator('[data-do="back"]').click()
    settle(page)
    assert page.locator('[data-shows="step"]').text_content() == "Step 5 of 6"
    page.locator('[data-do="reset"]').click()
    settle(page)
    assert page.locator("#hm-score-1").input_value() == "0.5"


def test_drag_on_a_plot(page):
    go(page, theta=10)
    svg = page.locator('[data-plot="loss"]')
    svg.scroll_into_view_if_needed()
    box = svg.bounding_box()
    left, right, *_ = json.loads(svg.get_attribute("data-frame"))
    page.mouse.move(box["x"] + left, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + left + (right - left) * 0.5, box["y"] + 60)
    page.mouse.up()
    page.mouse.move(box["x"] + right, box["y"] + 60)
    settle(page)
    assert float(slider(page, "theta", "number").input_value()) == close(90, abs=0.5)


def test_named_for_those_who_listen(page):
    """Every control has a name, every plot too, and a pause brings a spoken summary."""
    unnamed = """() => [...document.querySelectorAll('.hm-explorer :is(input, select, button)')].filter(e =>
        !(e.labels?.length && e.labels[0].textContent.trim()) && !e.getAttribute('aria-labelledby')
        && !e.textContent.trim()).map(e => e.outerHTML)"""
    assert page.evaluate(unnamed) == []
    for svg in page.locator("svg[role=img]").all():
        assert svg.get_attribute("aria-label")
    go(page, theta=30)
    slider(page, "theta").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('[data-shows=summary]').textContent.includes('30.5°')")
    outline = slider(page, "theta").evaluate(
        "e => getComputedStyle(e).outlineStyle + getComputedStyle(e).outlineWidth"
    )
    assert outline == "solid3px"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes(browser, tmp_path, scheme):
    from playwright.sync_api import expect

    def rgb(colour):
        return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"

    with opened(browser, PAGE, tmp_path, scheme=scheme) as page:
        looks = {"auto": LIGHT if scheme == "light" else DARK, "light": LIGHT, "dark": DARK}
        for theme, look in looks.items():
            page.locator('[data-choice="theme"]').select_option(theme)
            assert page.locator(".hm-explorer").get_attribute("data-theme") == theme
            style = "e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color]"
            assert page.locator(".hm-controls").evaluate(style) == [rgb(look.ground), rgb(look.ink)]
            # The curves are drawn anew in a frame to come, and until then one may be asked that is no longer there.
            expect(page.locator('[data-plot="psi"] .hm-main')).to_have_css("stroke", rgb(look.blue))


TEXTS = """() => {
  const found = [];
  const visible = e => e.checkVisibility({ visibilityProperty: true }) && !e.closest('.hm-hidden');
  const wanted = '.hm-explorer :is(label, legend, dt, dd, output, button, a, select, input, h2, h3, h4, p, li,'
    + ' text, [role=columnheader], .hm-slider > span, [data-shows])';
  for (const e of document.querySelectorAll(wanted)) {
    const b = e.getBoundingClientRect();
    if (visible(e) && b.width && (e.textContent.trim() || e.matches('input, select')))
      found.push([e, b.left, b.top + scrollY, b.right, b.bottom + scrollY]);
  }
  const name = e => e.tagName + ' ' + (e.textContent.trim() || e.id || e.type).slice(0, 40);
  const bad = [];
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide) bad.push('the page scrolls sideways');
  found.forEach(([a, l, t, r, b], i) => {
    if (l < -0.5 || r > wide + 0.5) bad.push('outside: ' + name(a));
    if (!a.matches('input, text') && a.clientWidth && a.scrollWidth > a.clientWidth + 1)
      bad.push('cut off: ' + name(a));
    for (const [c, l2, t2, r2, b2] of found.slice(i + 1)) {
      if (a.contains(c) || c.contains(a)) continue;
      if (a.matches('.hm-slider > label') && c.matches('.hm-slider > output')) continue; // one line, see below
      if (Math.min(r, r2) - Math.max(l, l2) > 1 && Math.min(b, b2) - Math.max(t, t2) > 2)
        bad.push('overlap: ' + name(a) + ' / ' + name(c));
    }
  });
  const pen = document.createElement('canvas').getContext('2d');
  for (const e of document.querySelectorAll('.hm-explorer input[type=number]')) {
    const s = getComputedStyle(e);
    pen.font = s.font;
    const room = e.clientWidth - parseFloat(s.paddingLeft) - parseFloat(s.paddingRight);
    const spinner = s.appearance === 'textfield' || matchMedia('(pointer: coarse)').matches ? 0 : 16;
    if (pen.measureText(e.value).width > room - spinner) bad.push('cut off: ' + e.id + ' ' + e.value);
  }
  const line = document.createRange();
  line.selectNodeContents(document.querySelector('[data-slider=m2] label'));
  const degrees = document.querySelector('[data-slider=m2] output').getBoundingClientRect();
  if (line.getBoundingClientRect().right > degrees.left) bad.push('the degrees of m2 lie on its label');
  return bad;
}"""


SLOW = [pytest.param(size, marks=pytest.mark.slow) for size in ((820, 1180), (320, 640))]


@pytest.mark.parametrize("size", [DESKTOP, PHONE, *SLOW], ids=str)
def test_nothing_overlaps_or_is_cut_off(browser, tmp_path, size):
    with opened(browser, PAGE, tmp_path, size=size) as page:
        states = [
            {}, {"m1": 8, "m2": 3.1, "m3": 1.9, "lambda": 0, "s": 128, "classes": 1000000, "step": 3},
            {"theta12": 1, "theta": 0, "m2": 0, "step": 5}, {"theta12": 180, "theta": 90, "step": 6, "s": 1.5},
            {"head": "l-softmax", "m1": 4, "m2": 0, "s": 1, "step": 4, "theta": 45, "classes": 2},
            {"m1": 0.5, "m2": 0, "rivals": "simplex", "m3": 1.23456789, "lambda": 0.123456789},
        ]  # fmt: skip
        for lang, state in itertools.product(WORDS, states):
            go(page, lang=lang, **state)
            assert page.evaluate(TEXTS) == [], (lang, state)


def test_targets_for_a_finger(browser, tmp_path):
    with opened(browser, PAGE, tmp_path, size=PHONE) as page:
        small = """() => [...document.querySelectorAll('.hm-explorer :is(button, select, .hm-link, input)')]
            .map(e => [e.type === 'radio' ? e.parentElement : e, e.outerHTML]).filter(([e]) => e.checkVisibility())
            .filter(([e]) => e.getBoundingClientRect().height < 40).map(([, name]) => name)"""
        assert page.evaluate(small) == []
        assert page.locator('[data-plot="mini"] path').count() == 2  # the curve above the sliders
        box = page.locator('[data-plot="mini"]').bounding_box()
        left, right, *_ = json.loads(page.locator('[data-plot="mini"]').get_attribute("data-frame"))
        page.touchscreen.tap(box["x"] + left + (right - left) / 3, box["y"] + 60)
        settle(page)
        assert values(page)["theta"] == close(60, abs=0.5)


def test_lives_inside_another_page(browser, tmp_path):
    css, body, script = explorer.parts()
    host = (
        f"<!doctype html><meta charset=utf-8><style>{css}</style><p id=own>own</p><button>own</button>"
        f"{body}<script>{script}</script>"
    )
    bare = "<!doctype html><meta charset=utf-8><p id=own>own</p><button>own</button>"
    look = """() => [...document.querySelectorAll('body, #own, body > button')].map(e => {
        const s = getComputedStyle(e); return [s.color, s.font, s.margin, s.padding, s.backgroundColor]; })"""
    names = "() => Object.getOwnPropertyNames(window)"
    with opened(browser, bare, tmp_path) as page:
        before, known = page.evaluate(look), set(page.evaluate(names))
    with opened(browser, host, tmp_path, anchor="#own") as page:
        assert page.evaluate(look) == before
        assert set(page.evaluate(names)) - known == {"hypermarginExplorer"}
        assert values(page)["width"] == close(math.degrees(0.5))
        assert page.evaluate("() => location.hash") == "#own"  # an anchor of the host is left alone
