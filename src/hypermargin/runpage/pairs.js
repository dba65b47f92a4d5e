// The pairs that a threshold is wrong about, those at its line, and the identities they belong to.

function drawPairs(t) {
  const most = shown();
  const wrong = pairs.filter((pair) => !pair.genuine && pair.score >= t);
  const lost = pairs.filter((pair) => pair.genuine && pair.score < t).reverse();
  const near = [...pairs]
    .sort((a, b) => Math.abs(a.score - t) - Math.abs(b.score - t))
    .slice(0, most)
    .sort((a, b) => b.score - a.score);
  const own = state.sample === null ? null : pairs.filter((pair) => pair.rows.includes(state.sample));
  const counts = {
    accepted: whole(curve.far[state.t] * data.impostor),
    rejected: whole((1 - curve.tar[state.t]) * data.genuine),
  };
  tell("accepted", say("accepted", { n: counts.accepted }));
  tell("rejected", say("rejected", { n: counts.rejected }));
  tell(
    "near",
    own ? say("of_sample", { name: `${nameOf(state.sample)}, ${whereOf(rowOf(state.sample))}` }) : say("near"),
  );
  one('[data-do="forget"]').hidden = state.sample === null;
  cards("accepted", wrong.slice(0, most), t);
  cards("rejected", lost.slice(0, most), t);
  cards("near", own ?? near, t);
  const complete = (data.pairs.highest ?? Infinity) <= t;
  confusions(wrong, lost, complete, (data.pairs.lowest ?? -Infinity) >= t);
  tell(
    "kept",
    say(complete ? "kept_all" : "kept_some", { n: whole(pairs.filter((pair) => !pair.genuine).length) }),
  );
  tell("picked", state.pair === null ? "" : spoken(pairs[state.pair], t));
}

const verdict = ({ genuine, score }, t) => say(`${genuine ? "same" : "different"}_${score >= t ? "yes" : "no"}`);
const spoken = (pair, t) => `${pair.rows.map(nameOf).join(" – ")}: ${cosine(pair.score)}, ${verdict(pair, t)}`;

// Cards are made anew only where they are other pairs: a focused one keeps its focus.
function cards(where, found, t) {
  const place = list(where);
  const key = `${state.lang} ${found.map((pair) => pair.i).join()}`;
  if (place.dataset.made !== key) {
    place.dataset.made = key;
    place.replaceChildren(
      ...(found.length ? found.map(pairCard) : [el("p", { class: "hp-small" }, say("no_pairs"))]),
    );
  }
  found.forEach((pair, i) => {
    const button = place.children[i];
    button.setAttribute("aria-pressed", state.pair === pair.i);
    button.dataset.verdict = pair.genuine === pair.score >= t ? "right" : "wrong";
    button.querySelector(".hp-lines").lastChild.textContent =
      `${data.unit === "cosine" ? cosine(pair.score) : show(pair.score)} · ${verdict(pair, t)}`;
  });
}

function pairCard(pair) {
  const [a, b] = pair.rows.map(nameOf);
  const button = card(pair.rows.map(rowOf), [pair.genuine ? a : `${a} – ${b}`, ""], { type: "button" });
  for (const kind of ["click", "focus", "mouseenter"])
    button.addEventListener(kind, () => choose({ pair: pair.i }));
  return button;
}

// Which identities are taken for each other, and which are refused, among the pairs in this page.
function confusions(wrong, lost, allWrong, allLost) {
  const count = (found, names) => {
    const counts = new Map();
    for (const pair of found) {
      const key = names(pair);
      const known = counts.get(key) ?? [0, pair.score];
      counts.set(key, [known[0] + 1, known[1]]);
    }
    return [...counts].sort((a, b) => b[1][0] - a[1][0] || b[1][1] - a[1][1]).slice(0, 8);
  };
  const label = data.samples.label;
  const two = count(wrong, ({ rows }) =>
    rows
      .map((k) => label[k])
      .sort((a, b) => a - b)
      .join(),
  );
  const single = count(lost, ({ rows }) => String(label[rows[0]]));
  const named = (key) =>
    key
      .split(",")
      .map(identity)
      .join(" – ");
  const rows = (found, all) =>
    found.map(([key, [n, score]]) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, named(key)),
        el("td", {}, `${all ? "" : "≥ "}${whole(n)}`),
        el("td", {}, cosine(score)),
      ),
    );
  const fillTable = (where, found, all, column) =>
    list(where).replaceChildren(
      found.length
        ? table(
            [say(column), say("column_pairs"), say(where === "confused" ? "column_highest" : "column_lowest")],
            rows(found, all),
          )
        : el("p", { class: "hp-small" }, say("no_pairs")),
    );
  fillTable("confused", two, allWrong, "column_two");
  fillTable("refused", single, allLost, "column_identity");
}
