// From the hinge to a margin in the angle, a rung at a time, on one sample whose scores can be changed.

const EXAMPLE = { scores: [0.6, 0.5, 0.4, 0.1, -0.2], m: 0.35, angle: 0.5, s: 10 };
const example = { ...EXAMPLE, scores: [...EXAMPLE.scores] };

const SOFTMAX = (target) => `L/s,  L = −log( exp(s·${target}) / (exp(s·${target}) + Σ_j exp(s·c_j)) )`;
const RUNGS = [
  { kind: "sum", title: "rung_sum", why: "why_sum", formula: "S = Σ_j [m + c_j − c_y]₊" },
  { kind: "max", title: "rung_max", why: "why_max", formula: "H = [max_j (m + c_j − c_y)]₊" },
  { kind: "lse", title: "rung_lse", why: "why_lse", formula: "H_s = [log Σ_j exp(s·(m + c_j − c_y)) / s]₊" },
  {
    kind: "softplus", title: "rung_softplus", why: "why_softplus",
    formula: "L/s = log(1 + Σ_j exp(s·(m + c_j − c_y))) / s",
  },
  { kind: "entropy", title: "rung_entropy", why: "why_entropy", formula: SOFTMAX("(c_y − m)") },
  { kind: "angle", title: "rung_angle", why: "why_angle", formula: SOFTMAX("cos(θ_y + m)") },
];

function makeLadder() {
  const bars = one('[data-shows="bars"]');
  const head = ["bar_class", "bar_score", "bar_gradient"]
    .map((word) => `<span role="columnheader" data-word="${word}"></span>`)
    .join("");
  bars.innerHTML = `<div role="row">${head}</div>${example.scores.map(makeBar).join("")}`;
  bars.querySelectorAll("input").forEach((field, i) => {
    listen(field, (value) => (example.scores[i] = value));
  });
  all("[data-field]").forEach((field) => listen(field, (value) => (example[field.dataset.field] = value)));
  for (const [button, by] of [["back", -1], ["next", 1]]) {
    one(`[data-do="${button}"]`).addEventListener("click", () => change({ step: state.step + by }));
  }
  fillLadder();
}

const makeBar = (_, i) => `<div role="row" class="${i ? "hm-rival" : "hm-target"}">
  <label role="rowheader" for="hm-score-${i}"></label>
  <span role="cell"><input type="number" id="hm-score-${i}" min="-1" max="1" step="0.05"></span>
  <span role="cell" class="hm-pull"><span class="hm-bar"><i></i></span><output></output></span></div>`;

function listen(field, take) {
  field.addEventListener("input", () => {
    const valid = field.value !== "" && field.validity.rangeUnderflow === false && !field.validity.rangeOverflow;
    field.setAttribute("aria-invalid", !valid);
    if (!valid) return;
    take(Number(field.value));
    change({});
  });
  field.addEventListener("change", () => {
    if (field.getAttribute("aria-invalid") === "true") fillLadder();
  });
}

// What the fields hold, from the example: at the start, on reset, and after a number that is not allowed.
function fillLadder() {
  all('[data-shows="bars"] input').forEach((field, i) => (field.value = example.scores[i]));
  all("[data-field]").forEach((field) => (field.value = example[field.dataset.field]));
  all('[data-panel="ladder"] input').forEach((field) => field.setAttribute("aria-invalid", false));
}

function resetLadder() {
  Object.assign(example, EXAMPLE, { scores: [...EXAMPLE.scores] });
  fillLadder();
}

function drawLadder() {
  const { kind, title, why, formula } = RUNGS[state.step - 1];
  const [target, ...rivals] = example.scores;
  const found = maths.ladder[kind](target, rivals, example);
  const gradients = [found.target, ...found.rivals];
  tell("step", say("step", { k: state.step, n: RUNGS.length }));
  tell("rung", say(title));
  tell("formula", formula);
  tell("why", say(why));
  one('[data-do="back"]').disabled = state.step === 1;
  one('[data-do="next"]').disabled = state.step === RUNGS.length;
  // Which of m, angle and s the rung uses is seen by the others being off.
  one('[data-field="m"]').disabled = kind === "angle";
  one('[data-field="angle"]').disabled = kind !== "angle";
  one('[data-field="s"]').disabled = kind === "sum" || kind === "max";
  const most = Math.max(1, ...gradients.map(Math.abs));
  all('[data-shows="bars"] [role="row"]').slice(1).forEach((row, i) => {
    row.querySelector("label").textContent = i ? say("bar_rival", { k: i }) : say("bar_target");
    const share = (50 * Math.abs(gradients[i])) / most;
    row.querySelector("i").style.cssText = `width:${share}%;left:${gradients[i] < 0 ? 50 - share : 50}%`;
    const output = row.querySelector("output");
    output.dataset.value = JSON.stringify(gradients[i]);
    output.textContent = show(gradients[i], 3);
  });
  write("rung", found.value);
  write("pull", gradients.reduce((sum, pull) => sum + Math.abs(pull), 0));
}
