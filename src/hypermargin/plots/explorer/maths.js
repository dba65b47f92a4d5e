// What the page computes, as pure functions of numbers. Angles are radians; a setting holds m1, m2, m3, lambda
// (the margin), s (the scale), classes (C) and rivals ("right" or "simplex": where the other classes are).

const softplus = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
const sigmoid = (x) => (x >= 0 ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / (1 + Math.exp(x)));

function logSumExp(values) {
  const largest = Math.max(...values);
  return largest + Math.log(values.reduce((sum, value) => sum + Math.exp(value - largest), 0));
}

// g(u) = (−1)^k cos u − 2k, k = ⌊u/π⌋: the cosine on [0, π], which then goes on falling.
function carrier(u) {
  const k = Math.floor(u / Math.PI);
  return Math.cos(u - Math.PI * k) - 2 * k;
}

// g′(u) = −|sin u|, written so that it is smooth within a branch.
const carrierSlope = (u) => -Math.sin(u - Math.PI * Math.floor(u / Math.PI));

// Heads whose ψ is not g(m1·θ + m2) − m3, each with its slope; their numbers are the papers'.
const FORMS = {
  x2: [(theta) => 0.65 - 0.9 * theta * theta, (theta) => -1.8 * theta],
  expface: [
    (theta) => Math.cos(Math.PI * Math.max(theta / Math.PI, 1e-12) ** 0.7),
    (theta) => {
      const t = Math.max(theta / Math.PI, 1e-12);
      return -Math.sin(Math.PI * t ** 0.7) * 0.7 * t ** -0.3;
    },
  ],
};

// ψ(θ) = (λ cos θ + g(m1·θ + m2) − m3)/(1 + λ): the cosine the loss pretends the target had.
function psi(theta, { m1, m2, m3, lambda, form }) {
  const cosine = Math.cos(theta);
  const whole = form ? FORMS[form][0](theta) : carrier(m1 * theta + m2) - m3;
  return cosine + (whole - cosine) / (1 + lambda);
}

function psiSlope(theta, { m1, m2, lambda, form }) {
  const sine = Math.sin(theta);
  const whole = form ? FORMS[form][1](theta) : m1 * carrierSlope(m1 * theta + m2);
  return -sine + (whole + sine) / (1 + lambda);
}

// The angles strictly between 0 and π at which m1·θ + m2 passes a multiple of π.
function knots({ m1, m2, form }) {
  const found = [];
  if (form) return found;
  for (let k = Math.floor(m2 / Math.PI) + 1; (k * Math.PI - m2) / m1 < Math.PI - 1e-12; k++) {
    found.push((k * Math.PI - m2) / m1);
  }
  return found;
}

// Two classes θ12 apart. Class 1 keeps a sample up to θ1 = b, where ψ(b) = cos(θ12 − b); class 2 mirrors it.
// Between them lies the band, θ12 − 2b wide: all of θ12 if not even the center is kept, negative for an overlap.
function band(setting, theta12) {
  const feasible = psi(0, setting) >= Math.cos(theta12);
  let low = 0;
  let high = feasible ? theta12 : 0;
  for (let i = 0; i < 60; i++) {
    const middle = (low + high) / 2;
    if (psi(middle, setting) >= Math.cos(theta12 - middle)) low = middle;
    else high = middle;
  }
  const boundary = (low + high) / 2;
  return { feasible, boundary, width: theta12 - 2 * boundary };
}

// Every rival at 90° to the sample, or at a simplex: cosine −cos θ/(C−1), the farthest that C classes can be.
const away = ({ rivals, classes }) => (rivals === "simplex" ? 1 / (classes - 1) : 0);
const rivalCosine = (theta, setting) => -Math.cos(theta) * away(setting);
const rivalSlope = (theta, setting) => Math.sin(theta) * away(setting);

// R − T with R = log Σ_{j≠y} exp z_j and T = s·ψ(θ): by how much the rivals outweigh the target.
const excess = (theta, setting) =>
  Math.log(setting.classes - 1) + setting.s * (rivalCosine(theta, setting) - psi(theta, setting));

const loss = (theta, setting) => softplus(excess(theta, setting));
const probability = (theta, setting) => sigmoid(-excess(theta, setting));
const gradient = (theta, setting) =>
  sigmoid(excess(theta, setting)) * setting.s * (rivalSlope(theta, setting) - psiSlope(theta, setting));

// At the simplex, with every sample on its own center: the best that C classes can reach.
const simplexProbability = (setting) => probability(0, { ...setting, rivals: "simplex" });
const lossFloor = (setting) => loss(0, { ...setting, rivals: "simplex" });

// The least s that gives the sample at the simplex probability P; Infinity if none does.
function smallestScale(setting, P) {
  const gap = psi(0, setting) + 1 / (setting.classes - 1);
  return gap > 0 ? Math.max(0, Math.log(((setting.classes - 1) * P) / (1 - P)) / gap) : Infinity;
}

// From the hinge to a margin in the angle: a rung's value and its gradient by the target's and the rivals' scores.
// v_j = m + c_j − c_y are the violations. The smooth rungs are L/s, to compare with the others.
const ladder = {
  sum(target, rivals, { m }) {
    const pulls = rivals.map((c) => (m + c - target > 0 ? 1 : 0));
    const value = rivals.reduce((sum, c) => sum + Math.max(0, m + c - target), 0);
    return { value, target: -pulls.reduce((a, b) => a + b, 0), rivals: pulls };
  },
  max(target, rivals, { m }) {
    const worst = Math.max(...rivals);
    const tied = rivals.filter((c) => c === worst).length;
    const value = Math.max(0, m + worst - target);
    const pull = value > 0 ? 1 : 0;
    return { value, target: -pull, rivals: rivals.map((c) => (c === worst ? pull / tied : 0)) };
  },
  lse(target, rivals, { m, s }) {
    const smooth = logSumExp(rivals.map((c) => s * (m + c - target)));
    const pull = smooth > 0 ? 1 : 0;
    return { value: Math.max(0, smooth / s), target: -pull, rivals: shares(rivals, s).map((p) => pull * p) };
  },
  softplus(target, rivals, { m, s }) {
    const smooth = logSumExp(rivals.map((c) => s * (m + c - target)));
    const pull = sigmoid(smooth);
    return { value: softplus(smooth) / s, target: -pull, rivals: shares(rivals, s).map((p) => pull * p) };
  },
  // The same number the other way: −log of a softmax over the scores, with m taken off the target's.
  entropy(target, rivals, { m, s }) {
    const logits = [target - m, ...rivals].map((c) => s * c);
    const [own, ...others] = logits.map((z) => Math.exp(z - logSumExp(logits)));
    return { value: (logSumExp(logits) - logits[0]) / s, target: own - 1, rivals: others };
  },
  // The margin inside the angle: T = s·g(θ + angle). By the cosine, ψ has slope |sin(θ + angle)|/sin θ.
  angle(target, rivals, { angle, s }) {
    const u = Math.acos(target) + angle;
    const steep = Math.abs(target) < 1 ? -carrierSlope(u) / Math.sqrt(1 - target * target) : 0;
    const gap = logSumExp(rivals.map((c) => s * c)) - s * carrier(u);
    const pull = sigmoid(gap);
    return { value: softplus(gap) / s, target: -pull * steep, rivals: shares(rivals, s).map((p) => pull * p) };
  },
};

// The softmax among the rivals: how they share the push.
function shares(rivals, s) {
  const whole = logSumExp(rivals.map((c) => s * c));
  return rivals.map((c) => Math.exp(s * c - whole));
}

const maths = Object.freeze({
  carrier, psi, psiSlope, knots, band, loss, gradient, probability, simplexProbability, lossFloor, smallestScale,
  ladder: Object.freeze(ladder),
});
